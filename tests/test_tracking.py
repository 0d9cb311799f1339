"""MLflow for real: parallel first users, what a run holds, reruns, a store that is down."""

import subprocess
import sys
import time

import pytest
from mlflow import MlflowClient

from ampgnn import config, datasets, environment
from ampgnn.tracking import Tracker, open_store

CONFIG = config.parse({"dataset": "digits", "model": "gcn", "precision": "bf16", "epochs": 2})
FIRST_USER = """
import sys
from pathlib import Path
from ampgnn import config, tracking
c = config.parse({"dataset": "digits", "model": "gcn", "precision": "fp32", "epochs": int(sys.argv[2])})
environment = {"git_commit": None, "git_dirty": None, "machine": {}, "versions": {}}
t = tracking.Tracker(c, {"status": "unavailable"}, environment, Path("."), uri=sys.argv[1])
with t.run(0) as run:
    for step in range(100):
        run.log({"step": step, "train/loss": 1.0 / (step + 1)})
    run.finish("finished", None, {"train/loss": 0.5}, [])
assert t.about()["reachable"], t.about()
print(run.id)
"""


def test_eight_first_users_of_a_fresh_store_lose_nothing(tmp_path):
    uri = f"sqlite:///{tmp_path / 'results' / 'mlflow.db'}"
    command = [sys.executable, "-c", FIRST_USER, uri]
    users = [subprocess.Popen([*command, str(n + 1)], stdout=subprocess.PIPE, text=True) for n in range(8)]
    ids = [user.communicate()[0].strip() for user in users]
    assert [user.returncode for user in users] == [0] * 8
    client = MlflowClient(tracking_uri=uri)
    for run_id in ids:
        assert len(client.get_metric_history(run_id, "train/loss")) == 100
        assert client.get_run(run_id).data.metrics["final/train/loss"] == 0.5


@pytest.fixture
def tracker(tmp_path, store, digits_record):
    return Tracker(CONFIG, datasets.read_record(digits_record), environment.describe(), tmp_path, uri=store)


def one_run(tracker, tmp_path, seed=0):
    file = tmp_path / "metrics.jsonl"
    file.write_text("{}\n")
    with tracker.run(seed) as run:
        run.log({"step": 0, "train/loss": 2.0, "loss_scale": float("inf")})
        run.log({"step": 1, "train/loss": 1.0, "loss_scale": 4.0})
        run.finish("finished", None, {"test/acc": 0.7}, [file])
    return run.id


def test_what_a_run_holds(tracker, tmp_path, store):
    run_id = one_run(tracker, tmp_path)
    client = MlflowClient(tracking_uri=store)
    run = client.get_run(run_id)
    assert run.info.run_name == "digits/gcn-bf16-amp-native-cpu/s0" and run.info.status == "FINISHED"
    assert run.data.params["precision"] == "bf16" and run.data.params["seed"] == "0" and run.data.params["lr"] == "0.01"
    assert run.data.tags["ampgnn.status"] == "finished" and run.data.tags["ampgnn.config_hash"] == CONFIG.hash
    assert run.data.tags["ampgnn.image"] == "none: the host's environment"
    assert run.data.tags["ampgnn.machine.isa"] and run.data.tags["ampgnn.version.torch"]
    assert [p.value for p in client.get_metric_history(run_id, "train/loss")] == [2.0, 1.0]
    assert run.data.metrics["final/test/acc"] == 0.7
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    names = {f.path for f in client.list_artifacts(run_id)}
    assert names == {"metrics.jsonl", "environment.txt", "environment.json"}


def test_a_rerun_takes_the_place_of_the_first(tracker, tmp_path, store):
    first = one_run(tracker, tmp_path)
    other = one_run(tracker, tmp_path, seed=1)
    stale = tracker.run(0)
    stale_id = stale.__enter__().id  # killed: never ended
    last = one_run(tracker, tmp_path)
    client = MlflowClient(tracking_uri=store)
    _, experiment = open_store(store)
    assert {r.info.run_id for r in client.search_runs([experiment])} == {other, last}
    assert client.get_run(first).data.tags["ampgnn.superseded"] == "true"
    assert client.get_run(stale_id).info.status == "KILLED"


def test_a_store_that_is_down_costs_seconds_not_results(tmp_path, digits_record, capsys):
    start = time.monotonic()
    record = datasets.read_record(digits_record)
    tracker = Tracker(CONFIG, record, environment.describe(), tmp_path, uri="http://127.0.0.1:9")
    assert one_run(tracker, tmp_path) is None
    about = tracker.about()
    assert not about["reachable"] and about["problem"]
    assert time.monotonic() - start < 120
    assert capsys.readouterr().err.count("warning: MLflow at http://127.0.0.1:9 cannot be used") == 1
