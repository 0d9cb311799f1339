"""Mini-batches by neighbour sampling, with DGL's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dgl
from dgl.dataloading import DataLoader, NeighborSampler
from dgl.utils import get_num_threads, set_num_threads
from torch import Tensor

from ampgnn.graph import Graph


def as_dgl(graph):
    """A DGLGraph (itself) or a ``Graph`` as a DGLGraph that shares its arrays."""
    if not isinstance(graph, Graph):
        return graph
    indptr, indices, eids = graph.csc
    arrays = (indptr, indices, indices.new_empty(0) if eids is None else eids)
    return dgl.graph(("csc", arrays), num_nodes=graph.num_dst, idtype=graph.idtype)


def batches(graph, nodes: Tensor, batch_size: int, fanouts: tuple[int, ...], seed: int) -> Iterator[tuple]:
    """For each ``batch_size`` of the destination ``nodes``, in order: (input nodes, output nodes, a block a layer).

    Args:
        graph: a DGLGraph. fanouts: how many in-edges of a node each layer keeps at most, first layer first.
        seed: of DGL's random generators; it gives the same samples, for which DGL samples on one thread: each of its
            threads draws from a generator of its own, for whatever part of the work it happens to get.
    """
    dgl.seed(seed)
    sampler = NeighborSampler(list(fanouts), fused=False)  # the fused one of 1.1.3 spoils memory with 32-bit ids
    loader = iter(DataLoader(graph, nodes.to(graph.idtype), sampler, batch_size=batch_size, shuffle=False))
    while True:
        with _one_thread():
            sample = next(loader, None)
        if sample is None:
            return
        yield sample


@contextmanager
def _one_thread():
    before = get_num_threads()
    set_num_threads(1)
    try:
        yield
    finally:
        set_num_threads(before)
