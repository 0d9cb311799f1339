"""DGL's message-passing functions, on the kernels: the same arguments and results, right in every precision."""

from __future__ import annotations

import functools

import ampgnn_kernels as kernels
import torch
from dgl import core
from dgl.base import ALL, DGLError, is_all
from torch import Tensor

from ampgnn.graph import Compressed, Graph
from ampgnn.nn.common import autocast

from .convert import index_to_graph, joined

_OPS = {"copy_lhs": "copy_u", "copy_rhs": "copy_e"}


def _with_dgl_errors(function):
    """DGL's own kind of error for arguments that the kernels refuse."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (ValueError, TypeError) as error:
            raise DGLError(str(error)) from error

    return wrapped


class _Tie(torch.autograd.Function):
    """Its arguments as they are."""

    @staticmethod
    def forward(*tensors):
        return tensors

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):  # where there is none, torch has put zeros
        return grads


def _tied(*values: Tensor | None) -> list[Tensor | None]:
    """The operands of one function of several types: as with DGL, each has a gradient as soon as one of them has."""
    learned = [i for i, value in enumerate(values) if value is not None and value.requires_grad]
    tied = list(values)
    if torch.is_grad_enabled() and len(learned) > 1:
        for i, value in zip(learned, _Tie.apply(*(values[i] for i in learned)), strict=True):
            tied[i] = value
    return tied


def _cast(*tensors: Tensor | None) -> list[Tensor | None]:
    return [t if t is None else autocast(t) for t in tensors]


@_with_dgl_errors
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
    lhs_data, rhs_data = _tied_operands(lhs_data, rhs_data)
    found: list[list[tuple[Graph, Tensor | None, Tensor | None]]] = [[] for _ in range(index.number_of_ntypes())]
    for etype in range(index.number_of_etypes()):
        source, destination = index.metagraph.find_edge(etype)
        lhs = None if lhs_data is None or op == "copy_e" else lhs_data[source]
        rhs = None if rhs_data is None or op == "copy_u" else rhs_data[etype]
        if (lhs is not None or op == "copy_e") and (rhs is not None or op == "copy_u"):
            found[destination].append((index_to_graph(index, etype), *_cast(lhs, rhs)))
    across = _sum_across if reduce_op == "sum" else _extreme_across
    return tuple(across(parts, op, reduce_op) if parts else None for parts in found)


def _tied_operands(*operands):
    """``_tied`` over the lists of operands, of which one may be None."""
    tied = iter(_tied(*(value for values in operands if values is not None for value in values)))
    return [None if values is None else [next(tied) for _ in values] for values in operands]


def _sum_across(parts, op, reduce_op) -> Tensor:
    """The sum over the edges of all types: in half precision made in float32 and rounded once."""
    dtypes = [t.dtype for _, *operands in parts for t in operands if t is not None]
    dtype = functools.reduce(torch.promote_types, dtypes)
    wide = dtype if len(parts) == 1 or dtype == torch.float64 else torch.float32
    total = None
    for view, *operands in parts:
        lhs, rhs = (t if t is None else t.to(wide) for t in operands)
        out = kernels.spmm(view, lhs, rhs, op=op)
        total = out if total is None else total + out
    return total.to(dtype)


def _extreme_across(parts, op, reduce_op) -> Tensor:
    outs = [kernels.spmm(view, lhs, rhs, op=op, reduce=reduce_op) for view, lhs, rhs in parts]
    return _extreme(outs, [_without_edge(view) for view, *_ in parts], reduce_op)


def _without_edge(view: Graph) -> Tensor:
    return view.in_degrees() == 0


def _extreme(outs: list[Tensor], without: list[Tensor], reduce_op: str) -> Tensor:
    """The largest or smallest result of all types; a type ``without`` an edge into a node is left out there."""
    masks = [none.reshape(-1, *[1] * (out.dim() - 1)) for out, none in zip(outs, without, strict=True)]
    empty = float("-inf") if reduce_op == "max" else float("inf")
    stacked = torch.stack([out.masked_fill(none, empty) for out, none in zip(outs, masks, strict=True)])
    best = (stacked.max(0) if reduce_op == "max" else stacked.min(0)).values  # of equal ones the first has the gradient
    return best.masked_fill(torch.stack(masks).all(0), 0)


class _Extremes(dict):
    """The fields that max or min made over one edge type, with its graph: some nodes may have no edge of it."""

    def __init__(self, fields: dict, view: Graph):
        super().__init__(fields)
        self.view = view


def message_passing(stock):
    """DGL's inner ``message_passing``, which does not lose sight of the nodes whose 0 means that there is no edge."""

    @functools.wraps(stock)
    def with_empty_nodes(g, mfunc, rfunc, afunc):
        fields = stock(g, mfunc, rfunc, afunc)
        extreme = getattr(rfunc, "name", None) in ("max", "min") and core.is_builtin(rfunc)
        if not extreme or g._graph.number_of_etypes() > 1:
            return fields
        return _Extremes(fields, index_to_graph(g._graph))

    return with_empty_nodes


def reduce_dict_data(stock):
    """DGL's inner reduction across edge types, in ``multi_update_all``."""

    @functools.wraps(stock)
    def reduce(frames, reducer, order=None):
        if reducer not in ("max", "min") or len(frames) < 2 or not any(isinstance(f, _Extremes) for f in frames):
            return stock(frames, reducer, order)
        found: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        for frame in frames:
            empty = _without_edge(frame.view) if isinstance(frame, _Extremes) else None
            for name, value in frame.items():
                outs, without = found.setdefault(name, ([], []))
                outs.append(value)
                without.append(value.new_zeros(len(value), dtype=torch.bool) if empty is None else empty)
        return {name: _extreme(*parts, reducer) for name, parts in found.items()}

    return reduce


@_with_dgl_errors
def gsddmm(g, op, lhs_data, rhs_data, lhs_target="u", rhs_target="v"):
    """``dgl.ops.gsddmm``; a graph with several edge types gives a tuple of results, one an edge type."""
    index = g._graph
    if index.number_of_etypes() == 1:
        return _sddmm(index_to_graph(index), op, lhs_data, rhs_data, lhs_target, rhs_target)
    lhs_data, rhs_data = _tied_operands(lhs_data, rhs_data)
    results = []
    for etype in range(index.number_of_etypes()):
        source, destination = index.metagraph.find_edge(etype)
        at = {"u": source, "v": destination, "e": etype}
        lhs = None if op == "copy_rhs" else lhs_data[at[lhs_target]]
        rhs = None if op == "copy_lhs" else rhs_data[at[rhs_target]]
        missing = (lhs is None and op != "copy_rhs") or (rhs is None and op != "copy_lhs")
        view = index_to_graph(index, etype)
        results.append(None if missing else _sddmm(view, op, lhs, rhs, lhs_target, rhs_target))
    return tuple(results)


def _sddmm(view: Graph, op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str, rhs_target: str) -> Tensor:
    lhs, rhs = _cast(lhs, rhs)
    if op == "dot" and lhs.dim() == rhs.dim() == 1:  # of one number a node, which DGL allows
        op = "mul"
    return kernels.sddmm(view, op, lhs, rhs, lhs_target, rhs_target)


@_with_dgl_errors
def edge_softmax(gidx, logits, eids=ALL, norm_by="dst"):
    """DGL's inner ``edge_softmax`` on a graph index; with ``eids`` over those edges alone."""
    if not is_all(eids):
        gidx = gidx.edge_subgraph([eids], True).graph
    return kernels.edge_softmax(index_to_graph(gidx), autocast(logits), norm_by)


@_with_dgl_errors
def edge_softmax_hetero(gidx, eids=ALL, norm_by="dst", *logits):
    """The same over the edges of all types together, which compete for a node."""
    if not is_all(eids):
        raise DGLError("edge_softmax over a subset of edges is defined for graphs with one edge type")
    side = 0 if norm_by == "src" else 1
    results: list[Tensor | None] = [None] * len(logits)
    logits = _tied(*logits)
    groups: dict[int, list[int]] = {}
    for etype, value in enumerate(logits):
        if value is not None:
            groups.setdefault(gidx.metagraph.find_edge(etype)[side], []).append(etype)
    for etypes in groups.values():
        values = torch.cat([autocast(logits[t]) for t in etypes])
        weights = kernels.edge_softmax(joined(gidx, tuple(etypes), side), values)
        for etype, part in zip(etypes, weights.split([len(logits[t]) for t in etypes]), strict=True):
            results[etype] = part
    return tuple(results)


@_with_dgl_errors
def segment_reduce(seglen, value, reducer="sum"):
    """``dgl.ops.segment_reduce``."""
    if reducer not in ("sum", "mean", "max", "min"):
        raise DGLError(f"reducer {reducer} not recognized.")
    indptr = torch.cat([seglen.new_zeros(1), seglen]).cumsum(0).to(seglen.dtype)
    if int(indptr[-1]) != len(value):
        raise DGLError(f"the segments have {int(indptr[-1])} rows together, value has {len(value)}")
    view = Graph(1, len(seglen), csc=Compressed(indptr, torch.zeros_like(indptr[:1]).expand(len(value)), None))
    return kernels.spmm(view, None, autocast(value), op="copy_e", reduce=reducer)


@_with_dgl_errors
def segment_mm(A, B, seglen_A):
    """Rows of ``A`` (N, in), segment i times ``B[i]`` of (R, in, out), in a type of both; sums in float32."""
    return kernels.segment_linear(*_cast(A, B), torch.as_tensor(seglen_A))


@_with_dgl_errors
def gather_mm(A, B, idx_A=None, idx_B=None):
    """Row i of ``A`` times ``B[idx_B[i]]``, by sorting the rows into segments: no weight is copied a row."""
    a = A if idx_A is None else A[idx_A]
    if idx_B is None:
        return segment_mm(a, B, torch.ones(len(B), dtype=torch.int64))
    order = torch.argsort(idx_B, stable=True)
    counts = torch.bincount(idx_B, minlength=len(B))
    return segment_mm(a[order], B, counts)[torch.argsort(order)]
