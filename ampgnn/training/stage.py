"""``ampgnn train``: all seeds of one configuration, with their files, their MLflow runs and a result."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import statistics
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from ampgnn import config as configs
from ampgnn import datasets, environment, precision
from ampgnn.config import RunConfig
from ampgnn.errors import UserError
from ampgnn.files import write_json
from ampgnn.tracking import Tracker

from . import checkpoint, loop, processes
from .progress import Progress

SCHEMA = 1
# Where a stopped process can be taken up; gone once there is a result.
UNFINISHED, SEED_RESULT, CHECKPOINT = "unfinished.json", "seed.json", "checkpoint.safetensors"


def run_config(
    config: RunConfig, data: Path, out: Path, threads: int | None = None, tracking_uri: str | None = None
) -> dict | None:
    """Trains every seed and writes ``out``: config.yaml, train.log, seed<k>/metrics.jsonl, seed<k>/model.safetensors and,
    last and at once, result.json, which is returned.

    Where an earlier process was stopped before its result.json, with the same configuration, data and code, its
    finished seeds are kept and the seed it was at goes on from its last checkpoint. A combination that cannot run
    here is recorded with its reason. A seed whose loss is not finite is recorded as failed; the others go on.

    Started by torchrun, the processes share each mini-batch; the first one alone writes, and returns the result, the
    others None.

    Args:
        data: the dataset's record, written by ``ampgnn data``.
        threads: torch threads; None leaves torch's default.

    Raises:
        UserError: the record is not usable, or several processes were started to train on the whole graph.
    """
    if threads:
        torch.set_num_threads(threads)
    record = datasets.read_record(data)
    with processes.joined(config.device):
        if processes.size() > 1 and config.batch_size is None:
            raise UserError("several processes share mini-batches: give batch_size, or start one process")
        return (_lead if processes.rank() == 0 else _follow)(config, record, Path(data), Path(out), tracking_uri)


def _follow(config: RunConfig, record: dict, data: Path, out: Path, tracking_uri: str | None) -> None:
    """What the other processes do: the first one's epochs."""
    seeds = processes.told(None)
    if not seeds:
        return
    prepared = loop.prepare(config, datasets.open_record(data))
    for seed in seeds:
        state, _ = _state(config, prepared, seed, out / f"seed{seed}", note=lambda text: None)
        with contextlib.suppress(loop.NonFiniteLoss):  # told by the first
            for _ in loop.train(config, prepared, state):
                pass


def _lead(config: RunConfig, record: dict, data: Path, out: Path, tracking_uri: str | None) -> dict:
    _open_folder(out, config, record)
    about = environment.describe()
    tracker = Tracker(config, record, about, out, uri=tracking_uri)
    reason = _reason(config, record)
    done = [s for s in config.seeds if (out / f"seed{s}" / SEED_RESULT).exists()]
    processes.told([] if reason else [s for s in config.seeds if s not in done])
    with Progress(config, out / "train.log") as progress:
        if reason:
            progress.note(f"not run: {reason}")
            runs = [_not_run(tracker, seed, reason) for seed in config.seeds]
        else:
            prepared = loop.prepare(config, datasets.open_record(data))
            runs = [_seed(config, prepared, seed, out, tracker, progress) for seed in config.seeds]
    result = {
        "schema": SCHEMA,
        "id": config.id,
        "config": config.model_dump(mode="json"),
        "dataset": record,
        "environment": about,
        "threads": torch.get_num_threads(),
        "processes": processes.size(),
        "tracking": tracker.about(),
        "runs": runs,
    }
    write_json(out / "result.json", result)
    for leftover in (out / UNFINISHED, *out.glob(f"seed*/{SEED_RESULT}"), *out.glob(f"seed*/{CHECKPOINT}")):
        leftover.unlink(missing_ok=True)
    return result


def _open_folder(out: Path, config: RunConfig, record: dict) -> None:
    """Leaves ``out`` as it is if a process that did the same was stopped there, else empties it."""
    code = environment.sources_digest(
        "ampgnn.nn", "ampgnn.models", "ampgnn.training", "ampgnn.precision", "ampgnn_kernels"
    )
    same = {"config": config.hash, "seeds": list(config.seeds), "data": record.get("digest"), "code": code}
    same |= {"torch": torch.__version__, "processes": processes.size()}
    try:
        resumed = json.loads((out / UNFINISHED).read_text()) == same
    except (OSError, ValueError):
        resumed = False
    if not resumed:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        write_json(out / UNFINISHED, same)
    (out / "result.json").unlink(missing_ok=True)
    (out / "config.yaml").write_text(configs.dump(config))


def _reason(config: RunConfig, record: dict) -> str | None:
    if record["status"] != "ready":
        return f"dataset unavailable: {record['reason']}"
    return precision.why_not(config.device, config.precision, config.backend, config.mode)


def _not_run(tracker: Tracker, seed: int, reason: str) -> dict:
    with tracker.run(seed) as run:
        run.finish("not_run", reason, {}, [])
    return {
        "seed": seed,
        "status": "not_run",
        "reason": reason,
        "mlflow_run_id": run.id,
        "final": {},
        "metrics": None,
    }


def _seed(config, prepared, seed: int, out: Path, tracker: Tracker, progress: Progress) -> dict:
    folder = out / f"seed{seed}"
    folder.mkdir(exist_ok=True)
    if (folder / SEED_RESULT).exists():
        progress.skip(seed, config.epochs)
        return json.loads((folder / SEED_RESULT).read_text())
    state, before = _state(config, prepared, seed, folder, progress.note)
    if state.epoch:
        progress.skip(seed, state.epoch)
    start = time.perf_counter() - before
    status, reason = "finished", None
    schedule = checkpoint.Schedule(config.checkpoint_epochs, config.checkpoint_minutes)
    with tracker.run(seed) as run, (folder / "metrics.jsonl").open("a+") as file:
        rows = _cut(file, state.epoch)
        for row in rows:
            run.log(row)
        try:
            for metrics in loop.train(config, prepared, state):
                rows.append(metrics)
                file.write(json.dumps(metrics) + "\n")
                file.flush()
                run.log(metrics)
                progress.advance(seed, metrics)
                if state.epoch < config.epochs and schedule.due(state.epoch):
                    os.fsync(file.fileno())
                    checkpoint.save(folder / CHECKPOINT, state, time.perf_counter() - start)
            weights = {k: v.contiguous() for k, v in state.model.state_dict().items()}
            save_file(weights, folder / "model.safetensors")
        except loop.NonFiniteLoss as error:
            status, reason = "failed", str(error)
            progress.note(f"seed {seed} failed: {reason}")
        final = _final(rows, time.perf_counter() - start)
        artifacts = [folder / "metrics.jsonl", folder / "model.safetensors", out / "config.yaml", out / "train.log"]
        run.finish(status, reason, final, [file for file in artifacts if file.exists()])
    gc.collect()
    result = {
        "seed": seed,
        "status": status,
        "reason": reason,
        "mlflow_run_id": run.id,
        "final": final,
        "metrics": f"seed{seed}/metrics.jsonl",
    }
    write_json(folder / SEED_RESULT, result)
    return result


def _state(config, prepared, seed: int, folder: Path, note) -> tuple[checkpoint.State, float]:
    """The seed's state, from its checkpoint if there is one, and the seconds it took so far."""
    state = loop.start(config, prepared, seed)
    if not (folder / CHECKPOINT).exists():
        return state, 0.0
    try:
        seconds = checkpoint.restore(folder / CHECKPOINT, state)
    except ValueError as error:
        note(f"seed {seed} starts anew: {error}")
        return loop.start(config, prepared, seed), 0.0
    return state, seconds


def _cut(file, epochs: int) -> list[dict]:
    """The metrics of the first ``epochs`` epochs; what a process wrote after its checkpoint is cut off."""
    file.seek(0)
    lines = [file.readline() for _ in range(epochs)]
    file.truncate(file.tell())
    return [json.loads(line) for line in lines]


def _final(rows: list[dict], seconds: float) -> dict:
    """The last epoch's metrics, the test accuracy where validation was best, and the median time of an epoch.

    The first epochs, which make what later ones reuse and count tensors, are left out of the median where there are
    others.
    """
    if not rows:
        return {"total_seconds": seconds}
    best = max(rows, key=lambda r: r["val/acc"])
    last = {k: v for k, v in rows[-1].items() if k != "step"}
    times = [r["epoch_seconds"] for r in rows[loop.WATCHED :] or rows]
    extra = {
        "best_val_test/acc": best["test/acc"],
        "epoch_seconds": statistics.median(times),
        "total_seconds": seconds,
    }
    return {**last, **extra, "epochs": len(rows)}
