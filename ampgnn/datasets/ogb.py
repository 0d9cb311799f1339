"""Datasets of the Open Graph Benchmark (Hu et al., 2020), read from its archives without its package."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from .base import DatasetError, NodeDataset, Provenance, masks
from .catalogue import CATALOGUE
from .download import fetch_any

SPLITS = ("train", "valid", "test")


def load(name: str, cache: Path) -> NodeDataset:
    """ "ogbn-arxiv" or "ogbn-products"."""
    entry = CATALOGUE[name]
    archive, digest = fetch_any(entry.file, list(entry.urls), cache)
    return entry.check(parse(name, archive, entry.provenance(entry.title, {archive.name: digest})))


def parse(name: str, archive: Path, provenance: Provenance) -> NodeDataset:
    """The dataset in an archive with ``*/raw/edge.csv.gz`` and so on; each edge is taken in both directions, once.

    Raises:
        DatasetError: the archive is damaged or lacks a part.
    """
    try:
        with zipfile.ZipFile(archive) as files:
            table = {entry.partition("/")[2]: entry for entry in files.namelist()}

            def read(path: str, dtype) -> np.ndarray:
                with files.open(table[path]) as file:
                    return pd.read_csv(file, header=None, dtype=dtype, compression="gzip").to_numpy(copy=True)

            edges, features = read("raw/edge.csv.gz", np.int64), read("raw/node-feat.csv.gz", np.float32)
            labels = read("raw/node-label.csv.gz", np.float64)[:, 0]
            kind = next(path.split("/")[1] for path in table if path.startswith("split/") and path.endswith(".csv.gz"))
            split = [torch.from_numpy(read(f"split/{kind}/{part}.csv.gz", np.int64)[:, 0]) for part in SPLITS]
    except (OSError, KeyError, StopIteration, ValueError, zipfile.BadZipFile) as error:
        raise DatasetError(
            f"{archive.name} is damaged: {' '.join(str(error).split()) or type(error).__name__}"
        ) from None
    labels = torch.from_numpy(np.nan_to_num(labels, nan=-1).astype(np.int64))
    src, dst = both_directions(edges, len(labels))
    train_mask, val_mask, test_mask = masks(len(labels), *split)
    return NodeDataset(
        name=name,
        src=src,
        dst=dst,
        features=torch.from_numpy(features),
        labels=labels,
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=test_mask,
        num_classes=int(labels.max()) + 1,
        provenance=provenance,
    )


def both_directions(edges: np.ndarray, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Both directions of (E, 2) edges, each once, ordered by source."""
    keys = np.concatenate([edges[:, 0] * nodes + edges[:, 1], edges[:, 1] * nodes + edges[:, 0]])
    keys.sort()  # numpy's unique takes twenty times as long
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys
    return torch.from_numpy((keys // nodes).astype(np.int32)), torch.from_numpy((keys % nodes).astype(np.int32))
