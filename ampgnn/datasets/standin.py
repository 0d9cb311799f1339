"""A synthetic stand-in for Reddit: a degree-corrected stochastic block model (Karrer and Newman, 2011).

Only integer draws, sums, products and square roots are used, so that a seed gives the same bits on any machine.
"""

from __future__ import annotations

import numpy as np
import torch
from rich.progress import Progress

from .base import NodeDataset, Provenance, masks

NODES, EDGES, FEATURES, CLASSES, MAX_DEGREE = 232_965, 114_615_892, 602, 41, 21_657
SPLIT = (153_431, 23_831, 55_703)
SEED = 41
WITHIN = 0.8  # share of edges whose ends are drawn from one class
RELABELLED = 0.1  # share of nodes whose label is drawn anew: no model can know those
SIGNAL = 0.5  # distance of a class's mean from 0, in standard deviations of a feature
FULLEST = (
    0.75  # largest mean degree as a share of a class's mean size: below scale 0.12 fewer edges than Reddit's share
)
DRAWN_TWICE = 1.45  # a hub's draws over its neighbours at full size: some are drawn again and count once
STUBS = 16  # resolution of a node's propensity


def reddit(name: str, scale: float) -> NodeDataset:
    """The stand-in with ``scale`` times Reddit's nodes and edges, 0 < scale <= 1; fewer edges where classes are small."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    nodes = max(round(NODES * scale), 4 * CLASSES)
    pairs = min(round(EDGES * scale / 2), int(nodes * FULLEST * nodes / CLASSES / 2))
    with Progress(transient=True) as progress:
        task = progress.add_task(f"stand-in, {nodes:,} nodes, {2 * pairs:,} edges", total=4)
        community = _communities(rng, nodes)
        progress.advance(task)
        u, v = _edges(rng, community, pairs)
        progress.advance(task)
        features = _features(rng, community)
        progress.advance(task)
        labels = np.where(rng.integers(0, 1000, nodes) < RELABELLED * 1000, rng.integers(0, CLASSES, nodes), community)
        order = torch.from_numpy(rng.permutation(nodes))
        progress.advance(task)
    train, val = round(nodes * SPLIT[0] / NODES), round(nodes * SPLIT[1] / NODES)
    train_mask, val_mask, test_mask = masks(nodes, order[:train], order[train : train + val], order[train + val :])
    return NodeDataset(
        name=name,
        src=torch.from_numpy(np.concatenate([u, v])),
        dst=torch.from_numpy(np.concatenate([v, u])),
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=test_mask,
        num_classes=CLASSES,
        provenance=Provenance(
            origin="synthetic stand-in",
            note=_note(scale, 2 * pairs / nodes),
            license="Apache-2.0",
            scale=scale,
        ),
    )


def _note(scale: float, degree: float) -> str:
    note = (
        f"synthetic stand-in for Reddit at scale {scale:g}: a stochastic block model with Reddit's shape, not its data"
    )
    full = EDGES / NODES
    if degree > 0.99 * full:
        return note
    return (
        f"{note}; classes this small cannot hold Reddit's degrees, so the mean degree is {degree:.0f}, not {full:.0f}"
    )


def _communities(rng: np.random.Generator, nodes: int) -> np.ndarray:
    """(nodes,) classes, the k-th largest in proportion to 1 / (k + 5), in random order."""
    share = np.cumsum(1 / (np.arange(CLASSES) + 6.0))
    community = np.searchsorted(share / share[-1], (np.arange(nodes) + 0.5) / nodes)
    return rng.permutation(community)


def _edges(rng: np.random.Generator, community: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """``pairs`` different pairs u < v. A node is drawn in proportion to its propensity, whose tail falls as 1 / x^2."""
    nodes = len(community)
    mean = 2 * pairs / nodes
    most = min(DRAWN_TWICE * MAX_DEGREE, nodes / 4) / mean
    propensity = 1 / np.sqrt(1 - rng.random(nodes))
    propensity = np.minimum(propensity, most * np.minimum(propensity, most * 2).mean())
    stubs = np.maximum((propensity * STUBS).astype(np.int64), 1)
    by_class = np.argsort(community, kind="stable")
    slots = np.repeat(by_class, stubs[by_class]).astype(np.int32)  # grouped by class
    ends = np.cumsum(np.bincount(community, stubs, CLASSES).astype(np.int64))
    starts, sizes = ends - np.diff(ends, prepend=0), np.diff(ends, prepend=0)
    found = np.empty(0, np.int64)
    while len(found) < pairs:
        count = min(int((pairs - len(found)) * 1.2) + 1000, 1 << 24)
        u = slots[rng.integers(0, len(slots), count)]
        c = community[u]
        draw = rng.integers(0, 1 << 62, count)
        within = rng.integers(0, 1000, count) < WITHIN * 1000
        v = slots[np.where(within, starts[c] + draw % sizes[c], draw % len(slots))]
        low, high = np.minimum(u, v).astype(np.int64), np.maximum(u, v).astype(np.int64)
        keys = (low * nodes + high)[low != high]
        found = np.unique(np.concatenate([found, keys]))
    surplus = len(found) - pairs
    if surplus:
        found = np.delete(found, np.arange(surplus) * len(found) // surplus)
    low, high = np.divmod(found, nodes)
    return low.astype(np.int32), high.astype(np.int32)


def _features(rng: np.random.Generator, community: np.ndarray) -> np.ndarray:
    """(nodes, FEATURES) float32: a class's mean, a vector of signs, plus noise, a sum of four uniform draws."""
    signs = rng.integers(0, 2, (CLASSES, FEATURES)).astype(np.float32) * 2 - 1
    out = np.empty((len(community), FEATURES), np.float32)
    unit = np.float32(np.sqrt(3.0) / 65536)  # the sum of four 16-bit draws has a variance of 65536^2 / 3
    for start in range(0, len(out), 8192):
        rows = community[start : start + 8192]
        draws = rng.integers(0, 1 << 64, (len(rows), FEATURES), dtype=np.uint64).view(np.uint16)
        noise = draws.reshape(len(rows), FEATURES, 4).sum(2, dtype=np.int32) - 131070
        out[start : start + 8192] = noise * unit + signs[rows] * np.float32(SIGNAL)
    return out
