"""Training on sampled neighbourhoods, in one process and in two."""

import json
import os
import subprocess
import sys

import pytest
import torch

from ampgnn import config, datasets
from ampgnn.errors import UserError
from ampgnn.plan import Shape, plan
from ampgnn.training import loop, processes

BATCHES = {"dataset": "digits", "model": "gat", "hidden": 16, "lr": 2e-2, "epochs": 12, "batch_size": 64}


def parse(**values):
    return config.parse({**BATCHES, "precision": "fp32", **values})


@pytest.fixture(scope="module")
def digits(cache):
    return datasets.load("digits", cache)


def epochs(setting, dataset, seed=0):
    data = loop.prepare(setting, dataset)
    return list(loop.train(setting, data, loop.start(setting, data, seed)))


def numbers(rows):
    return [{k: v for k, v in row.items() if k.endswith(("loss", "acc"))} for row in rows]


@pytest.fixture(scope="module")
def whole(digits):
    """Test accuracy of a GAT trained on the whole graph."""
    return epochs(parse(batch_size=None, epochs=50), digits)[-1]["test/acc"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"precision": "bf16", "heads": [2, 2, 1]},
        {"precision": "fp16"},
        {"precision": "bf16", "mode": "pure"},
        {"backend": "dgl"},
        {"model": "gcn", "precision": "fp16"},
    ],
)
def test_it_learns_what_the_whole_graph_teaches(digits, whole, values):
    sampled = epochs(parse(**values), digits)
    assert sampled[-1]["train/loss"] < 0.5 * sampled[0]["train/loss"]
    assert abs(sampled[-1]["test/acc"] - whole) < 0.08  # 200 training nodes: a seed moves it by 0.05


def test_a_seed_gives_the_same_batches(digits):
    setting = parse(precision="fp16", epochs=3, dropout=0.2)
    assert numbers(epochs(setting, digits, 3)) == numbers(epochs(setting, digits, 3))
    assert numbers(epochs(setting, digits, 3)) != numbers(epochs(setting, digits, 4))


def test_an_epoch_is_every_training_node_once_with_few_neighbours(digits, monkeypatch):
    from ampgnn.dgl import sampling

    setting, seen = parse(epochs=1, fanouts=[3, 2, 4]), []
    original = sampling.batches

    def watched(*args):
        for inputs, outputs, blocks in original(*args):
            seen.append(outputs)
            assert [int(b.in_degrees().max()) <= f for b, f in zip(blocks, (3, 2, 4), strict=True)] == [True] * 3
            yield inputs, outputs, blocks

    monkeypatch.setattr(sampling, "batches", watched)
    epochs(setting, digits)
    assert [len(s) for s in seen] == [64, 64, 64, 8]
    assert torch.equal(torch.cat(seen).sort().values.long(), digits.train_mask.nonzero().flatten())


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def launch(folder, record, setting, store, start, **kwargs):
    (folder / "c.yaml").write_text(config.dump(setting))
    command = [
        *start,
        "-m",
        "ampgnn",
        "train",
        "--config",
        folder / "c.yaml",
        "--data",
        record,
        "--out",
        folder / "out",
    ]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": store, "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment, **kwargs)


@pytest.mark.parametrize("precision, mode", [("fp32", None), ("fp16", "amp"), ("bf16", "pure")])
def test_two_processes_reach_what_one_does(tmp_path, store, digits, digits_record, precision, mode):
    setting = parse(precision=precision, mode=mode, checkpoint_epochs=5)
    done = launch(tmp_path, digits_record, setting, store, TORCHRUN)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    (run,) = result["runs"]
    alone = epochs(setting, digits)[-1]
    assert result["processes"] == 2 and run["status"] == "finished" and run["final"]["epochs"] == 12
    assert abs(run["final"]["test/acc"] - alone["test/acc"]) < 0.06
    assert abs(run["final"]["train/loss"] - alone["train/loss"]) < 0.15


def test_full_graph_training_refuses_several_processes(tmp_path, store, digits_record):
    done = launch(tmp_path, digits_record, parse(batch_size=None), store, TORCHRUN)
    assert done.returncode != 0 and "several processes share mini-batches: give batch_size" in done.stderr


def test_configurations():
    assert parse().fanouts == (10, 10, 10) and parse().id == "gat-h1.1.1-fp32-native-cpu-b64"
    with pytest.raises(UserError, match="fanouts: gat has 3 layers, got 2 fanouts"):
        parse(fanouts=[1, 2])
    with pytest.raises(UserError, match="fanouts: they are for mini-batches"):
        parse(batch_size=None, fanouts=[1, 2, 3])
    with pytest.raises(UserError, match="cannot be planned"):
        plan(parse(), Shape(10, 20, 3, 2, 5))
    assert (processes.rank(), processes.size(), processes.told(3)) == (0, 1, 3)
