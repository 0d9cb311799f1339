"""The loop and the stage on real data: precision against float32, determinism, what did not run, what failed."""

import json
import statistics

import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import load_file

from ampgnn import config, precision
from ampgnn.training import loop, run_config
from ampgnn.training.optimizer import Optimizer

SEEDS = range(5)


def parse(dataset="digits", model="gcn", **values):
    return config.parse({"dataset": dataset, "model": model, "precision": "fp32", **values})


def last_epoch(setting, data, seed):
    for metrics in loop.train(setting, data, loop.start(setting, data, seed)):
        pass
    return metrics


@pytest.fixture(scope="module")
def results(citeseer):
    """{(precision, mode): the last epoch's metrics of each seed}, GCN of the user guide on Citeseer."""
    found = {}
    for kind, mode in (("fp32", None), ("fp16", "amp"), ("fp16", "pure"), ("bf16", "amp"), ("bf16", "pure")):
        setting = parse("citeseer", precision=kind, mode=mode)
        data = loop.prepare(setting, citeseer)
        found[kind, mode] = [last_epoch(setting, data, seed) for seed in SEEDS]
    return found


def mean(results, key):
    return statistics.mean(r[key] for r in results)


def test_gcn_reaches_the_known_accuracy_of_citeseer(results):
    assert 0.68 <= mean(results["fp32", None], "test/acc") <= 0.72


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.parametrize("mode", ["amp", "pure"])
def test_half_precision_ends_where_float32_does(results, kind, mode):
    ours, full = results[kind, mode], results["fp32", None]
    assert abs(mean(ours, "train/loss") / mean(full, "train/loss") - 1) <= 0.02
    assert abs(mean(ours, "test/acc") - mean(full, "test/acc")) <= 0.01
    assert all(r["skipped_steps"] == 0 or kind == "fp16" for r in ours)


@pytest.mark.parametrize("kind, mode", [("fp16", "amp"), ("bf16", "amp"), ("bf16", "pure")])
def test_gat_in_half_precision_ends_where_float32_does(citeseer, kind, mode):
    losses = {}
    for setting in (parse("citeseer", "gat", hidden=16, heads=[2, 2, 2], epochs=40, lr=5e-3),
                    parse("citeseer", "gat", hidden=16, heads=[2, 2, 2], epochs=40, lr=5e-3, precision=kind, mode=mode)):  # fmt: skip
        data = loop.prepare(setting, citeseer)
        losses[setting.precision] = [last_epoch(setting, data, seed) for seed in (0, 1)]
    assert abs(mean(losses[kind], "train/loss") / mean(losses["fp32"], "train/loss") - 1) <= 0.02
    assert abs(mean(losses[kind], "test/acc") - mean(losses["fp32"], "test/acc")) <= 0.015


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_both_backends_start_and_go_alike_in_float32(citeseer, model):
    ends = []
    for backend in ("native", "dgl"):
        setting = parse("citeseer", model, backend=backend, epochs=5, hidden=16)
        torch.manual_seed(0)
        first = loop.make_model(setting, 30, 4)
        ends.append((first.state_dict(), last_epoch(setting, loop.prepare(setting, citeseer), 0)["train/loss"]))
    (ours, loss), (theirs, their_loss) = ends
    assert list(ours) == list(theirs) and all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert loss == pytest.approx(their_loss, rel=1e-4)


@pytest.mark.parametrize("model", ["gcn", "gat"])
@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
def test_a_seed_gives_the_same_bits(cache, kind, model):
    from ampgnn import datasets

    setting = parse(model=model, precision=kind, hidden=16, epochs=4, dropout=0.3)
    data = loop.prepare(setting, datasets.load("digits", cache))

    def run(threads):
        torch.set_num_threads(threads)
        clean = ("epoch_seconds", "peak_rss_bytes")
        epochs = loop.train(setting, data, loop.start(setting, data, 3))
        return [{k: v for k, v in m.items() if k not in clean} for m in epochs]

    before = torch.get_num_threads()
    try:
        assert run(1) == run(1)
        assert run(2) == run(2)
    finally:
        torch.set_num_threads(before)


def test_skipped_steps_are_counted_and_masters_are_float32():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).half()
    optimizer = Optimizer(model, "fp16", "cpu", lr=1e-4, weight_decay=0.0)
    before = [p.clone() for p in model.parameters()]
    model.weight.register_hook(lambda g: g * float("inf"))
    optimizer.step(model(torch.ones(4, 3).half()).float().square().sum() / 64)  # scaled by 2^16 it fits into fp16
    assert optimizer.skipped_steps == 1 and optimizer.loss_scale == 2.0**15
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    model.weight._backward_hooks.clear()
    for _ in range(3):
        optimizer.step(model(torch.ones(4, 3).half()).float().square().sum() / 64)  # scaled by 2^16 it fits into fp16
    assert optimizer.skipped_steps == 1 and all(m.dtype == torch.float32 for m in optimizer.masters)
    moved = (optimizer.masters[0] - before[0].float()).abs()
    assert (moved > 0).all()  # by less than half precision could show in one step


def test_the_stage_writes_what_it_promises(tmp_path, store, digits_record):
    setting = parse(precision="fp16", epochs=3, seeds=[0, 1])
    result = run_config(setting, digits_record, tmp_path / "out", tracking_uri=store)
    assert result == json.loads((tmp_path / "out" / "result.json").read_text())
    assert config.load(tmp_path / "out" / "config.yaml") == setting
    assert [run["status"] for run in result["runs"]] == ["finished", "finished"]
    for seed, run in enumerate(result["runs"]):
        lines = (tmp_path / "out" / run["metrics"]).read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]
        weights = load_file(tmp_path / "out" / f"seed{seed}" / "model.safetensors")
        assert weights["layers.0.weight"].shape == (64, 16)
        final = run["final"]
        assert final["epoch_seconds"] > 0 and final["peak_rss_bytes"] > 2**26 and final["loss_scale"] >= 1
        stored = MlflowClient(tracking_uri=store).get_run(run["mlflow_run_id"])
        assert stored.data.metrics["final/train/loss"] == pytest.approx(final["train/loss"])
        assert "model.safetensors" in {
            f.path for f in MlflowClient(tracking_uri=store).list_artifacts(run["mlflow_run_id"])
        }
    assert "epoch 3/3 (100 %)" in (tmp_path / "out" / "train.log").read_text()


@pytest.mark.parametrize(
    "values, words",
    [
        ({"backend": "dgl", "precision": "fp16", "mode": "pure"}, "take no float16"),
        ({"backend": "dgl", "precision": "bf16"}, "ignores autocast on the CPU"),
        ({"device": "cuda"}, "no CUDA device"),
    ],
)
def test_what_cannot_run_is_recorded(tmp_path, store, digits_record, values, words):
    result = run_config(parse(epochs=2, **values), digits_record, tmp_path / "out", tracking_uri=store)
    run = result["runs"][0]
    assert run["status"] == "not_run" and words in run["reason"] and run["final"] == {}
    tags = MlflowClient(tracking_uri=store).get_run(run["mlflow_run_id"]).data.tags
    assert tags["ampgnn.status"] == "not_run" and words in tags["ampgnn.reason"]


def test_the_reasons_are_true_of_stock_dgl():
    """The combinations that are refused do fail, and the others do run."""
    import dgl
    from dgl.nn import GATConv

    g = dgl.add_self_loop(dgl.rand_graph(10, 30))
    layer = GATConv(4, 3, 1)
    for kind, mode in (("fp16", "pure"), ("fp16", "amp"), ("bf16", "amp"), ("bf16", "pure"), ("fp32", "amp")):
        dtype = precision.DTYPES[kind]
        model, x = (
            (layer.to(dtype), torch.ones(10, 4, dtype=dtype)) if mode == "pure" else (layer.float(), torch.ones(10, 4))
        )
        try:
            with precision.autocast("cpu", kind, mode):
                model(g, x)
            works = True
        except (dgl.DGLError, RuntimeError):
            works = False
        assert works == (precision.why_not("cpu", kind, "dgl", mode) is None), (kind, mode)
        assert precision.why_not("cpu", kind, "native", mode) is None


def test_a_loss_that_is_not_finite_fails_one_seed(tmp_path, store, digits_record, monkeypatch):
    original = loop._step

    def step(*args):
        loss = original(*args)
        return float("nan") if torch.initial_seed() == 1 else loss

    monkeypatch.setattr(loop, "_step", step)
    result = run_config(parse(epochs=2, seeds=[0, 1, 2]), digits_record, tmp_path / "out", tracking_uri=store)
    assert [r["status"] for r in result["runs"]] == ["finished", "failed", "finished"]
    assert result["runs"][1]["reason"] == "the loss is nan in epoch 0"
    assert MlflowClient(tracking_uri=store).get_run(result["runs"][1]["mlflow_run_id"]).info.status == "FAILED"


def test_a_stage_that_dies_leaves_no_result(tmp_path, store, digits_record, monkeypatch):
    out = tmp_path / "out"
    run_config(parse(epochs=1), digits_record, out, tracking_uri=store)
    monkeypatch.setattr(loop, "_step", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_config(parse(epochs=1), digits_record, out, tracking_uri=store)
    assert not (out / "result.json").exists()


def test_an_unavailable_dataset_is_not_run(tmp_path, store):
    record = tmp_path / "x.json"
    record.write_text(json.dumps({"key": "x", "name": "x", "status": "unavailable", "reason": "no network"}))
    result = run_config(parse("x", epochs=1), record, tmp_path / "out", tracking_uri=store)
    assert result["runs"][0]["reason"] == "dataset unavailable: no network"
