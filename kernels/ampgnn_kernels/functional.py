"""The public functions on a ``Graph``: they check their arguments in one clear line, then call the operators."""

from __future__ import annotations

import torch
from torch import Tensor

from .cpu import DTYPES, REDUCES, SDDMM_OPS, SPMM_OPS, TARGETS, accumulator
from .graph import Graph
from .ops import _ops
from .transforms import call, needs_grad


def spmm(
    graph: Graph,
    x: Tensor | None = None,
    w: Tensor | None = None,
    *,
    op: str,
    reduce: str = "sum",
    src_scale: Tensor | None = None,
    dst_scale: Tensor | None = None,
) -> Tensor:
    """Aggregates messages at the destinations: ``out[v] = reduce over edges (u, e, v) of op(x[u], w[e])``.

    Args:
        x: (num_src, *Dx) source features; unused by "copy_e".
        w: (num_edges, *Dw) edge features in edge-id order; unused by "copy_u".
        op: "copy_u", "copy_e", "add", "sub", "mul" or "div"; Dx and Dw broadcast.
        reduce: "sum", "mean", "max" or "min". Sums are made in float32 (float64 for float64), so a mean is finite
            whenever its value is. NaN passes through max and min as in ``torch.amax``.
        src_scale: (num_src,) factors of each message, taken in float32 (float64 for float64), for "sum" and "mean".
        dst_scale: (num_dst,) factors of each result, likewise, for "sum" and "mean". No gradient flows to the scales.

    Returns:
        (num_dst, *D) in the operands' type (``torch.result_type`` of the two); 0 where a destination has no edge.

    Raises:
        ValueError: an unknown op or reduce, wrong shapes or devices. TypeError: a type that is no float.
    """
    _one_of("op", op, SPMM_OPS)
    _one_of("reduce", reduce, REDUCES)
    x = None if op == "copy_e" else _features("x", x, graph.num_src, graph)
    w = None if op == "copy_u" else _features("w", w, graph.num_edges, graph)
    x, w = _aligned(x, w)
    extreme = reduce in ("max", "min")
    if extreme and (src_scale is not None or dst_scale is not None):
        raise ValueError(f"src_scale and dst_scale are for the reducers sum and mean, not {reduce}")
    wide = accumulator((w if x is None else x).dtype)
    src_scale = _scale("src_scale", src_scale, graph.num_src, graph, wide)
    dst_scale = _scale("dst_scale", dst_scale, graph.num_dst, graph, wide)
    grad = needs_grad(x, w)
    arguments = (*_edges(graph, grad), x, w, op, reduce, src_scale, dst_scale, extreme and grad)
    return call(_ops.spmm.default, *arguments, grad=grad)[0]


def sddmm(
    graph: Graph,
    op: str,
    lhs: Tensor | None = None,
    rhs: Tensor | None = None,
    lhs_target: str = "u",
    rhs_target: str = "v",
) -> Tensor:
    """Computes a value on each edge: ``out[e] = op(lhs[end of e], rhs[end of e])``.

    Args:
        op: "add", "sub", "mul", "div", "dot" (over the last dimension, which stays as 1), "copy_lhs" or "copy_rhs".
        lhs, rhs: features of the sources ("u"), destinations ("v") or edges ("e", in edge-id order), as the targets
            say; their feature dimensions broadcast.

    Returns:
        (num_edges, *D) in edge-id order, in the operands' type.

    Raises:
        ValueError, TypeError: as ``spmm``.
    """
    _one_of("op", op, SDDMM_OPS)
    _one_of("lhs_target", lhs_target, TARGETS)
    _one_of("rhs_target", rhs_target, TARGETS)
    counts = {"u": graph.num_src, "v": graph.num_dst, "e": graph.num_edges}
    lhs = None if op == "copy_rhs" else _features("lhs", lhs, counts[lhs_target], graph)
    rhs = None if op == "copy_lhs" else _features("rhs", rhs, counts[rhs_target], graph)
    lhs, rhs = _aligned(lhs, rhs)
    grad = needs_grad(lhs, rhs)
    by_source = grad or "v" not in (lhs_target, rhs_target)
    arguments = (*_edges(graph, by_source), lhs, rhs, op, lhs_target, rhs_target, None, None)
    return call(_ops.sddmm.default, *arguments, grad=grad)


def edge_softmax(graph: Graph, logits: Tensor, norm_by: str = "dst") -> Tensor:
    """Softmax of the edges' logits over the edges into each destination, or out of each source.

    Args:
        logits: (num_edges, *H) in edge-id order. norm_by: "dst" or "src".

    Returns:
        Weights of the same shape and type; the sums behind them are made in float64.

    Raises:
        ValueError, TypeError: as ``spmm``.
    """
    _one_of("norm_by", norm_by, ("dst", "src"))
    logits = _features("logits", logits, graph.num_edges, graph)
    edges = graph.csc if norm_by == "dst" else graph.csr
    return call(_ops.edge_softmax.default, *edges, logits, grad=needs_grad(logits))


def gat_attention(graph: Graph, h: Tensor, el: Tensor, er: Tensor, negative_slope: float = 0.2) -> Tensor:
    """Graph attention (Veličković et al., 2018, eq. 3 and 4) in one pass, without any tensor per edge.

    ``out[v] = Σ over edges (u, v) of a[u, v] h[u]``, ``a`` the softmax over v's edges of
    ``leaky_relu(el[u] + er[v], negative_slope)``. The backward pass recomputes ``a``.

    Args:
        h: (num_src, H, D) projected features. el: (num_src, H), er: (num_dst, H): the two halves of the logits, taken
            in float32 (float64 if h is float64).

    Returns:
        (num_dst, H, D) in h's type; 0 where a destination has no edge.

    Raises:
        ValueError, TypeError: as ``spmm``.
    """
    h = _features("h", h, graph.num_src, graph)
    if h.dim() != 3:
        raise ValueError(f"h must have shape (num_src, heads, dim), got {tuple(h.shape)}")
    el, er = _features("el", el, graph.num_src, graph), _features("er", er, graph.num_dst, graph)
    for name, t in (("el", el), ("er", er)):
        if t.shape[1:] != h.shape[1:2]:
            raise ValueError(f"{name} must have shape (nodes, {h.shape[1]}), got {tuple(t.shape)}")
    wide = accumulator(h.dtype)
    grad = needs_grad(h, el, er)
    arguments = (*_ends(graph, grad), h, el.to(wide), er.to(wide), negative_slope)
    return call(_ops.gat_attention.default, *arguments, grad=grad)[0]


def gatv2_attention(graph: Graph, h: Tensor, h_dst: Tensor, attn: Tensor, negative_slope: float = 0.2) -> Tensor:
    """Graph attention with dynamic logits (Brody et al., 2022, eq. 7), without any tensor per edge.

    ``out[v] = Σ over edges (u, v) of a[u, v] h[u]``, ``a`` the softmax over v's edges of
    ``attn · leaky_relu(h[u] + h_dst[v], negative_slope)``, in float32 (float64 for float64) until it is stored.

    Args:
        h: (num_src, H, D) projected features of the sources. h_dst: (num_dst, H, D), of the destinations.
        attn: (H, D).

    Returns:
        (num_dst, H, D) in h's type; 0 where a destination has no edge.

    Raises:
        ValueError, TypeError: as ``spmm``.
    """
    _check_ends(graph, h, h_dst)
    if attn.shape != h.shape[1:]:
        raise ValueError(f"attn must have shape {tuple(h.shape[1:])}, got {tuple(attn.shape)}")
    grad = needs_grad(h, h_dst, attn)
    return call(_ops.gatv2_attention.default, *_ends(graph, grad), h, h_dst, attn, negative_slope, grad=grad)[0]


def dot_attention(graph: Graph, h: Tensor, h_dst: Tensor, scale: float) -> Tensor:
    """Graph attention with dot products for logits, without any tensor per edge.

    ``out[v] = Σ over edges (u, v) of a[u, v] h[u]``, ``a`` the softmax over v's edges of ``scale * h[u] · h_dst[v]``.

    Args, returns and raises: as ``gatv2_attention``.
    """
    _check_ends(graph, h, h_dst)
    grad = needs_grad(h, h_dst)
    return call(_ops.dot_attention.default, *_ends(graph, grad), h, h_dst, scale, grad=grad)[0]


def _ends(graph: Graph, both: bool) -> tuple:
    return *graph.csc[:2], *(graph.csr[:2] if both else (None, None))


def _check_ends(graph: Graph, h: Tensor, h_dst: Tensor) -> None:
    _features("h", h, graph.num_src, graph), _features("h_dst", h_dst, graph.num_dst, graph)
    if h.dim() != 3 or h_dst.shape[1:] != h.shape[1:] or h_dst.dtype != h.dtype:
        raise ValueError(
            f"h and h_dst must have shape (nodes, heads, dim) and one type, got {tuple(h.shape)} {h.dtype} "
            f"and {tuple(h_dst.shape)} {h_dst.dtype}"
        )


def _edges(graph: Graph, both: bool) -> tuple:
    return *graph.csc, *(graph.csr if both else (None, None, None)), graph.num_src


def _one_of(name: str, value: str, allowed) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _features(name: str, t: Tensor | None, rows: int, graph: Graph) -> Tensor:
    if t is None:
        raise ValueError(f"{name} is needed by this op")
    if t.dtype not in DTYPES:
        raise TypeError(f"{name} must be float64, float32, float16 or bfloat16, got {t.dtype}")
    if t.dim() == 0 or t.shape[0] != rows:
        raise ValueError(f"{name} must have {rows} rows, got shape {tuple(t.shape)}")
    if t.device != graph.device:
        raise ValueError(f"{name} is on {t.device}, the graph on {graph.device}")
    return t


def _scale(name: str, t: Tensor | None, rows: int, graph: Graph, wide: torch.dtype) -> Tensor | None:
    if t is None:
        return None
    t = _features(name, t, rows, graph)
    if t.dim() != 1:
        raise ValueError(f"{name} must have shape ({rows},), got {tuple(t.shape)}")
    return t.detach().to(wide).contiguous()


def _aligned(a: Tensor | None, b: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Both in one type and with as many feature dimensions, aligned at the right."""
    if a is None or b is None:
        return a, b
    if a.dtype != b.dtype:
        dtype = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(dtype), b.to(dtype)
    if a.dim() < b.dim():
        a = a.reshape(a.shape[0], *[1] * (b.dim() - a.dim()), *a.shape[1:])
    elif b.dim() < a.dim():
        b = b.reshape(b.shape[0], *[1] * (a.dim() - b.dim()), *b.shape[1:])
    return a, b
