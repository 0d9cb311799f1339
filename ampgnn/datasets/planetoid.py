"""Citation networks in the Planetoid split (Yang et al., 2016)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from . import pickles
from .base import DatasetError, NodeDataset, Provenance, masks
from .download import fetch

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
URLS = (
    "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data/{file}",
    "https://github.com/kimiyoung/planetoid/raw/master/data/{file}",
)
SHA256 = {
    "citeseer": {
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    }
}


def load(name: str, cache: Path) -> NodeDataset:
    """A citation network; ``name`` is a key of ``SHA256``.

    Features are normalised to a row sum of 1. Nodes missing from the test index (15 in Citeseer) have no edge, no
    features and no label; they belong to no split.
    """
    files = {}
    for part in PARTS:
        file = f"ind.{name}.{part}"
        urls = [url.format(file=file) for url in URLS]
        files[part] = fetch(f"planetoid/{file}", SHA256[name][part], urls, cache)
    provenance = Provenance(
        origin="download",
        note=f"{name.capitalize()} citation network, Planetoid split, features normalised by row",
        license="MIT (Planetoid, Zhilin Yang)",
        urls=[url.format(file=f"ind.{name}.*") for url in URLS[:1]],
        sha256={f"ind.{name}.{part}": SHA256[name][part] for part in PARTS},
    )
    return parse(name, files, provenance)


def parse(name: str, files: dict[str, Path], provenance: Provenance) -> NodeDataset:
    """The dataset in the eight files; keys as ``PARTS``."""
    x, tx, allx, y, ty, ally, graph = (pickles.load(files[part]) for part in PARTS[:-1])
    test = np.loadtxt(files["test.index"], dtype=np.int64)
    first, end = allx.shape[0], int(test.max()) + 1
    if test.min() != first or len(test) != tx.shape[0]:
        raise DatasetError(
            f"{name}: test.index must have {tx.shape[0]} ids from {first} on, got {len(test)} from {test.min()}"
        )
    features = sp.lil_matrix((end, x.shape[1]), dtype=np.float32)
    features[:first] = allx
    features[test] = tx
    labels = np.zeros((end, y.shape[1]), dtype=np.int64)
    labels[:first], labels[test] = ally, ty
    dense = features.toarray()
    dense /= np.maximum(dense.sum(1, keepdims=True), 1e-12)
    src, dst = _undirected(graph, end)
    train, val = torch.arange(len(y)), torch.arange(len(y), len(y) + 500)
    train_mask, val_mask, test_mask = masks(end, train, val, torch.from_numpy(test))
    return NodeDataset(
        name=name,
        src=src,
        dst=dst,
        features=torch.from_numpy(dense),
        labels=torch.from_numpy(labels.argmax(1)),
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=test_mask,
        num_classes=y.shape[1],
        provenance=provenance,
    )


def _undirected(neighbours: dict[int, list[int]], nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Both directions of every edge of an adjacency list, each once."""
    src = np.repeat(np.fromiter(neighbours, np.int64), [len(v) for v in neighbours.values()])
    dst = np.concatenate([np.asarray(v, np.int64) for v in neighbours.values()])
    keys = np.unique(np.concatenate([src * nodes + dst, dst * nodes + src]))
    return tuple(torch.from_numpy(ids.astype(np.int32)) for ids in np.divmod(keys, nodes))
