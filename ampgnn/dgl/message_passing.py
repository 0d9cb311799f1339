"""DGL's message-passing functions, on the kernels: the same arguments and results, right in every precision."""

from __future__ import annotations

import ampgnn_kernels as kernels
import torch
from ampgnn_kernels import Compressed, Graph
from dgl.base import ALL, DGLError, is_all
from torch import Tensor

from ampgnn.nn.common import autocast

from .convert import index_to_graph

_OPS = {"copy_lhs": "copy_u", "copy_rhs": "copy_e"}


def _cast(*tensors: Tensor | None) -> list[Tensor | None]:
    return [t if t is None else autocast(t) for t in tensors]


def gspmm(g, op, reduce_op, lhs_data, rhs_data):
    """``dgl.ops.gspmm``; a graph with several edge types gives a tuple of results, one a node type."""
    op = _OPS.get(op, op)
    if g._graph.number_of_etypes() > 1:
        return _gspmm_types(g, op, reduce_op, lhs_data, rhs_data)
    lhs_data, rhs_data = _cast(lhs_data, rhs_data)
    return kernels.spmm(index_to_graph(g._graph), lhs_data, rhs_data, op=op, reduce=reduce_op)


def _gspmm_types(g, op, reduce_op, lhs_data, rhs_data):
    if reduce_op == "mean":
        raise DGLError("reducer mean is not defined across edge types: use multi_update_all")
    index = g._graph
    found: list[list[tuple[Tensor, Graph]]] = [[] for _ in range(index.number_of_ntypes())]
    for etype in range(index.number_of_etypes()):
        source, destination = index.metagraph.find_edge(etype)
        lhs = None if lhs_data is None or op == "copy_e" else lhs_data[source]
        rhs = None if rhs_data is None or op == "copy_u" else rhs_data[etype]
        if (lhs is None and op != "copy_e") or (rhs is None and op != "copy_u"):
            continue
        view = index_to_graph(index, etype)
        found[destination].append((kernels.spmm(view, *_cast(lhs, rhs), op=op, reduce=reduce_op), view))
    return tuple(_across_types(results, reduce_op) for results in found)


def _across_types(results: list[tuple[Tensor, Graph]], reduce_op: str) -> Tensor | None:
    """One result of those of several edge types into one node type; a type without an edge into a node is left out."""
    if not results:
        return None
    if reduce_op == "sum":
        return sum((out for out, _ in results[1:]), results[0][0])
    empty = float("-inf") if reduce_op == "max" else float("inf")
    without = [(view.in_degrees() == 0).reshape(-1, *[1] * (out.dim() - 1)) for out, view in results]
    stacked = torch.stack([out.masked_fill(none, empty) for (out, _), none in zip(results, without, strict=True)])
    best = stacked.amax(0) if reduce_op == "max" else stacked.amin(0)
    return best.masked_fill(torch.stack(without).all(0), 0)


def gsddmm(g, op, lhs_data, rhs_data, lhs_target="u", rhs_target="v"):
    """``dgl.ops.gsddmm``; a graph with several edge types gives a tuple of results, one an edge type."""
    index = g._graph
    if index.number_of_etypes() == 1:
        lhs_data, rhs_data = _cast(lhs_data, rhs_data)
        return kernels.sddmm(index_to_graph(index), op, lhs_data, rhs_data, lhs_target, rhs_target)
    results = []
    for etype in range(index.number_of_etypes()):
        source, destination = index.metagraph.find_edge(etype)
        at = {"u": source, "v": destination, "e": etype}
        lhs = None if op == "copy_rhs" else lhs_data[at[lhs_target]]
        rhs = None if op == "copy_lhs" else rhs_data[at[rhs_target]]
        missing = (lhs is None and op != "copy_rhs") or (rhs is None and op != "copy_lhs")
        view = index_to_graph(index, etype)
        results.append(None if missing else kernels.sddmm(view, op, *_cast(lhs, rhs), lhs_target, rhs_target))
    return tuple(results)


def edge_softmax(gidx, logits, eids=ALL, norm_by="dst"):
    """DGL's inner ``edge_softmax`` on a graph index; with ``eids`` over those edges alone."""
    if not is_all(eids):
        gidx = gidx.edge_subgraph([eids], True).graph
    return kernels.edge_softmax(index_to_graph(gidx), autocast(logits), norm_by)


def edge_softmax_hetero(gidx, eids=ALL, norm_by="dst", *logits):
    """The same over the edges of all types together, which compete for a node."""
    side = 0 if norm_by == "src" else 1
    results: list[Tensor | None] = [None] * len(logits)
    groups: dict[int, list[int]] = {}
    for etype in range(gidx.number_of_etypes()):
        groups.setdefault(gidx.metagraph.find_edge(etype)[side], []).append(etype)
    for etypes in groups.values():
        etypes = [t for t in etypes if logits[t] is not None]
        if not etypes:
            continue
        views = [index_to_graph(gidx, t) for t in etypes]
        row = torch.cat([view.coo()[side] for view in views])
        nodes = (views[0].num_src, views[0].num_dst)[side]
        joined = Graph.from_coo(torch.zeros_like(row), row, 1, nodes)
        weights = kernels.edge_softmax(joined, autocast(torch.cat([logits[t] for t in etypes])))
        for etype, part in zip(etypes, weights.split([view.num_edges for view in views]), strict=True):
            results[etype] = part
    return tuple(results)


def segment_reduce(seglen, value, reducer="sum"):
    """``dgl.segment_reduce``."""
    if reducer not in ("sum", "mean", "max", "min"):
        raise DGLError(f"reducer {reducer} not recognized.")
    indptr = torch.cat([seglen.new_zeros(1), seglen]).cumsum(0).to(seglen.dtype)
    view = Graph(1, len(seglen), csc=Compressed(indptr, torch.zeros(len(value), dtype=indptr.dtype), None))
    return kernels.spmm(view, None, autocast(value), op="copy_e", reduce=reducer)
