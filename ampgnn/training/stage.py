"""``ampgnn train``: all seeds of one configuration, with their files, their MLflow runs and a result."""

from __future__ import annotations

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
from ampgnn.tracking import Tracker

from . import loop
from .progress import Progress

SCHEMA = 1


def run_config(
    config: RunConfig, data: Path, out: Path, threads: int | None = None, tracking_uri: str | None = None
) -> dict:
    """Trains every seed and writes ``out``: config.yaml, train.log, seed<k>/metrics.jsonl, seed<k>/model.safetensors and,
    last and at once, result.json, which is returned.

    A combination that cannot run here is recorded with its reason. A seed whose loss is not finite is recorded as
    failed; the others go on.

    Args:
        data: the dataset's record, written by ``ampgnn data``.
        threads: torch threads; None leaves torch's default.

    Raises:
        UserError: the record is not usable.
    """
    if threads:
        torch.set_num_threads(threads)
    out = Path(out)
    record = datasets.read_record(data)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "config.yaml").write_text(configs.dump(config))
    about = environment.describe()
    tracker = Tracker(config, record, about, out, uri=tracking_uri)
    reason = _reason(config, record)
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
        "tracking": tracker.about(),
        "runs": runs,
    }
    part = out / "result.json.part"
    part.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(part, out / "result.json")
    return result


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
    folder.mkdir()
    rows, status, reason = [], "finished", None
    start = time.perf_counter()
    with tracker.run(seed) as run, (folder / "metrics.jsonl").open("w") as file:
        try:
            for metrics, model in loop.train(config, prepared, seed):
                rows.append(metrics)
                file.write(json.dumps(metrics) + "\n")
                run.log(metrics)
                progress.advance(seed, metrics)
            save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
            del model
        except loop.NonFiniteLoss as error:
            status, reason = "failed", str(error)
            progress.note(f"seed {seed} failed: {reason}")
        file.flush()
        final = _final(rows, time.perf_counter() - start)
        run.finish(status, reason, final, [*folder.iterdir(), out / "config.yaml", out / "train.log"])
    gc.collect()
    return {
        "seed": seed,
        "status": status,
        "reason": reason,
        "mlflow_run_id": run.id,
        "final": final,
        "metrics": f"seed{seed}/metrics.jsonl",
    }


def _final(rows: list[dict], seconds: float) -> dict:
    """The last epoch's metrics, the test accuracy where validation was best, and the median time of an epoch.

    The first epoch, which also makes what later ones reuse, is left out of the median where there are others.
    """
    if not rows:
        return {"total_seconds": seconds}
    best = max(rows, key=lambda r: r["val/acc"])
    last = {k: v for k, v in rows[-1].items() if k != "step"}
    times = [r["epoch_seconds"] for r in rows[1:] or rows]
    extra = {
        "best_val_test/acc": best["test/acc"],
        "epoch_seconds": statistics.median(times),
        "total_seconds": seconds,
    }
    return {**last, **extra, "epochs": len(rows)}
