"""DGL's graphs as the kernels see them."""

from __future__ import annotations

import torch
from dgl.heterograph_index import HeteroGraphIndex
from torch import Tensor

from ampgnn.graph import Compressed, Graph

_get_relation_graph = HeteroGraphIndex.get_relation_graph
_number_of_etypes = HeteroGraphIndex.number_of_etypes


def to_graph(graph, etype=None) -> Graph:
    """A DGLGraph (or block) as a ``Graph`` that shares its arrays; made once for a graph and kept with it.

    Args:
        etype: the edge type, where there are several.

    Raises:
        ValueError: several edge types and none named.
    """
    index = graph._graph
    if etype is None and index.number_of_etypes() != 1:
        raise ValueError(f"the graph has {index.number_of_etypes()} edge types: name one of {graph.canonical_etypes}")
    return index_to_graph(index, 0 if etype is None else graph.get_etype_id(etype))


def index_to_graph(index, etype: int = 0) -> Graph:
    """The same for DGL's inner graph index. DGL replaces the index when a graph is changed, so a view never ages."""
    key = ("ampgnn.graph", etype)
    view = index._cache.get(key)
    if view is None:
        unit = relation(index, etype)
        view = unit._cache.get(("ampgnn.graph", 0))  # made through a slice g[etype]
        if view is None:
            # The view keeps a wrapper of its own: one whose cache held the view would make a cycle.
            view = unit._cache["ampgnn.graph", 0] = _view(_get_relation_graph(index, etype))
        index._cache[key] = view
    return view


def relation(index, etype: int):
    """``get_relation_graph``, once an edge type: DGL's update_all asks at each call, and would get a new object."""
    key = ("ampgnn.relation", etype)
    unit = index._cache.get(key)
    if unit is None:
        unit = index._cache[key] = _get_relation_graph(index, etype)
    return unit


def number_of_etypes(index) -> int:
    """``number_of_etypes``, once an index: update_all asks five times, a fifth of what it costs on a small graph."""
    number = index._cache.get("ampgnn.etypes")
    if number is None:
        number = index._cache["ampgnn.etypes"] = _number_of_etypes(index)
    return number


def joined(index, etypes: tuple[int, ...], side: int) -> Graph:
    """The edges of several types that share their destination (side 1) or source (side 0) type, one type after
    another, all out of one node into those that they share."""
    key = ("ampgnn.joined", etypes, side)
    if key not in index._cache:
        views = [index_to_graph(index, t) for t in etypes]
        row = torch.cat([view.coo()[side] for view in views])
        nodes = (views[0].num_src, views[0].num_dst)[side]
        index._cache[key] = Graph.from_coo(torch.zeros_like(row), row, 1, nodes)
    return index._cache[key]


def _view(unit) -> Graph:
    """The one edge type of ``unit``, from whichever of DGL's formats the user allows."""
    formats = {name for names in unit.formats().values() for name in names}
    if "csc" in formats:
        rows, cols, *csc = unit.adjacency_matrix_tensors(0, True, "csr")
        return _Lazy(unit if "csr" in formats else None, cols, rows, _compressed(*csc))
    if "csr" in formats:
        rows, cols, *csr = unit.adjacency_matrix_tensors(0, False, "csr")
        return Graph(rows, cols, csr=_compressed(*csr))
    rows, cols, src, dst = unit.adjacency_matrix_tensors(0, False, "coo")
    return Graph.from_coo(src, dst, rows, cols)


def _compressed(indptr: Tensor, indices: Tensor, eids: Tensor) -> Compressed:
    return Compressed(indptr, indices, eids if eids.numel() else None)


class _Lazy(Graph):
    """Takes the edges grouped by source from DGL, which may have them already, when first asked for."""

    def __init__(self, unit, num_src: int, num_dst: int, csc: Compressed):
        super().__init__(num_src, num_dst, csc=csc)
        self._unit = unit

    def _grouped_by_source(self) -> Compressed:
        if self._unit is None or torch.compiler.is_compiling():
            return super()._grouped_by_source()
        return _compressed(*self._unit.adjacency_matrix_tensors(0, False, "csr")[2:]).tidy()
