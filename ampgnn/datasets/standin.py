"""A synthetic stand-in for Reddit: a degree-corrected stochastic block model (Karrer and Newman, 2011).

Only integer draws, exact sums, products and square roots are used, and what is long is drawn in blocks, each with a
counter-based stream of its own, so that a seed gives the same bits on any machine and for any number of threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

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
DRAWN_TWICE = 1.66  # a hub's draws over its neighbours at full size: some are drawn again and count once
STUBS = 16  # resolution of a node's propensity
BLOCK = 1 << 20  # draws of one stream
ROWS = 4096  # of features, drawn from one stream
PARTS = 64  # ranges of node ids whose edges are sorted apart
_EDGE_STREAM, _FEATURE_STREAM = 1 << 40, 2 << 40


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
    draw = _pair_drawer(community, _stubs(rng, nodes, 2 * pairs / nodes))
    bits = nodes.bit_length()
    bounds = (np.arange(1, PARTS) * nodes // PARTS) << bits
    found = [np.empty(0, np.int64)] * PARTS
    count = blocks = 0
    while count < pairs:
        left = int((pairs - count) * 1.1) + 1000
        sizes = [min(BLOCK, left - start) for start in range(0, left, BLOCK)]

        def drawn(number: int, size: int) -> list[np.ndarray]:
            u, v = draw(_words(_EDGE_STREAM + number, 2 * size))
            keys = (np.minimum(u, v).astype(np.int64) << bits) | np.maximum(u, v)
            keys = np.sort(keys[u != v])
            return np.split(keys, np.searchsorted(keys, bounds))

        pieces = _in_threads(drawn, range(blocks, blocks + len(sizes)), sizes)
        found = _in_threads(_distinct, ([old, *new] for old, *new in zip(found, *pieces, strict=True)))
        blocks, count = blocks + len(sizes), sum(map(len, found))
    keys = np.concatenate(found)
    surplus = count - pairs
    if surplus:
        keys = np.delete(keys, np.arange(surplus) * count // surplus)
    return (keys >> bits).astype(np.int32), (keys & ((1 << bits) - 1)).astype(np.int32)


def _stubs(rng: np.random.Generator, nodes: int, mean: float) -> np.ndarray:
    """(nodes,) how often each node is in the urn; ``mean``: of the degrees."""
    most = min(DRAWN_TWICE * MAX_DEGREE, nodes / 4) / mean
    propensity = 1 / np.sqrt(1 - rng.random(nodes))
    propensity = np.minimum(propensity, most * math.fsum(np.minimum(propensity, most * 2)) / nodes)
    return np.maximum((propensity * STUBS).astype(np.int64), 1)


def _pair_drawer(community: np.ndarray, stubs: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """A function from 2n random words to n pairs (u, v): u from the urn of all, v mostly from that of u's class."""
    by_class = np.argsort(community, kind="stable")
    urn = np.repeat(by_class, stubs[by_class]).astype(np.int32)  # grouped by class
    ends = np.cumsum(np.bincount(community, stubs, CLASSES).astype(np.int64)).astype(np.uint64)
    starts = np.concatenate([[np.uint64(0)], ends[:-1]])
    starts, sizes = (np.append(a, b) for a, b in ((starts, 0), (ends - starts, len(urn))))  # the last: the whole urn
    starts, sizes = starts.astype(np.uint64), sizes.astype(np.uint64)
    within = np.uint64(WITHIN * 1024)
    classes = community.astype(np.int8)

    def draw(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, second = np.split(words, 2)
        u = urn[_scaled(first, np.uint64(len(urn)))]
        c = np.where((second & np.uint64(1023)) < within, classes[u], np.int8(CLASSES))
        return u, urn[starts[c] + _scaled(second, sizes[c])]

    return draw


def _scaled(words: np.ndarray, limit) -> np.ndarray:
    """Numbers from 0 to ``limit`` - 1 < 2^32 out of the upper halves of random words."""
    return ((words >> np.uint64(32)) * limit) >> np.uint64(32)


def _words(stream: int, count: int) -> np.ndarray:
    return np.random.Philox(key=[SEED, stream]).random_raw(count)


def _distinct(arrays: list[np.ndarray]) -> np.ndarray:
    keys = np.concatenate(arrays)
    keys.sort()
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys


def _in_threads(function: Callable, *arguments: Iterable) -> list:
    """numpy lets go of the interpreter in long loops."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, *arguments))


def _features(rng: np.random.Generator, community: np.ndarray) -> np.ndarray:
    """(nodes, FEATURES) float32: a class's mean, a vector of signs, plus noise, a sum of four uniform draws."""
    means = (rng.integers(0, 2, (CLASSES, FEATURES)).astype(np.float32) * 2 - 1) * np.float32(SIGNAL)
    out = np.empty((len(community), FEATURES), np.float32)
    unit = np.float32(np.sqrt(3.0) / 65536)  # the sum of four 16-bit draws has a variance of 65536^2 / 3
    pairs, half = np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFFFFFF)

    def fill(start: int) -> None:
        rows = slice(start, min(start + ROWS, len(out)))
        words = _words(_FEATURE_STREAM + start, out[rows].size)
        sums = (words & pairs) + ((words >> np.uint64(16)) & pairs)
        sums = (sums & half) + (sums >> np.uint64(32))
        noise = sums.astype(np.float32).reshape(-1, FEATURES) - np.float32(131070)  # integers below 2^24: exact
        np.multiply(noise, unit, out=out[rows])
        out[rows] += means[community[rows]]

    _in_threads(fill, range(0, len(out), ROWS))
    return out
