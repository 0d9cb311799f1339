"""Mini-batches by neighbour sampling, with DGL's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable

import dgl
from dgl.dataloading import DataLoader, NeighborSampler
from torch import Tensor

from ampgnn.graph import Graph


def as_dgl(graph):
    """A DGLGraph (itself) or a ``Graph`` as a DGLGraph that shares its arrays."""
    if not isinstance(graph, Graph):
        return graph
    indptr, indices, eids = graph.csc
    arrays = (indptr, indices, indices.new_empty(0) if eids is None else eids)
    return dgl.graph(("csc", arrays), num_nodes=graph.num_dst, idtype=graph.idtype)


def batches(graph, nodes: Tensor, batch_size: int, fanouts: tuple[int, ...], seed: int) -> Iterable[tuple]:
    """For each ``batch_size`` of the destination ``nodes``, in order: (input nodes, output nodes, a block a layer).

    Args:
        graph: a DGLGraph. fanouts: how many in-edges of a node each layer keeps at most, first layer first.
        seed: of DGL's random generators; it gives the same samples for the same number of threads.
    """
    dgl.seed(seed)
    sampler = NeighborSampler(list(fanouts), fused=False)  # the fused one of 1.1.3 spoils memory with 32-bit ids
    return DataLoader(graph, nodes.to(graph.idtype), sampler, batch_size=batch_size, shuffle=False)
