"""Configurations, the matrix and the pipeline's schema: what is filled in, and what is refused in which words."""

from pathlib import Path

import pytest
import yaml

from ampgnn import config, matrix
from ampgnn.config import ConfigError

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "workflow" / "schemas" / "config.schema.yaml"
GCN = {"dataset": "citeseer", "model": "gcn", "precision": "bf16"}


def quick() -> dict:
    return yaml.safe_load((ROOT / "workflow" / "config" / "quick.yaml").read_text())


def test_defaults_are_the_user_guides():
    gat = config.parse({"dataset": "reddit", "model": "gat", "precision": "fp16"})
    assert (gat.hidden, gat.heads, gat.lr, gat.weight_decay, gat.epochs) == (256, (1, 1, 1), 1e-3, 5e-4, 100)
    gcn = config.parse(GCN)
    assert (gcn.hidden, gcn.heads, gcn.lr, gcn.weight_decay, gcn.epochs, gcn.dropout) == (
        16,
        None,
        1e-2,
        5e-4,
        100,
        0.5,
    )
    assert gat.id == "gat-h1.1.1-fp16-amp-native-cpu" and gcn.id == "gcn-bf16-amp-native-cpu"
    assert config.parse({**GCN, "precision": "fp32"}).id == "gcn-fp32-native-cpu"


def test_a_configuration_survives_its_file(tmp_path):
    gat = config.parse({"dataset": "digits", "model": "gat", "precision": "fp16", "heads": [2, 2, 2], "seeds": [0, 5]})
    (tmp_path / "c.yaml").write_text(config.dump(gat))
    again = config.load(tmp_path / "c.yaml")
    assert again == gat and again.hash == gat.hash
    assert config.parse({**gat.model_dump(), "epochs": 3}).hash != gat.hash


@pytest.mark.parametrize(
    "change, words",
    [
        ({"epoch": 3}, "unknown key 'epoch', allowed are dataset, model"),
        ({"epochs": -1}, "epochs: Input should be greater than or equal to 1, got -1"),
        ({"precision": "fp8"}, "precision: Input should be 'fp32', 'fp16' or 'bf16', got 'fp8'"),
        ({"model": "gin"}, "unknown model 'gin', allowed are gat, gcn"),
        ({"heads": [1, 1]}, "the model gcn has none"),
        ({"model": "gat", "heads": [1, 1]}, "gat has 3 layers, got 2 numbers of heads"),
        ({"model": "gat", "heads": [1, 0, 1]}, r"heads\.1: Input should be greater than or equal to 1"),
        ({"dropout": 1.0}, "dropout: Input should be less than 1"),
        ({"seeds": []}, "seeds"),
        ({"dataset": None}, "dataset is missing"),
    ],
)
def test_bad_values_are_named_in_one_line(change, words):
    values = {k: v for k, v in {**GCN, **change}.items() if v is not None}
    with pytest.raises(ConfigError, match=words) as error:
        config.parse(values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["quick", "full", "tiny"])
def test_the_pipelines_files_are_valid(name):
    pipeline = yaml.safe_load((ROOT / "workflow" / "config" / f"{name}.yaml").read_text())
    matrix.validate(pipeline, SCHEMA)
    configs = matrix.expand(pipeline)
    assert len({f"{c.dataset}/{c.id}" for c in configs}) == len(configs)


def test_quick_covers_every_dimension():
    configs = matrix.expand(quick())
    for field, values in {
        "dataset": {"citeseer", "digits", "reddit-0.02"},
        "model": {"gat", "gcn"},
        "precision": {"fp32", "fp16", "bf16"},
        "mode": {None, "amp", "pure"},
        "backend": {"native", "dgl"},
        "device": {"cpu", "cuda"},
        "heads": {None, (1, 1, 1), (2, 2, 2)},
    }.items():
        assert {getattr(c, field) for c in configs} == values
    assert all(len(c.seeds) >= 3 for c in configs if c.dataset == "citeseer")


def test_the_matrix_expands_in_order_without_repeats():
    block = {"dataset": ["digits"], "model": ["gcn"], "precision": ["fp32", "bf16"], "mode": ["amp", "pure"]}
    ids = [c.id for c in matrix.expand({"datasets": {"digits": None}, "matrix": [block]})]
    assert ids == ["gcn-fp32-native-cpu", "gcn-bf16-amp-native-cpu", "gcn-bf16-pure-native-cpu"]
    with pytest.raises(ConfigError, match=r"matrix\[1\]: digits/gcn-fp32-native-cpu is defined twice"):
        matrix.expand({"datasets": {"digits": None}, "matrix": [block, {**block, "epochs": 3}]})
    with pytest.raises(ConfigError, match="dataset 'cora' is not under datasets, allowed are digits"):
        matrix.expand({"datasets": {"digits": None}, "matrix": [{**block, "dataset": ["cora"]}]})


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda c: c.update(thread=1), "config: unknown key 'thread', allowed are threads, cache"),
        (lambda c: c.update(threads=0), "config threads: 0 is less than the minimum of 1"),
        (lambda c: c.update(on_unavailable="skip"), "config on_unavailable: 'skip' is not one of"),
        (lambda c: c["matrix"][0].update(head=[1]), r"config matrix\[0\]: unknown key 'head', allowed are dataset"),
        (
            lambda c: c["matrix"][0].update(precision=["fp8"]),
            r"config matrix\[0\]\.precision\[0\]: 'fp8' is not one of",
        ),
        (lambda c: c["datasets"].update(x={"name": "karate"}), r"config datasets\.x\.name: 'karate' is not one of"),
        (lambda c: c.pop("datasets"), "'datasets' is a required property"),
    ],
)
def test_the_schema_names_the_key(change, words):
    pipeline = quick()
    change(pipeline)
    with pytest.raises(ConfigError, match=words):
        matrix.validate(pipeline, SCHEMA)
