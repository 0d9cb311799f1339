"""A real dataset that needs no network: the handwritten digits bundled with scikit-learn, as a neighbour graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .base import NodeDataset, Provenance, masks

NEIGHBOURS = 10
PER_CLASS = {"train": 20, "val": 50}  # the rest is for testing


def load(name: str, cache: Path) -> NodeDataset:
    """1 797 images of 8 x 8 pixels in 10 classes; an edge joins each image to its 10 nearest, in both directions."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels, labels = (
        bunch.data.astype(np.int64),
        bunch.target.astype(np.int64),
    )  # pixels are integers, 0 to 16
    src, dst = _nearest(pixels)
    train, val, test = _split(labels)
    train_mask, val_mask, test_mask = masks(len(labels), train, val, test)
    return NodeDataset(
        name=name,
        src=src,
        dst=dst,
        features=torch.from_numpy(pixels.astype(np.float32) / 16),
        labels=torch.from_numpy(labels),
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=test_mask,
        num_classes=10,
        provenance=Provenance(
            origin="embedded",
            note=f"handwritten digits bundled with scikit-learn, joined to their {NEIGHBOURS} nearest neighbours",
            license="CC BY 4.0 (UCI Machine Learning Repository)",
        ),
    )


def _nearest(pixels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Neighbours by exact integer distance, ties to the smaller id: the same graph on any machine."""
    squares = (pixels**2).sum(1)
    distance = squares[:, None] + squares[None, :] - 2 * (pixels @ pixels.T)
    np.fill_diagonal(distance, np.iinfo(np.int64).max)
    near = np.argsort(distance, axis=1, kind="stable")[:, :NEIGHBOURS]
    nodes = len(pixels)
    src, dst = near.ravel(), np.repeat(np.arange(nodes), NEIGHBOURS)
    keys = np.unique(np.concatenate([src * nodes + dst, dst * nodes + src]))
    return tuple(torch.from_numpy(ids.astype(np.int32)) for ids in np.divmod(keys, nodes))


def _split(labels: np.ndarray) -> list[torch.Tensor]:
    """The first images of each class for training, the next for validation, the rest for testing."""
    train, val = PER_CLASS["train"], PER_CLASS["val"]
    by_class = [np.flatnonzero(labels == c) for c in range(10)]
    pieces = zip(*((ids[:train], ids[train : train + val], ids[train + val :]) for ids in by_class), strict=True)
    return [torch.from_numpy(np.sort(np.concatenate(piece))) for piece in pieces]
