"""Citation networks in the Planetoid split (Yang et al., 2016)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from . import pickles
from .base import DatasetError, NodeDataset, Provenance, masks
from .catalogue import CATALOGUE
from .download import fetch_any

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
VALIDATION = 500  # nodes after those for training


def load(name: str, cache: Path) -> NodeDataset:
    """The citation network "cora", "citeseer" or "pubmed".

    Features are normalised to a row sum of 1. Nodes missing from the test index (15 in Citeseer) have no edge, no
    features and no label; they belong to no split.
    """
    entry = CATALOGUE[name]
    files, digests = {}, {}
    for part in PARTS:
        path = entry.file.format(part=part)
        file = Path(path).name
        urls = [url.format(file=file) for url in entry.urls]
        files[part], digests[file] = fetch_any(path, urls, cache, entry.sha256.get(file))
    note = f"{name.capitalize()} citation network, Planetoid split, features normalised by row"
    return entry.check(parse(name, files, entry.provenance(note, digests)))


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
    train, val = torch.arange(len(y)), torch.arange(len(y), len(y) + VALIDATION)
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
