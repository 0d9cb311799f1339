"""The torch operators ``torch.ops.ampgnn.*``: schemas, dispatch to a device, shapes for tracing, gradients.

An operator takes a graph as tensors: its edges grouped by the row that receives (``indptr, indices, eids``) and,
where a gradient is wanted, grouped by the other end (``rindptr, rindices, reids``). ``cols`` is the number of nodes
at the other end. Two operands have the same number of dimensions; scales are float32, float64 for float64 features.
The public functions in ``functional.py`` fill these in from a ``Graph``.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from . import cpu
from .broadcast import unbroadcast
from .cpu import accumulator
from .transforms import call, differentiable

_GRAPH = "Tensor indptr, Tensor indices, Tensor? eids, Tensor? rindptr, Tensor? rindices, Tensor? reids, int cols"
_lib = torch.library.Library("ampgnn", "DEF")
_lib.define(
    f"spmm({_GRAPH}, Tensor? x, Tensor? w, str op, str reduce, Tensor? src_scale, Tensor? dst_scale, bool with_arg)"
    " -> (Tensor, Tensor)"
)
_lib.define(
    f"sddmm({_GRAPH}, Tensor? lhs, Tensor? rhs, str op, str lhs_target, str rhs_target,"
    " Tensor? src_scale, Tensor? dst_scale) -> Tensor"
)
_lib.define("edge_softmax(Tensor indptr, Tensor indices, Tensor? eids, Tensor logits) -> Tensor")
_lib.define("edge_softmax_backward(Tensor indptr, Tensor indices, Tensor? eids, Tensor logits, Tensor grad) -> Tensor")
_lib.define(
    "gat_attention(Tensor indptr, Tensor indices, Tensor? rindptr, Tensor? rindices, Tensor h, Tensor el, Tensor er,"
    " float negative_slope) -> (Tensor, Tensor, Tensor)"
)
_lib.define(
    "gat_attention_backward(Tensor indptr, Tensor indices, Tensor rindptr, Tensor rindices, Tensor h, Tensor el,"
    " Tensor er, Tensor out, Tensor largest, Tensor total, Tensor grad, float negative_slope)"
    " -> (Tensor, Tensor, Tensor)"
)
_PAIR = "Tensor indptr, Tensor indices, Tensor{0} rindptr, Tensor{0} rindices, Tensor h, Tensor h_dst"
_SAVED = "Tensor out, Tensor largest, Tensor total, Tensor grad"
_lib.define(f"gatv2_attention({_PAIR.format('?')}, Tensor attn, float negative_slope) -> (Tensor, Tensor, Tensor)")
_lib.define(
    f"gatv2_attention_backward({_PAIR.format('')}, Tensor attn, {_SAVED}, float negative_slope)"
    " -> (Tensor, Tensor, Tensor)"
)
_lib.define(f"dot_attention({_PAIR.format('?')}, float scale) -> (Tensor, Tensor, Tensor)")
_lib.define(f"dot_attention_backward({_PAIR.format('')}, {_SAVED}, float scale) -> (Tensor, Tensor)")
_lib.define(
    "arg_scatter(Tensor indptr, Tensor indices, Tensor? eids, Tensor? rindptr, Tensor? rindices, Tensor? reids,"
    " Tensor grad, Tensor arg, str op, str target, SymInt rows) -> Tensor"
)

_ops = torch.ops.ampgnn
ATTENTIONS = ("gat_attention", "gatv2_attention", "dot_attention")


def _cpu_spmm(indptr, indices, eids, rindptr, rindices, reids, cols, *rest):
    return cpu.spmm(indptr, indices, eids, cols, *rest)


def _cpu_sddmm(indptr, indices, eids, rindptr, rindices, reids, cols, lhs, rhs, op, lhs_target, rhs_target, s, d):
    if op == "dot" and rindptr is not None and "v" not in (lhs_target, rhs_target):
        # The kernel keeps the row's own operand at hand: group the edges by the end that has one.
        turned = {"u": "v", "e": "e"}
        return cpu.sddmm(
            rindptr, rindices, reids, indptr.shape[0] - 1, lhs, rhs, op, turned[lhs_target], turned[rhs_target], d, s
        )
    return cpu.sddmm(indptr, indices, eids, cols, lhs, rhs, op, lhs_target, rhs_target, s, d)


def _by_destination(attention):
    """A forward pass on the CPU, which has no use for the edges grouped by source."""

    def run(indptr, indices, rindptr, rindices, *rest):
        return attention(indptr, indices, *rest)

    return run


def _cpu_gat_attention_backward(indptr, indices, *rest):
    return cpu.gat_attention_backward(*rest)


def _cpu_arg_scatter(indptr, indices, eids, rindptr, rindices, reids, *rest):
    return cpu.arg_scatter(indptr, indices, eids, *rest)


def _on_gpu(name: str):
    def run(*args):
        from . import gpu  # with triton, which only CUDA builds of torch bring

        return getattr(gpu, name)(*args)

    return run


for _name, _function in {
    "spmm": _cpu_spmm,
    "sddmm": _cpu_sddmm,
    "edge_softmax": cpu.edge_softmax,
    "edge_softmax_backward": cpu.edge_softmax_backward,
    "gat_attention": _by_destination(cpu.gat_attention),
    "gat_attention_backward": _cpu_gat_attention_backward,
    "gatv2_attention": _by_destination(cpu.gatv2_attention),
    "gatv2_attention_backward": cpu.gatv2_attention_backward,
    "dot_attention": _by_destination(cpu.dot_attention),
    "dot_attention_backward": cpu.dot_attention_backward,
    "arg_scatter": _cpu_arg_scatter,
}.items():
    _lib.impl(_name, _function, "CPU")
    _lib.impl(_name, _on_gpu(_name), "CUDA")


# ---- shapes, for tracing


def _shapes(a: Tensor | None, b: Tensor | None):
    a, b = (b if a is None else a), (a if b is None else b)
    return a, a.shape[1:], b.shape[1:]


@torch.library.register_fake("ampgnn::spmm", lib=_lib)
def _(indptr, indices, eids, rindptr, rindices, reids, cols, x, w, op, reduce, src_scale, dst_scale, with_arg):
    like, a, b = _shapes(x, w)
    out = like.new_empty((indptr.shape[0] - 1, *torch.broadcast_shapes(a, b)))
    return out, indices.new_empty(out.shape if with_arg else (0,))


@torch.library.register_fake("ampgnn::sddmm", lib=_lib)
def _(
    indptr,
    indices,
    eids,
    rindptr,
    rindices,
    reids,
    cols,
    lhs,
    rhs,
    op,
    lhs_target,
    rhs_target,
    src_scale,
    dst_scale,
):
    like, a, b = _shapes(lhs, rhs)
    out = torch.broadcast_shapes(a, b)
    return like.new_empty((indices.shape[0], *((*out[:-1], 1) if op == "dot" else out)))


@torch.library.register_fake("ampgnn::edge_softmax", lib=_lib)
def _(indptr, indices, eids, logits):
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@torch.library.register_fake("ampgnn::edge_softmax_backward", lib=_lib)
def _(indptr, indices, eids, logits, grad):
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@torch.library.register_fake("ampgnn::gat_attention", lib=_lib)
def _(indptr, indices, rindptr, rindices, h, el, er, negative_slope):
    out = h.new_empty((indptr.shape[0] - 1, *h.shape[1:]))
    return out, er.new_empty(er.shape), er.new_empty(er.shape)


@torch.library.register_fake("ampgnn::gat_attention_backward", lib=_lib)
def _(indptr, indices, rindptr, rindices, h, el, er, out, largest, total, grad, negative_slope):
    return h.new_empty(h.shape), el.new_empty(el.shape), er.new_empty(er.shape)


def _fake_pair(h, h_dst):
    largest = h.new_empty(h_dst.shape[:2], dtype=accumulator(h.dtype))
    return h_dst.new_empty(h_dst.shape), largest, torch.empty_like(largest)


@torch.library.register_fake("ampgnn::gatv2_attention", lib=_lib)
def _(indptr, indices, rindptr, rindices, h, h_dst, attn, negative_slope):
    return _fake_pair(h, h_dst)


@torch.library.register_fake("ampgnn::dot_attention", lib=_lib)
def _(indptr, indices, rindptr, rindices, h, h_dst, scale):
    return _fake_pair(h, h_dst)


@torch.library.register_fake("ampgnn::gatv2_attention_backward", lib=_lib)
def _(indptr, indices, rindptr, rindices, h, h_dst, attn, out, largest, total, grad, negative_slope):
    return h.new_empty(h.shape), h_dst.new_empty(h_dst.shape), attn.new_empty(attn.shape)


@torch.library.register_fake("ampgnn::dot_attention_backward", lib=_lib)
def _(indptr, indices, rindptr, rindices, h, h_dst, out, largest, total, grad, scale):
    return h.new_empty(h.shape), h_dst.new_empty(h_dst.shape)


@torch.library.register_fake("ampgnn::arg_scatter", lib=_lib)
def _(indptr, indices, eids, rindptr, rindices, reids, grad, arg, op, target, rows):
    return grad.new_empty((rows, *grad.shape[1:]))


# ---- gradients


class _Run:
    """The operators as a gradient calls them: its own gradient is recorded only where torch records one."""

    def __init__(self, names: list[str]):
        for name in names:
            setattr(self, name, partial(self._call, getattr(_ops, name).default))

    @staticmethod
    def _call(operator, *args):
        return call(operator, *args, grad=torch.is_grad_enabled())


_run = _Run(
    ["spmm", "sddmm", "edge_softmax", "edge_softmax_backward", *(f"{a}_backward" for a in ATTENTIONS), "arg_scatter"]
)


class _Edges:
    """A graph as an operator takes it, and the same seen from the other end."""

    def __init__(self, indptr, indices, eids, rindptr, rindices, reids, cols):
        self.here, self.there, self.cols = (indptr, indices, eids), (rindptr, rindices, reids), cols
        self.rows = indptr.shape[0] - 1

    def towards(self, target: str) -> tuple:
        """The graph's arguments for an spmm whose result belongs to ``target`` ("u" or "v")."""
        if target == "v":
            return *self.here, *self.there, self.cols
        if self.there[0] is None:
            raise RuntimeError("a gradient needs the edges grouped by source too: pass rindptr, rindices, reids")
        return *self.there, *self.here, self.rows

    @property
    def all(self) -> tuple:
        return *self.here, *self.there, self.cols


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.to(accumulator(t.dtype)) for t in tensors]


def _spmm_sum(edges: _Edges, target, x, w, op, src_scale=None, dst_scale=None) -> Tensor:
    """spmm towards ``target``; scales are named for the graph's own sources and destinations."""
    near, far = (dst_scale, src_scale) if target == "v" else (src_scale, dst_scale)
    return _run.spmm(*edges.towards(target), x, w, op, "sum", far, near, False)[0]


def _save_spmm(ctx, inputs, output):
    *graph, x, w, op, reduce, src_scale, dst_scale, _ = inputs
    _, arg = output
    ctx.mark_non_differentiable(arg)
    ctx.save_for_backward(*graph[:6], x, w, src_scale, dst_scale, arg)
    ctx.cols, ctx.op, ctx.reduce = graph[6], op, reduce


def _spmm_backward(ctx, grad, _):
    *graph, x, w, src_scale, dst_scale, arg = ctx.saved_tensors
    edges = _Edges(*graph, ctx.cols)
    need_x, need_w = ctx.needs_input_grad[7], ctx.needs_input_grad[8]
    if ctx.reduce in ("max", "min"):
        grad_x, grad_w = _extreme_backward(edges, ctx.op, x, w, grad, arg, need_x, need_w)
    else:
        if ctx.reduce == "mean":
            mean = 1 / edges.here[0].diff().clamp(min=1).to(accumulator(grad.dtype))
            dst_scale = mean if dst_scale is None else mean * dst_scale
        scales = (src_scale, dst_scale)
        grad_x = _sum_backward_x(edges, ctx.op, x, w, grad, scales) if need_x else None
        grad_w = _sum_backward_w(edges, ctx.op, x, w, grad, scales) if need_w else None
    return *[None] * 7, grad_x, grad_w, *[None] * 5


def _sum_backward_x(edges, op, x, w, grad, scales):
    weighted = op in ("mul", "div")
    if x.shape[1:] == grad.shape[1:]:
        return _spmm_sum(edges, "u", grad, w if weighted else None, op if weighted else "copy_u", *scales)
    grad, w = _wide(grad, w)
    full = _spmm_sum(edges, "u", grad, w if weighted else None, op if weighted else "copy_u", *scales)
    return unbroadcast(full, x.shape[1:]).to(x.dtype)


def _sum_backward_w(edges, op, x, w, grad, scales):
    def sddmm(lhs, rhs, op, lhs_target="u", rhs_target="v"):
        return _run.sddmm(*edges.all, lhs, rhs, op, lhs_target, rhs_target, *scales)

    if op == "copy_e":
        return sddmm(None, grad, "copy_rhs")
    if op in ("add", "sub"):
        total = sddmm(None, unbroadcast(*_wide(grad), w.shape[1:]), "copy_rhs")
        return (-total if op == "sub" else total).to(w.dtype)
    features = grad.shape[1:]
    split = _dot_split(w.shape[1:], features) if x.shape[1:] == features else None
    if op == "div" or split is None:
        x, grad = _wide(x, grad)
    if split is None:
        total = unbroadcast(sddmm(x, grad, "mul"), w.shape[1:])
    elif split == len(features):
        total = sddmm(x, grad, "mul").reshape(w.shape)
    else:
        heads = features[:split].numel(), features[split:].numel()
        flat = (t.reshape(t.shape[0], *heads) for t in (x, grad))
        total = sddmm(*flat, "dot").reshape(w.shape)
    if op == "div":
        (wide,) = _wide(w)
        total = total / -(wide * wide)
    return total.to(w.dtype)


def _dot_split(w, features) -> int | None:
    """The dimension from which on w is broadcast over all of the features, if that is how it broadcasts."""
    split = len(features)
    while split and w[split - 1] == 1:
        split -= 1
    return split if w[:split] == features[:split] else None


def _extreme_backward(edges, op, x, w, grad, arg, need_x, need_w):
    def scatter(grad, target, rows):
        return _run.arg_scatter(*edges.here, *edges.there, grad, arg, op, target, rows)

    num_edges = edges.here[1].shape[0]
    if op == "copy_u":
        return scatter(grad, "u", edges.cols), None
    if op == "copy_e":
        return None, scatter(grad, "e", num_edges)
    if num_edges == 0:
        return torch.zeros_like(x), torch.zeros_like(w)
    _, indices, eids = edges.here
    entry = arg.clamp(min=0).long()
    features = grad.shape[1:]
    wide_x, wide_w, grad = _wide(x, w, grad)

    def chosen(t: Tensor, ids: Tensor) -> Tensor:
        return t.expand(-1, *features).gather(0, ids)

    edge = entry if eids is None else eids.long()[entry]
    of_w = chosen(wide_w, edge)
    of_x = chosen(wide_x, indices.long()[entry])
    slope_x = {"add": 1, "sub": 1, "mul": of_w, "div": 1 / of_w}[op]
    slope_w = {"add": 1, "sub": -1, "mul": of_x, "div": -of_x / of_w**2}[op]
    grad_x = grad_w = None
    if need_x:
        grad_x = unbroadcast(scatter(grad * slope_x, "u", edges.cols), x.shape[1:]).to(x.dtype)
    if need_w:
        grad_w = grad * slope_w
        if w.shape[1:].numel() != features.numel():
            grad_w = _add_to_rows(grad_w.masked_fill(arg < 0, 0), edge, w.shape).to(w.dtype)
        else:
            grad_w = scatter(grad_w, "e", num_edges).view(w.shape).to(w.dtype)
    return grad_x, grad_w


def _add_to_rows(values: Tensor, rows: Tensor, shape) -> Tensor:
    """Of ``shape``, whose features broadcast to those of ``values``: each value (N, *) added to its row of ``rows``
    (N, *). What is as large as a broadcast result is not held."""
    width = shape[1:].numel()
    column = torch.arange(width, device=rows.device).reshape(shape[1:]).expand(values.shape[1:])
    place = (rows * width + column).flatten()
    out, values = values.new_zeros(shape[0] * width), values.flatten()
    if out.device.type == "cpu":  # each of the two adds in the same order whatever the threads are
        return out.index_add(0, place, values).view(shape)
    return out.index_put((place,), values, accumulate=True).view(shape)


def _save_sddmm(ctx, inputs, output):
    *graph, lhs, rhs, op, lhs_target, rhs_target, src_scale, dst_scale = inputs
    ctx.save_for_backward(*graph[:6], lhs, rhs, src_scale, dst_scale)
    ctx.cols, ctx.op, ctx.targets = graph[6], op, (lhs_target, rhs_target)


def _sddmm_backward(ctx, grad):
    *graph, lhs, rhs, src_scale, dst_scale = ctx.saved_tensors
    edges, scales = _Edges(*graph, ctx.cols), (src_scale, dst_scale)
    args = (edges, ctx.op, lhs, rhs, ctx.targets, grad, scales)
    grad_lhs = _operand_backward(*args, side=0) if ctx.needs_input_grad[7] else None
    grad_rhs = _operand_backward(*args, side=1) if ctx.needs_input_grad[8] else None
    return *[None] * 7, grad_lhs, grad_rhs, *[None] * 5


def _operand_backward(edges, op, lhs, rhs, targets, grad, scales, side):
    """The gradient of operand ``side`` (0 lhs, 1 rhs): the derivative on each edge, summed over its target's edges."""
    own, other = (lhs, rhs) if side == 0 else (rhs, lhs)
    target, far = targets[side], targets[1 - side]
    if op in ("mul", "dot") and {target, far} == {"u", "v"} and _same_features(own, other, grad, op):
        return _spmm_sum(edges, target, other, grad, "mul", *scales)  # Σ over the edges of grad[e] * other[far], fused
    linear = op in ("add", "sub", "copy_lhs", "copy_rhs")
    if linear and own.shape[1:] == grad.shape[1:] and target != "e" and scales == (None, None):
        total = _spmm_sum(edges, target, None, grad, "copy_e")
        return -total if op == "sub" and side == 1 else total
    wide_own, wide_other, wide = _wide(own, other, grad)
    slope = _edge_slope(edges, op, wide_own, wide_other, targets, wide, scales, side)
    total = slope if target == "e" else _spmm_sum(edges, target, None, slope, "copy_e")
    return unbroadcast(total, own.shape[1:]).to(own.dtype)


def _same_features(own, other, grad, op) -> bool:
    if op == "dot":
        return own.shape[1:] == other.shape[1:]
    return own.shape[1:] == other.shape[1:] == grad.shape[1:]


def _edge_slope(edges, op, own, other, targets, grad, scales, side):
    """(edges, *features): grad times the derivative of op by operand ``side``."""
    target, far = targets[side], targets[1 - side]

    def sddmm(lhs, rhs, op, lhs_target, rhs_target, scales=(None, None)):
        return _run.sddmm(*edges.all, lhs, rhs, op, lhs_target, rhs_target, *scales)

    if op in ("add", "sub", "copy_lhs", "copy_rhs"):
        scaled = grad if scales == (None, None) else sddmm(grad, None, "copy_lhs", "e", "e", scales)
        return -scaled if op == "sub" and side == 1 else scaled
    if op in ("mul", "dot"):
        return sddmm(grad, other, "mul", "e", far, scales)
    if side == 0:
        return sddmm(grad, other, "div", "e", far, scales)
    quotient = sddmm(grad, other, "mul", "e", far, scales)
    return -sddmm(sddmm(quotient, own, "div", "e", target), own, "div", "e", target)


def _save_edge_softmax(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _edge_softmax_backward(ctx, grad):
    return None, None, None, _run.edge_softmax_backward(*ctx.saved_tensors, grad)


def _edge_softmax_double_backward(ctx, grad):
    """Of a (g - s), s the row sum of a g, against z: by g it is a (z - r), r the row sum of a z; by a it is
    t = z (g - s) - g r, and so by the logits a (t - the row sum of a t)."""
    indptr, indices, eids, logits, g = ctx.saved_tensors
    graph = (indptr, indices, eids, None, None, None, 0)

    def row_sum(x):  # on every edge of the row
        total = _run.spmm(*graph, None, x, "copy_e", "sum", None, None, False)[0]
        return _run.sddmm(*graph, None, total, "copy_rhs", "u", "v", None, None)

    wide, g, z = _wide(logits, g, grad)
    a = _run.edge_softmax(indptr, indices, eids, wide)
    s, r = row_sum(a * g), row_sum(a * z)
    t = z * (g - s) - g * r
    return None, None, None, (a * (t - row_sum(a * t))).to(logits.dtype), (a * (z - r)).to(logits.dtype)


def _save_attention(ctx, inputs, output):
    *saved, ctx.factor = inputs
    out, largest, total = output
    ctx.mark_non_differentiable(largest, total)
    ctx.save_for_backward(*saved, out, largest, total)


def _attention_backward(name: str):
    def backward(ctx, grad, *_):
        saved = ctx.saved_tensors  # once: a checkpointed layer recomputes them at this call
        if saved[2] is None:
            raise RuntimeError(f"the gradient of {name} needs the edges grouped by source: pass rindptr, rindices")
        gradients = getattr(_run, f"{name}_backward")(*saved, grad, ctx.factor)
        return None, None, None, None, *gradients, None

    return backward


for _name, _backward, _save in (
    ("spmm", _spmm_backward, _save_spmm),
    ("sddmm", _sddmm_backward, _save_sddmm),
    ("edge_softmax", _edge_softmax_backward, _save_edge_softmax),
    ("edge_softmax_backward", _edge_softmax_double_backward, _save_edge_softmax),
    *((_name, _attention_backward(_name), _save_attention) for _name in ATTENTIONS),
):
    differentiable(_lib, _name, _backward, _save)
