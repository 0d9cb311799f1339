"""DGL's graphs as the kernels see them."""

from __future__ import annotations

from ampgnn_kernels import Compressed, Graph

_KEY = "ampgnn"


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
    views = index._cache.setdefault(_KEY, {})
    if etype not in views:
        rows, cols, *csc = index.adjacency_matrix_tensors(etype, True, "csr")
        views[etype] = _Lazy(index, etype, cols, rows, _compressed(*csc))
    return views[etype]


def _compressed(indptr, indices, eids) -> Compressed:
    return Compressed(indptr, indices, eids if eids.numel() else None)


class _Lazy(Graph):
    """Takes the edges grouped by source from DGL, which may have them already, when first asked for."""

    def __init__(self, index, etype: int, num_src: int, num_dst: int, csc: Compressed):
        super().__init__(num_src, num_dst, csc=csc)
        self._index, self._etype = index, etype

    @property
    def csr(self) -> Compressed:
        if self._csr is None:
            self._csr = _compressed(*self._index.adjacency_matrix_tensors(self._etype, False, "csr")[2:])
        return self._csr
