"""Real files, a real HTTP server with good and bad answers, and the stand-in's shape."""

import functools
import gzip
import json
import pickle
import shutil
import threading
import zipfile
from collections import Counter, defaultdict
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from ampgnn import datasets
from ampgnn.datasets import DatasetError, DatasetUnavailable, pickles, planetoid, reddit, standin
from ampgnn.datasets.catalogue import CATALOGUE, markdown


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; `fault` spoils the files whose name ends in .x."""

    fault = None
    requests: ClassVar[Counter] = Counter()

    def do_GET(self):
        self.requests[Path(self.path).name] += 1
        if not self.path.endswith(".x") or self.fault is None:
            return super().do_GET()
        body = Path(self.translate_path(self.path)).read_bytes()
        if self.fault == "error":
            return self.send_error(500)
        body = body[: len(body) // 2] if self.fault == "short" else b"\0" + body[1:]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(mirror, monkeypatch):
    handler = functools.partial(Handler, directory=str(mirror))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        monkeypatch.setenv("AMPGNN_DATA_MIRROR", f"http://127.0.0.1:{httpd.server_port}")
        monkeypatch.setitem(CATALOGUE, "citeseer", replace(CATALOGUE["citeseer"], urls=()))
        Handler.fault, Handler.requests = None, Counter()
        yield httpd
        httpd.shutdown()


def left_over(folder: Path) -> list[str]:
    return [f.name for f in folder.rglob("*") if f.is_file() and f.name != "lock"]


def test_citeseer_is_the_planetoid_split(citeseer):
    assert citeseer.num_nodes == 3327 and citeseer.features.shape == (3327, 3703) and citeseer.num_classes == 6
    assert [int(m.sum()) for m in (citeseer.train_mask, citeseer.val_mask, citeseer.test_mask)] == [120, 500, 1000]
    assert len(citeseer.src) == 9228
    sums = citeseer.features.sum(1)
    missing = sums == 0
    assert int(missing.sum()) == 15 and torch.allclose(sums[~missing], torch.ones(()))
    assert not (missing & (citeseer.train_mask | citeseer.val_mask | citeseer.test_mask)).any()


def test_citeseer_is_dgls(citeseer, mirror, tmp_path, monkeypatch):
    from dgl.data import CiteseerGraphDataset

    monkeypatch.setattr(CiteseerGraphDataset, "download", lambda self: None)
    monkeypatch.setattr(CiteseerGraphDataset, "raw_path", str(mirror / "planetoid"))
    g = CiteseerGraphDataset(raw_dir=str(tmp_path), force_reload=True, verbose=False)[0]
    ours, theirs = (set(zip(s.tolist(), d.tolist(), strict=True)) for s, d in ((citeseer.src, citeseer.dst), g.edges()))
    assert ours == theirs
    assert torch.allclose(citeseer.features, g.ndata["feat"], atol=1e-6)
    used = citeseer.train_mask | citeseer.val_mask | citeseer.test_mask
    assert torch.equal(citeseer.labels[used], g.ndata["label"][used])
    for split in ("train", "val", "test"):
        assert torch.equal(getattr(citeseer, f"{split}_mask"), g.ndata[f"{split}_mask"].bool())


def test_download_over_http(server, tmp_path):
    assert len(datasets.load("citeseer", tmp_path).src) == 9228
    asked = sum(Handler.requests.values())
    datasets.load("citeseer", tmp_path)
    assert sum(Handler.requests.values()) == asked  # the second time from the cache


@pytest.mark.parametrize(
    "fault, words",
    [("short", "truncated|IncompleteRead|connection"), ("flip", "another SHA-256"), ("error", "HTTP status 500")],
)
def test_bad_downloads_are_refused_and_retried(server, tmp_path, monkeypatch, fault, words):
    monkeypatch.setattr("time.sleep", lambda s: None)
    Handler.fault = fault
    with pytest.raises(DatasetUnavailable, match=words) as error:
        datasets.load("citeseer", tmp_path)
    assert "\n" not in str(error.value) and Handler.requests["ind.citeseer.x"] == 3
    assert left_over(tmp_path) == []
    record = datasets.prepare("citeseer", tmp_path / "record.json", cache=tmp_path)
    assert record["status"] == "unavailable" and "ind.citeseer.x" in record["reason"]
    with pytest.raises(DatasetUnavailable):
        datasets.open_record(tmp_path / "record.json")
    with pytest.raises(DatasetUnavailable):
        datasets.prepare("citeseer", tmp_path / "none.json", cache=tmp_path, on_unavailable="fail")
    assert not (tmp_path / "none.json").exists()


def test_a_corrupted_mirror_is_named(mirror, tmp_path, monkeypatch):
    copy = tmp_path / "mirror" / "planetoid"
    shutil.copytree(mirror / "planetoid", copy)
    copy.chmod(0o755)
    file = copy / "ind.citeseer.x"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1])
    monkeypatch.setenv("AMPGNN_DATA_MIRROR", str(copy.parent))
    with pytest.raises(DatasetError, match=r"ind\.citeseer\.x is corrupted"):
        datasets.load("citeseer", tmp_path / "cache")


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize(
    "value, words",
    [(Evil(), "print, which is not allowed"), (Path("x"), "pathlib"), (np.random.PCG64(), "numpy.random")],
)
def test_pickles_that_name_anything_else_are_refused(tmp_path, capsys, value, words):
    file = tmp_path / "ind.citeseer.x"
    file.write_bytes(pickle.dumps(value))
    with pytest.raises(DatasetError, match=f"ind.citeseer.x is refused: .*{words}") as error:
        pickles.load(file)
    assert "\n" not in str(error.value) and capsys.readouterr().out == ""


def test_a_pickle_cut_short_is_refused(mirror, tmp_path):
    file = tmp_path / "ind.citeseer.y"
    file.write_bytes((mirror / "planetoid" / "ind.citeseer.y").read_bytes()[:-40])
    with pytest.raises(DatasetError, match=r"ind\.citeseer\.y is refused"):
        pickles.load(file)


def test_digits(cache):
    data = datasets.load("digits", cache)
    assert data.num_nodes == 1797 and data.features.shape == (1797, 64) and data.num_classes == 10
    assert data.features.min() == 0 and data.features.max() == 1
    assert all(int((data.labels[data.train_mask] == c).sum()) == 20 for c in range(10))
    assert not (data.train_mask & data.val_mask).any() and (data.train_mask | data.val_mask | data.test_mask).all()
    pairs = set(zip(data.src.tolist(), data.dst.tolist(), strict=True))
    assert len(pairs) == len(data.src) and all((v, u) in pairs and u != v for u, v in pairs)


@pytest.fixture(scope="module")
def small():
    return standin.reddit("reddit", 0.01)


def test_the_stand_in_has_reddits_shape(small):
    assert small.num_nodes == round(standin.NODES * 0.01) and small.features.shape[1] == 602 and small.num_classes == 41
    mean = len(small.src) / small.num_nodes
    assert abs(mean / (standin.FULLEST * small.num_nodes / 41) - 1) < 0.01
    assert f"the mean degree is {mean:.0f}, not 492" in small.provenance.note
    share = [int(m.sum()) / small.num_nodes for m in (small.train_mask, small.val_mask, small.test_mask)]
    assert np.allclose(share, np.array(standin.SPLIT) / standin.NODES, atol=1e-3)
    degree = torch.bincount(small.src.long(), minlength=small.num_nodes)
    assert degree.max() > 4 * mean and degree.min() < 0.8 * mean
    keys = small.src.long() * small.num_nodes + small.dst.long()
    back = small.dst.long() * small.num_nodes + small.src.long()
    assert (small.src != small.dst).all() and len(keys.unique()) == len(keys)
    assert torch.equal(keys.sort().values, back.sort().values)
    same = (small.labels[small.src.long()] == small.labels[small.dst.long()]).double().mean()
    assert 0.4 < same < 0.8
    assert "synthetic stand-in" in small.provenance.note and small.provenance.origin == "synthetic stand-in"


def test_the_stand_in_is_the_same_on_any_machine(small):
    import hashlib

    digest = hashlib.sha256()
    for t in (small.src, small.dst, small.features, small.labels, small.train_mask):
        digest.update(t.numpy().tobytes())
    assert digest.hexdigest()[:16] == "c15a32a19690cae2"


def test_prepared_files_are_checked_and_made_anew(cache, tmp_path):
    record = tmp_path / "sub" / "reddit.json"
    datasets.prepare("reddit", record, scale=0.001, cache=tmp_path)
    first = datasets.open_record(record)
    file = next(tmp_path.rglob("data.safetensors"))
    spoiled = bytearray(file.read_bytes())
    spoiled[-1] ^= 1
    file.write_bytes(spoiled)
    with pytest.raises(DatasetError, match="was changed since it was prepared"):
        datasets.open_record(record)
    again = datasets.load("reddit", tmp_path, 0.001)
    assert torch.equal(first.features, again.features) and torch.equal(first.src, datasets.open_record(record).src)


def test_the_real_reddits_archive_is_read(tmp_path, monkeypatch):
    folder = tmp_path / "reddit"
    folder.mkdir()
    kinds = np.array([1, 1, 2, 3])
    np.savez(folder / "reddit_data.npz", feature=np.ones((4, 5)), label=np.array([0, 1, 2, 1]), node_types=kinds)
    np.savez(folder / "reddit_graph.npz", row=np.array([0, 1]), col=np.array([1, 0]), data=np.ones(2))
    with zipfile.ZipFile(folder / "reddit.zip", "w") as archive:
        for name in ("reddit_data.npz", "reddit_graph.npz"):
            archive.write(folder / name, name)
    monkeypatch.setenv("AMPGNN_DATA_MIRROR", str(tmp_path))
    sizes = {"nodes": 4, "features": 5, "classes": 3, "split": (2, 1, 1)}
    monkeypatch.setitem(CATALOGUE, "reddit", replace(CATALOGUE["reddit"], **sizes))
    data = datasets.load("reddit", tmp_path / "cache")
    assert data.provenance.origin == "download" and data.num_classes == 3
    assert data.test_mask.tolist() == [False, False, False, True]
    (folder / "reddit.zip").write_bytes(b"no archive")
    with pytest.raises(DatasetError, match=r"reddit\.zip is damaged"):
        reddit.parse("reddit", folder / "reddit.zip", data.provenance)


def write_planetoid(folder, name):
    """Eight nodes in three classes; node 6 is missing from the test index, as in Citeseer."""
    one_hot = np.eye(3, dtype=np.int64)
    allx, tx = (
        sp.csr_matrix(np.arange(1, 21, dtype=np.float32).reshape(5, 4)),
        sp.csr_matrix(np.ones((2, 4), np.float32)),
    )
    parts = {
        "x": allx[:3],
        "y": one_hot[[0, 1, 2]],
        "allx": allx,
        "ally": one_hot[[0, 1, 2, 0, 1]],
        "tx": tx,
        "ty": one_hot[[2, 1]],
        "graph": defaultdict(list, {0: [1, 1], 1: [0, 7], 5: [2], 7: [1], 2: [5]}),
    }
    folder.mkdir()
    for part, value in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, protocol=4))
    (folder / f"ind.{name}.test.index").write_text("7\n5\n")


@pytest.mark.parametrize("name", ["cora", "pubmed"])
def test_planetoids_without_a_published_digest_are_checked_by_shape(tmp_path, monkeypatch, name):
    write_planetoid(tmp_path / "planetoid", name)
    monkeypatch.setenv("AMPGNN_DATA_MIRROR", str(tmp_path))
    monkeypatch.setattr(planetoid, "VALIDATION", 2)
    with pytest.raises(DatasetError, match=rf"{name}: nodes must be {CATALOGUE[name].nodes}, got 8"):
        datasets.load(name, tmp_path / "first")
    sizes = {"nodes": 8, "features": 4, "classes": 3, "split": (3, 2, 2)}
    monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], **sizes))
    data = datasets.load(name, tmp_path / "cache")
    pairs = set(zip(data.src.tolist(), data.dst.tolist(), strict=True))
    assert pairs == {(0, 1), (1, 0), (1, 7), (7, 1), (2, 5), (5, 2)} and len(data.src) == 6
    assert data.test_mask.nonzero().flatten().tolist() == [5, 7] and data.labels[[7, 5]].tolist() == [2, 1]
    assert torch.allclose(data.features.sum(1), torch.tensor([1.0] * 6 + [0, 1]))
    assert set(data.provenance.sha256) == {f"ind.{name}.{part}" for part in planetoid.PARTS}
    assert all(len(digest) == 64 for digest in data.provenance.sha256.values())


def write_ogb(file, folder, kind):
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in {
            "raw/edge.csv.gz": "0,1\n1,2\n2,1\n3,3\n",
            "raw/node-feat.csv.gz": "0.5,1\n-1,2\n0,0\n1e-3,4\n",
            "raw/node-label.csv.gz": "1\n0\n2\n1\n",
            f"split/{kind}/train.csv.gz": "0\n2\n",
            f"split/{kind}/valid.csv.gz": "3\n",
            f"split/{kind}/test.csv.gz": "1\n",
        }.items():
            archive.writestr(f"{folder}/{path}", gzip.compress(text.encode()))


@pytest.mark.parametrize("name, kind", [("ogbn-arxiv", "time"), ("ogbn-products", "sales_ranking")])
def test_archives_of_the_open_graph_benchmark_are_read(tmp_path, monkeypatch, name, kind):
    file = tmp_path / CATALOGUE[name].file
    file.parent.mkdir()
    write_ogb(file, name.removeprefix("ogbn-"), kind)
    monkeypatch.setenv("AMPGNN_DATA_MIRROR", str(tmp_path))
    with pytest.raises(DatasetError, match=f"{name}: nodes must be {CATALOGUE[name].nodes}, got 4"):
        datasets.load(name, tmp_path / "first")
    sizes = {"nodes": 4, "features": 2, "classes": 3, "split": (2, 1, 1)}
    monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], **sizes))
    data = datasets.load(name, tmp_path / "cache")
    assert list(zip(data.src.tolist(), data.dst.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2), (2, 1), (3, 3)]
    assert data.features.dtype == torch.float32 and data.features[3, 0] == np.float32(1e-3)
    assert data.labels.tolist() == [1, 0, 2, 1] and data.train_mask.tolist() == [True, False, True, False]
    assert data.provenance.license == CATALOGUE[name].license and len(data.provenance.sha256[file.name]) == 64
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(DatasetError, match="is damaged"):
        datasets.load(name, tmp_path / "third")


def test_the_table_of_datasets_is_the_catalogues():
    assert markdown() in (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    assert set(CATALOGUE) | {"digits"} == set(datasets.REGISTRY)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ("karate",),
            "unknown dataset 'karate', allowed are citeseer, cora, digits, ogbn-arxiv, ogbn-products, pubmed, reddit",
        ),
        (("digits", None, 0.5), "scale is for the dataset reddit alone"),
        (("reddit", None, 1.5), "scale must be above 0 and at most 1, got 1.5"),
    ],
)
def test_bad_requests(arguments, words, tmp_path):
    name, _, scale = (*arguments, None, None)[:3]
    with pytest.raises(DatasetError, match=words):
        datasets.load(name, tmp_path, scale)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"features": torch.ones(3, 4)}, r"features must have 1797 rows, got shape \(3, 4\)"),
        (
            {"src": torch.full((24678,), 1797, dtype=torch.int32)},
            "src has ids from 1797 to 1797, allowed are 0 to 1796",
        ),
        ({"train_mask": torch.ones(3, dtype=torch.bool)}, "train_mask must be 1797 booleans"),
        ({"labels": torch.full((1797,), 10)}, "labels run from 10 to 10, allowed are 0 to 9"),
    ],
)
def test_parts_that_do_not_fit_are_named(cache, change, words):
    data = datasets.load("digits", cache)
    with pytest.raises(DatasetError, match=words):
        datasets.NodeDataset(**{**vars(data), **change}).validate()


def test_records(digits_record, tmp_path):
    record = json.loads(digits_record.read_text())
    assert record["status"] == "ready" and record["split"] == [200, 500, 1097] and record["origin"] == "embedded"
    assert datasets.open_record(digits_record).graph().num_edges == record["edges"] + 1797
    with pytest.raises(DatasetError, match="is not a dataset record"):
        datasets.open_record(tmp_path / "none.json")
