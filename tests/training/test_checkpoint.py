"""A run that is killed, at any moment, ends with the bits of one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from ampgnn import config, datasets
from ampgnn.training import checkpoint, loop, run_config

CLOCK = ("epoch_seconds", "peak_rss_bytes", "peak_tensor_bytes", "total_seconds")
SETTING = {
    "dataset": "digits",
    "model": "gat",
    "hidden": 16,
    "dropout": 0.3,
    "epochs": 30,
    "seeds": [0, 1],
    "checkpoint_epochs": 3,
}

# Kills itself at the n-th step of a checkpoint's way to the disk.
KILLED_WHILE_SAVING = """
import os, signal, sys
from ampgnn.training import checkpoint
from ampgnn.cli import app
left, saving = int(sys.argv.pop(1)), False
def countdown(function):
    def call(*args, **kwargs):
        global left
        left -= saving
        if saving and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call
checkpoint.save_file = countdown(checkpoint.save_file)
checkpoint._to_disk = countdown(checkpoint._to_disk)
checkpoint.os.replace = countdown(os.replace)
save = checkpoint.save
def counted(*args):
    global saving
    saving = True
    save(*args)
    saving = False
checkpoint.save = counted
app()
"""


def command(folder, record, *, script=None):
    start = ["-m", "ampgnn"] if script is None else ["-c", *script]
    paths = ["--config", folder / "c.yaml", "--data", record, "--out", folder / "out", "--threads", "1"]
    return [sys.executable, *start, "train", *map(str, paths)]


def run(setting, record, out, store):
    """In this process, on one thread as the commands."""
    before = torch.get_num_threads()
    try:
        run_config(setting, record, out, threads=1, tracking_uri=store)
    finally:
        torch.set_num_threads(before)


def environment(store):
    return {**os.environ, "MLFLOW_TRACKING_URI": store}


def outcome(folder):
    """Everything but times and run ids: metrics of each epoch, final ones, weights."""
    result = json.loads((folder / "result.json").read_text())
    runs = [{k: v for k, v in run["final"].items() if k not in CLOCK} for run in result["runs"]]
    rows = [
        [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("seed*/metrics.jsonl"))
    ]
    weights = [load_file(file) for file in sorted(folder.glob("seed*/model.safetensors"))]
    return runs, rows, weights


def assert_same(ours, whole):
    assert ours[:2] == whole[:2]
    for a, b in zip(ours[2], whole[2], strict=True):
        assert list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def epochs_in(folder) -> int:
    return sum(len(f.read_bytes().splitlines()) for f in folder.glob("seed*/metrics.jsonl"))


@pytest.mark.parametrize("precision, mode", [("fp16", "amp"), ("bf16", "pure")])
def test_a_killed_run_ends_as_one_that_was_not(tmp_path, store, digits_record, precision, mode):
    setting = config.parse({**SETTING, "precision": precision, "mode": mode})
    (tmp_path / "c.yaml").write_text(config.dump(setting))
    run(setting, digits_record, tmp_path / "whole", store)
    out = tmp_path / "out"
    for epochs in (8, 35):  # in the first seed, in the second
        process = subprocess.Popen(command(tmp_path, digits_record), env=environment(store), stdout=subprocess.DEVNULL)
        while epochs_in(out) < epochs and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (out / "result.json").exists() and list(out.glob("seed*/checkpoint.safetensors"))
    done = subprocess.run(command(tmp_path, digits_record), env=environment(store), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    resumed = (out / "train.log").read_text()
    assert "seed 0 goes on after epoch 30/30" in resumed and "seed 1 goes on after epoch" in resumed
    assert_same(outcome(out), outcome(tmp_path / "whole"))
    assert {f.name for f in out.rglob("*") if f.is_file()} == {
        *("config.yaml", "train.log", "result.json", "metrics.jsonl", "model.safetensors")
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, empty_store, digits_record):
    """(configuration, folder) of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(empty_store, folder / "mlflow.db")
    setting = config.parse({**SETTING, "precision": "fp16", "seeds": [3], "epochs": 9})
    run(setting, digits_record, folder / "out", f"sqlite:///{folder / 'mlflow.db'}")
    return setting, folder / "out"


@pytest.mark.parametrize("step", range(5, 9))
def test_a_run_killed_while_saving_loses_one_interval(tmp_path, store, digits_record, undisturbed, step):
    """Steps of a checkpoint: write beside, sync, replace, sync; the second checkpoint's are 5 to 8."""
    setting, whole = undisturbed
    (tmp_path / "c.yaml").write_text(config.dump(setting))
    script = (KILLED_WHILE_SAVING, str(step))
    done = subprocess.run(command(tmp_path, digits_record, script=script), env=environment(store), capture_output=True)
    assert done.returncode == -signal.SIGKILL
    data = loop.prepare(setting, datasets.open_record(digits_record))
    state = loop.start(setting, data, 3)
    checkpoint.restore(tmp_path / "out" / "seed3" / "checkpoint.safetensors", state)
    assert state.epoch == (3 if step < 8 else 6)
    run(setting, digits_record, tmp_path / "out", store)
    assert_same(outcome(tmp_path / "out"), outcome(whole))


@pytest.fixture
def stopped(tmp_path, store, digits_record, monkeypatch):
    """A folder whose process ended at the second checkpoint."""
    setting = config.parse({**SETTING, "precision": "fp32", "seeds": [0], "epochs": 9})
    original, calls = checkpoint.save, []

    def save(*args):
        calls.append(original(*args))
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        with pytest.raises(KeyboardInterrupt):
            run_config(setting, digits_record, tmp_path / "out", tracking_uri=store)
    return setting


def log(folder):
    return (folder / "train.log").read_text()


def test_another_configuration_starts_anew(stopped, tmp_path, store, digits_record):
    other = stopped.model_copy(update={"lr": 0.5})
    run_config(other, digits_record, tmp_path / "out", tracking_uri=store)
    assert "goes on" not in log(tmp_path / "out")
    assert len(outcome(tmp_path / "out")[1][0]) == 9


def test_a_damaged_checkpoint_is_said_and_the_seed_starts_anew(stopped, tmp_path, store, digits_record):
    file = tmp_path / "out" / "seed0" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    run_config(stopped, digits_record, tmp_path / "out", tracking_uri=store)
    assert "seed 0 starts anew" in log(tmp_path / "out")
    run_config(stopped, digits_record, tmp_path / "whole", tracking_uri=store)
    assert_same(outcome(tmp_path / "out"), outcome(tmp_path / "whole"))


def test_the_schedule():
    by_epochs = checkpoint.Schedule(3, 1e9)
    assert [e for e in range(1, 8) if by_epochs.due(e)] == [3, 6]
    always = checkpoint.Schedule(None, 0)
    assert [e for e in range(1, 4) if always.due(e)] == [1, 2, 3]
    assert not any(checkpoint.Schedule(None, 5).due(e) for e in range(1, 4))
