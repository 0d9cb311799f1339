"""The operators on the CPU: allocate with torch, hand addresses to C++."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from . import _C
from .broadcast import plan

DTYPES = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
SPMM_OPS = {"copy_u": 0, "copy_e": 1, "add": 2, "sub": 3, "mul": 4, "div": 5}
SDDMM_OPS = {"copy_lhs": 0, "copy_rhs": 1, "add": 2, "sub": 3, "mul": 4, "div": 5, "dot": 6}
REDUCES = {"sum": 0, "mean": 1, "max": 2, "min": 3}
TARGETS = {"u": 0, "v": 1, "e": 2}
# Shares of the rows whose parts of a gradient that rows have in common are added up in order: a function of the graph
# alone, so that the result does not depend on the number of threads.
EDGES_PER_PART, MAX_PARTS = 1 << 14, 8
ROWS_PER_PART, MAX_ROW_PARTS = 1 << 11, 64

# A forked child has the parent's OpenMP pool without its threads and would wait for them forever, in torch's own
# operators too.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type that sums of ``dtype`` are made in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _address(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def _rows(indptr: Tensor, indices: Tensor, eids: Tensor | None, cols: int) -> tuple:
    return (
        indptr.data_ptr(),
        indices.data_ptr(),
        _address(eids),
        indptr.shape[0] - 1,
        cols,
        indices.shape[0],
        indices.dtype == torch.int64,
    )


def _parts(items: Tensor, of: int = EDGES_PER_PART, at_most: int = MAX_PARTS) -> int:
    return max(1, min(at_most, items.shape[0] // of))


def _width(t: Tensor | None) -> int:
    """Elements from one row of a contiguous tensor to the next."""
    return 0 if t is None else t.shape[1:].numel()


def _contiguous(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


def spmm(indptr, indices, eids, cols, x, w, op, reduce, src_scale, dst_scale, with_arg) -> tuple[Tensor, Tensor]:
    x, w = _contiguous(x), _contiguous(w)
    a, b = (w if x is None else x), (x if w is None else w)
    p = plan(a.shape[1:], b.shape[1:])
    out = a.new_empty((indptr.shape[0] - 1, *p.shape))
    arg = indices.new_empty(out.shape if with_arg else (0,))
    _C.spmm(
        *_rows(indptr, indices, eids, cols),
        DTYPES[a.dtype],
        SPMM_OPS[op],
        REDUCES[reduce],
        *p.arguments(),
        _address(x),
        _width(x),
        _address(w),
        _width(w),
        _address(src_scale),
        _address(dst_scale),
        out.data_ptr(),
        arg.data_ptr() if with_arg else 0,
        torch.get_num_threads(),
    )
    return out, arg


def sddmm(indptr, indices, eids, cols, lhs, rhs, op, lhs_target, rhs_target, src_scale, dst_scale) -> Tensor:
    lhs, rhs = _contiguous(lhs), _contiguous(rhs)
    a, b = (rhs if lhs is None else lhs), (lhs if rhs is None else rhs)
    p = plan(a.shape[1:], b.shape[1:], op == "dot")
    out = a.new_empty((indices.shape[0], *p.shape))
    _C.sddmm(
        *_rows(indptr, indices, eids, cols),
        DTYPES[a.dtype],
        SDDMM_OPS[op],
        *p.arguments(),
        _address(lhs),
        _width(lhs),
        TARGETS[lhs_target],
        _address(rhs),
        _width(rhs),
        TARGETS[rhs_target],
        _address(src_scale),
        _address(dst_scale),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def edge_softmax(indptr, indices, eids, logits) -> Tensor:
    return _edge_softmax(indptr, indices, eids, logits, None)


def edge_softmax_backward(indptr, indices, eids, logits, grad) -> Tensor:
    return _edge_softmax(indptr, indices, eids, logits, grad)


def _edge_softmax(indptr, indices, eids, logits, grad) -> Tensor:
    logits, grad = logits.contiguous(), _contiguous(grad)
    out = torch.empty_like(logits)
    _C.edge_softmax(
        *_rows(indptr, indices, eids, 0),
        DTYPES[logits.dtype],
        _width(logits),
        logits.data_ptr(),
        _address(grad),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def gat_attention(indptr, indices, h, el, er, negative_slope) -> tuple[Tensor, Tensor, Tensor]:
    h, el, er = h.contiguous(), el.contiguous(), er.contiguous()
    rows, heads, dim = indptr.shape[0] - 1, *h.shape[1:]
    out, largest, total = h.new_empty((rows, heads, dim)), torch.empty_like(er), torch.empty_like(er)
    at, ends, _, *sizes = _rows(indptr, indices, None, h.shape[0])
    _C.attention(
        *(at, ends, *sizes, DTYPES[h.dtype], heads, dim, negative_slope),
        *(h.data_ptr(), el.data_ptr(), er.data_ptr(), out.data_ptr(), largest.data_ptr(), total.data_ptr()),
        torch.get_num_threads(),
    )
    return out, largest, total


def gat_attention_backward(rindptr, rindices, h, el, er, out, largest, total, grad, negative_slope):
    h, el, grad = h.contiguous(), el.contiguous(), grad.contiguous()
    heads, dim = h.shape[1:]
    parts = _parts(rindices)
    delta, grad_h, grad_el = er.new_empty(er.shape), torch.empty_like(h), torch.empty_like(el)
    sums = er.new_zeros((parts, *er.shape, 4))
    threads = torch.get_num_threads()
    _C.row_dot(
        DTYPES[h.dtype], er.numel(), dim, grad.data_ptr(), out.contiguous().data_ptr(), delta.data_ptr(), threads
    )
    dst = torch.stack((er, largest, total.reciprocal(), delta), -1)
    at, ends, _, *sizes = _rows(rindptr, rindices, None, er.shape[0])
    _C.attention_backward(
        *(at, ends, *sizes, DTYPES[h.dtype], heads, dim, negative_slope, h.data_ptr(), el.data_ptr(), dst.data_ptr()),
        *(grad.data_ptr(), grad_h.data_ptr(), grad_el.data_ptr(), sums.data_ptr(), er.shape[0], parts, threads),
    )
    grad_er, error, slopes, _ = (sums[0] if parts == 1 else sums.sum(0)).unbind(-1)
    if h.dtype not in (torch.float16, torch.bfloat16):  # the stored output was not rounded
        return grad_h, grad_el, grad_er.contiguous()
    dst[..., 3] = error
    _C.correct_grad_el(
        *(at, ends, *sizes, DTYPES[h.dtype], heads, negative_slope, el.data_ptr(), dst.data_ptr(), grad_el.data_ptr()),
        threads,
    )
    return grad_h, grad_el, grad_er - error * slopes


def gatv2_attention(indptr, indices, h, h_dst, attn, negative_slope) -> tuple[Tensor, Tensor, Tensor]:
    return _pair_attention(indptr, indices, h, h_dst, attn.to(accumulator(h.dtype)), False, negative_slope)


def gatv2_attention_backward(
    indptr, indices, rindptr, rindices, h, h_dst, attn, out, largest, total, grad, negative_slope
) -> tuple[Tensor, Tensor, Tensor]:
    graph, parts = (indptr, indices, rindptr, rindices), _parts(indices)
    grad_attn = h.new_zeros((parts, *attn.shape), dtype=torch.float64)
    kept = attn.to(accumulator(h.dtype)), out, largest, total, grad
    grads = _pair_attention_backward(*graph, h, h_dst, *kept, False, negative_slope, grad_attn, parts)
    return *grads, grad_attn.sum(0).to(attn.dtype)


def dot_attention(indptr, indices, h, h_dst, scale) -> tuple[Tensor, Tensor, Tensor]:
    return _pair_attention(indptr, indices, h, h_dst, _scales(h, scale), True, 0.0)


def dot_attention_backward(
    indptr, indices, rindptr, rindices, h, h_dst, out, largest, total, grad, scale
) -> tuple[Tensor, Tensor]:
    graph, kept = (indptr, indices, rindptr, rindices), (_scales(h, scale), out, largest, total, grad)
    return _pair_attention_backward(*graph, h, h_dst, *kept, True, 0.0, None, 0)


def _scales(h: Tensor, scale: float) -> Tensor:
    return h.new_full(h.shape[1:], scale, dtype=accumulator(h.dtype))


def _pair_attention(indptr, indices, h, h_dst, factor, product, negative_slope):
    h, h_dst, factor = h.contiguous(), h_dst.contiguous(), factor.contiguous()
    out = torch.empty_like(h_dst)
    largest, total = (factor.new_empty(h_dst.shape[:2]) for _ in range(2))
    at, ends, _, *sizes = _rows(indptr, indices, None, h.shape[0])
    _C.pair_attention(
        *(at, ends, *sizes, DTYPES[h.dtype], *h.shape[1:], product, negative_slope, factor.data_ptr(), h.data_ptr()),
        *(h_dst.data_ptr(), out.data_ptr(), largest.data_ptr(), total.data_ptr(), torch.get_num_threads()),
    )
    return out, largest, total


def _pair_attention_backward(
    indptr, indices, rindptr, rindices, h, h_dst, factor, out, largest, total, grad, product, slope, grad_factor, parts
) -> tuple[Tensor, Tensor]:
    h, h_dst, factor, out, grad = (t.contiguous() for t in (h, h_dst, factor, out, grad))
    grad_h, grad_h_dst = torch.empty_like(h), torch.empty_like(h_dst)
    of_destinations = total.new_empty((total.shape[0], 3, total.shape[1]))
    at, ends, _, *sizes = _rows(indptr, indices, None, h.shape[0])
    _C.pair_attention_backward(
        *(at, ends, *sizes, rindptr.data_ptr(), rindices.data_ptr(), DTYPES[h.dtype], *h.shape[1:], product, slope),
        *(t.data_ptr() for t in (factor, h, h_dst, out, largest, total, grad, of_destinations, grad_h, grad_h_dst)),
        *(_address(grad_factor), parts, torch.get_num_threads()),
    )
    return grad_h, grad_h_dst


def arg_scatter(indptr, indices, eids, grad, arg, op, target, rows) -> Tensor:
    """Each value of ``grad`` (N, *) added to the row, of ``rows``, of its source ("u") or edge ("e"), which ``arg`` (N, *)
    tells as ``op``'s spmm has left it there: a backend's spmm and arg_scatter agree on what that is."""
    ids = {"u": indices, "e": eids}[target]
    if op not in ("copy_u", "copy_e") and ids is not None:  # arg names entries
        arg = torch.where(arg < 0, arg, ids[arg.clamp(min=0)])
    grad, arg = grad.contiguous(), arg.contiguous()
    out = grad.new_zeros((rows, *grad.shape[1:]))
    _C.arg_scatter(
        DTYPES[grad.dtype],
        arg.dtype == torch.int64,
        target == "e",
        grad.shape[0],
        _width(grad),
        grad.data_ptr(),
        arg.data_ptr(),
        out.data_ptr(),
        rows,
        torch.get_num_threads(),
    )
    return out


def head_dot(h, a) -> Tensor:
    h, a = h.contiguous(), a.contiguous()
    out = a.new_empty((a.shape[0], *h.shape[:2]))
    _C.head_dot(DTYPES[h.dtype], a.shape[0], *h.shape, *(t.data_ptr() for t in (h, a, out)), torch.get_num_threads())
    return out


def head_dot_backward(h, a, grad) -> tuple[Tensor, Tensor]:
    h, a, grad = h.contiguous(), a.contiguous(), grad.contiguous()
    parts = _parts(h, ROWS_PER_PART, MAX_ROW_PARTS)
    grad_h, sums = torch.empty_like(h), a.new_zeros((parts, *a.shape), dtype=torch.float64)
    addresses = (t.data_ptr() for t in (h, a, grad, grad_h, sums))
    _C.head_dot_backward(DTYPES[h.dtype], a.shape[0], *h.shape, *addresses, parts, torch.get_num_threads())
    return grad_h, sums.sum(0).to(a.dtype)
