"""Reddit posts (Hamilton et al., 2017): by download, or a synthetic stand-in of its shape."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from . import standin
from .base import DatasetError, DatasetUnavailable, NodeDataset, Provenance

URL = "https://data.dgl.ai/dataset/reddit.zip"


def load(name: str, cache: Path, scale: float | None = None) -> NodeDataset:
    """The real dataset, or the stand-in where ``scale`` is given or the download is impossible."""
    if scale is not None:
        return standin.reddit(name, scale)
    try:
        return parse(name, _archive(cache))
    except DatasetUnavailable as reason:
        dataset = standin.reddit(name, 1.0)
        note = f"{dataset.provenance.note} ({reason})"
        return NodeDataset(**{**vars(dataset), "provenance": Provenance(**{**vars(dataset.provenance), "note": note})})


def _archive(cache: Path) -> Path:
    """DGL's archive. No digest of it is published: the parts are checked by their shapes."""
    import os

    import pooch

    mirror = os.environ.get("AMPGNN_DATA_MIRROR", "")
    local = Path(mirror) / "reddit" / "reddit.zip"
    if mirror and "://" not in mirror and local.exists():
        return local
    url = f"{mirror.rstrip('/')}/reddit/reddit.zip" if "://" in mirror else URL
    try:
        return Path(pooch.retrieve(url, None, fname="reddit.zip", path=cache / "reddit", progressbar=True))
    except Exception as error:
        raise DatasetUnavailable(f"{url} cannot be had: {type(error).__name__}") from None


def parse(name: str, archive: Path) -> NodeDataset:
    """The dataset in DGL's zip of ``reddit_data.npz`` and ``reddit_graph.npz``, read without unpickling anything.

    Raises:
        DatasetError: the archive is damaged or lacks a part.
    """
    try:
        with zipfile.ZipFile(archive) as files:
            with files.open("reddit_data.npz") as f, np.load(f, allow_pickle=False) as data:
                features, labels, kinds = data["feature"], data["label"], data["node_types"]
            with files.open("reddit_graph.npz") as f, np.load(f, allow_pickle=False) as graph:
                row, col = graph["row"].astype(np.int32), graph["col"].astype(np.int32)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{archive.name} is damaged: {' '.join(str(error).split())}") from None
    train, val, test = (torch.from_numpy(kinds == k) for k in (1, 2, 3))
    return NodeDataset(
        name=name,
        src=torch.from_numpy(row),
        dst=torch.from_numpy(col),
        features=torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=int(labels.max()) + 1,
        provenance=Provenance(
            origin="download",
            note="Reddit posts of September 2014",
            license="see DGL's dataset page",
            urls=[URL],
        ),
    )
