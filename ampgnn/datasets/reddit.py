"""Reddit posts (Hamilton et al., 2017): by download, or a synthetic stand-in of its shape."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from . import standin
from .base import DatasetError, DatasetUnavailable, NodeDataset, Provenance
from .catalogue import CATALOGUE
from .download import fetch_any


def load(name: str, cache: Path, scale: float | None = None) -> NodeDataset:
    """The real dataset, or the stand-in where ``scale`` is given or the download is impossible."""
    if scale is not None:
        return standin.reddit(name, scale)
    entry = CATALOGUE["reddit"]
    try:
        archive, digest = fetch_any(entry.file, list(entry.urls), cache)
    except DatasetUnavailable as reason:
        dataset = standin.reddit(name, 1.0)
        note = f"{dataset.provenance.note} ({reason})"
        return replace(dataset, provenance=replace(dataset.provenance, note=note))
    return entry.check(parse(name, archive, entry.provenance(entry.title, {archive.name: digest})))


def parse(name: str, archive: Path, provenance: Provenance) -> NodeDataset:
    """The dataset in DGL's zip of ``reddit_data.npz`` and ``reddit_graph.npz``, read without unpickling anything.

    Raises:
        DatasetError: the archive is damaged or lacks a part.
    """
    try:
        with zipfile.ZipFile(archive) as files:
            with files.open("reddit_data.npz") as f, np.load(f, allow_pickle=False) as data:
                features = data["feature"].astype(np.float32, copy=False)
                labels, kinds = data["label"], data["node_types"]
            with files.open("reddit_graph.npz") as f, np.load(f, allow_pickle=False) as graph:
                row, col = graph["row"].astype(np.int32, copy=False), graph["col"].astype(np.int32, copy=False)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{archive.name} is damaged: {' '.join(str(error).split())}") from None
    train, val, test = (torch.from_numpy(kinds == k) for k in (1, 2, 3))
    return NodeDataset(
        name=name,
        src=torch.from_numpy(row),
        dst=torch.from_numpy(col),
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels.astype(np.int64)),
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=int(labels.max()) + 1,
        provenance=provenance,
    )
