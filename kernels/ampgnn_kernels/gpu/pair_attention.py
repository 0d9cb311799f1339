"""Fused attention whose logits read the whole rows of both ends: GATv2 and dot products.

A logit costs as much as the row it weighs, so each row is gathered once: every place of a tile keeps a softmax of its
own (largest logit, sum, weighted sum) that is rescaled when its largest logit grows, and places are joined at the end.
The backward pass is that of ``attention.py``, with gradients of both ends' rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cpu import accumulator
from .attention import combine_parts, dim_tile, leaky, slope_at, store_attention, warps
from .rows import combine
from .schedule import schedule_of
from .tiles import PARTIALS, WARPS, exp_difference, launch, load_columns, load_pieces, tile


def gatv2_attention(indptr, indices, rindptr, rindices, h, h_dst, attn, negative_slope):
    """As ``ops``'s formula of GATv2 attention, on the GPU."""
    return _forward(indptr, indices, h, h_dst, attn, negative_slope)


def dot_attention(indptr, indices, rindptr, rindices, h, h_dst, scale):
    """As ``ops``'s formula of dot-product attention, on the GPU."""
    return _forward(indptr, indices, h, h_dst, None, scale)


def gatv2_attention_backward(
    indptr, indices, rindptr, rindices, h, h_dst, attn, out, largest, total, grad, negative_slope
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(indptr, indices, rindptr, rindices, h, h_dst, attn, out, largest, total, grad, negative_slope)


def dot_attention_backward(
    indptr, indices, rindptr, rindices, h, h_dst, out, largest, total, grad, scale
) -> tuple[Tensor, Tensor]:
    return _backward(indptr, indices, rindptr, rindices, h, h_dst, None, out, largest, total, grad, scale)[:2]


def _forward(indptr, indices, h, h_dst, attn, factor) -> tuple[Tensor, Tensor, Tensor]:
    h, h_dst = h.contiguous(), h_dst.contiguous()
    attn = None if attn is None else attn.contiguous()
    rows, heads, dim = h_dst.shape
    out = torch.empty_like(h_dst)
    largest, total = h.new_empty((2, rows, heads), dtype=accumulator(h.dtype)).unbind()
    schedule = schedule_of(indptr, indices)
    partial = largest.new_empty((schedule.split, heads, dim))
    partial_largest, partial_total = largest.new_empty((2, schedule.split, heads)).unbind()
    shape = tile(schedule, dim, h.itemsize, loads=2, most_columns=dim_tile(dim))
    launch(
        pair_pieces,
        triton.cdiv(schedule.pieces, shape["R"]) * heads,
        *(indices, *schedule[:3], schedule.pieces, schedule.split, h, h_dst, attn, float(factor), heads, dim),
        *(out, largest, total, partial, partial_largest, partial_total),
        **{**shape, "num_warps": warps(shape)},
    )
    combine_parts(schedule, partial, partial_largest, partial_total, out, largest, total)
    return out, largest, total


def _backward(indptr, indices, rindptr, rindices, h, h_dst, attn, out, largest, total, grad, factor):
    h, h_dst, grad, out = (t.contiguous() for t in (h, h_dst, grad, out))
    attn = None if attn is None else attn.contiguous()
    heads, dim = h.shape[1:]
    ends = (h, h_dst, attn, float(factor), heads, dim, largest, total, grad)

    delta, grad_dst = torch.empty_like(total), torch.empty_like(h_dst)
    schedule = schedule_of(indptr, indices)
    partial = total.new_empty((2, schedule.split, heads, dim))
    partial_centred = total.new_empty((schedule.split, heads))
    shape = tile(schedule, dim, h.itemsize, loads=2, most_columns=dim_tile(dim))
    launch(
        pair_backward_destinations,
        triton.cdiv(schedule.pieces, shape["R"]) * heads,
        *(indices, *schedule[:3], schedule.pieces, schedule.split, *ends, out, delta, grad_dst),
        *(*partial, partial_centred),
        **{**shape, "num_warps": warps(shape)},
    )
    launch(
        combine_pair_destinations,
        schedule.split_row.shape[0] * heads,
        *(schedule.split_row, schedule.split_first, attn, float(factor), heads, dim, grad, out, delta, grad_dst),
        *(*partial, partial_centred),
        **{"B": PARTIALS, "F": dim_tile(dim), "num_warps": WARPS},
    )

    grad_h = torch.empty_like(h)
    schedule = schedule_of(rindptr, rindices)
    partial = total.new_empty((schedule.split, heads * dim))
    shape = tile(schedule, dim, h.itemsize, loads=2 if attn is None else 1, most_columns=dim_tile(dim))
    programs = triton.cdiv(schedule.pieces, shape["R"])
    grad_attn = None if attn is None else total.new_empty((programs, heads, dim))
    launch(
        pair_backward_sources,
        programs * heads,
        *(rindices, *schedule[:3], schedule.pieces, schedule.split, *ends, delta, grad_h, partial, grad_attn),
        **{**shape, "num_warps": warps(shape)},
    )
    combine(schedule, rindptr, partial, grad_h)
    return grad_h, grad_dst, None if attn is None else grad_attn.sum(0).to(attn.dtype)


@triton.jit
def pair_logit(x, y, vector, factor):
    """Logits (R, E) of the rows x and y at an edge's ends: GATv2's where there is a vector, else dot products."""
    return tl.sum(x * y, 2) * factor if vector is None else tl.sum(leaky(x + y, factor) * vector, 2)


@triton.jit
def load_vector(attn, head, i, dim, like):
    if attn is None:
        vector = None
    else:
        vector = tl.load(attn + head * dim + i, mask=i < dim, other=0).to(like.dtype)[None, None, :]
    return vector


@triton.jit
def pair_pieces(
    indices, row, start, stop, pieces, split, h, h_dst, attn, factor: tl.float64, heads, dim,
    out, largest, total, partial, partial_largest, partial_total,
    R: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    low: tl.constexpr = float("-inf")
    head = tl.program_id(0) % heads
    i = tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, tl.program_id(0) // heads * R, pieces, R)
    top = tl.full([R, E], low, partial.dtype.element_ty)
    weights = tl.zeros([R, E], top.dtype)
    acc = tl.zeros([R, E, F], top.dtype)
    factor = tl.cast(factor, top.dtype)
    vector = load_vector(attn, head, i, dim, top)
    y = load_columns(h_dst, ((r * heads + head) * dim)[:, None], i, dim, here[:, None], 1).to(top.dtype)
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        u = tl.load(indices + k, mask=edge, other=0).to(tl.int64)
        x = load_columns(h, (u * heads + head) * dim, i, dim, edge, 1).to(top.dtype)
        logit = tl.where(edge, pair_logit(x, y, vector, factor), low)
        higher = tl.where(logit > top, logit, top)
        base = tl.where(higher == low, 0, higher)
        w = tl.where(edge, exp_difference(logit, base), 0)
        shrink = exp_difference(top, base)
        weights = weights * shrink + w
        acc = acc * shrink[:, :, None] + w[:, :, None] * x
        top = higher
    highest = tl.max(top, 1)
    shrink = exp_difference(top, tl.where(highest == low, 0, highest)[:, None])
    store_attention(
        tl.sum(acc * shrink[:, :, None], 1), tl.sum(weights * shrink, 1), highest,
        piece, here, r, k1 - k0, i, head, split, heads, dim,
        out, largest, total, partial, partial_largest, partial_total,
    )  # fmt: skip


@triton.jit
def pair_backward_destinations(
    indices, row, start, stop, pieces, split, h, h_dst, attn, factor: tl.float64, heads, dim, largest, total, grad,
    out, delta, grad_dst, partial, partial_mean, partial_centred,
    R: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """The rows' D, and the gradient of the logits with respect to their own end."""
    head = tl.program_id(0) % heads
    i = tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, tl.program_id(0) // heads * R, pieces, R)
    at = r * heads + head
    top = tl.load(largest + at, mask=here, other=0)
    inverse = 1 / tl.load(total + at, mask=here, other=1)
    factor = tl.cast(factor, top.dtype)
    vector = load_vector(attn, head, i, dim, top)
    y = load_columns(h_dst, (at * dim)[:, None], i, dim, here[:, None], 1).to(top.dtype)
    g = load_columns(grad, (at * dim)[:, None], i, dim, here[:, None], 1).to(top.dtype)
    stored = load_columns(out, (at * dim)[:, None], i, dim, here[:, None], 1).to(top.dtype)
    near = tl.sum(g * stored, 2)  # (R, 1)
    acc = tl.zeros([R, E, F], top.dtype)
    mean = tl.zeros([R, E, F], top.dtype)
    centred = tl.zeros([R, E], top.dtype)
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        u = tl.load(indices + k, mask=edge, other=0).to(tl.int64)
        x = load_columns(h, (u * heads + head) * dim, i, dim, edge, 1).to(top.dtype)
        a = tl.where(edge, exp_difference(pair_logit(x, y, vector, factor), top[:, None]) * inverse[:, None], 0)
        c = tl.where(edge, a * (tl.sum(x * g, 2) - near), 0)
        centred += c
        slope = x if attn is None else slope_at(x + y, factor)
        acc += c[:, :, None] * slope
        mean += a[:, :, None] * slope
    acc = tl.sum(acc, 1)
    mean = tl.sum(mean, 1)
    centred = tl.sum(centred, 1)
    near = tl.sum(near, 1)
    own = acc - centred[:, None] * mean
    own *= factor if attn is None else tl.sum(vector, 1)
    mask = here & (piece >= split)
    tl.store(delta + at, near + centred, mask=mask)
    tl.store(grad_dst + (at * dim)[:, None] + i[None, :], own, mask=mask[:, None] & (i < dim)[None, :])
    at = piece.to(tl.int64) * heads + head
    mask = here & (piece < split)
    tl.store(partial_centred + at, centred, mask=mask)
    mask = mask[:, None] & (i < dim)[None, :]
    tl.store(partial + (at * dim)[:, None] + i[None, :], acc, mask=mask)
    tl.store(partial_mean + (at * dim)[:, None] + i[None, :], mean, mask=mask)


@triton.jit
def combine_pair_destinations(
    split_row, split_first, attn, factor: tl.float64, heads, dim, grad, out, delta, grad_dst,
    partial, partial_mean, partial_centred, B: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    i = tl.arange(0, F)
    first, last = tl.load(split_first + j), tl.load(split_first + j + 1)
    centred = tl.zeros([B], partial.dtype.element_ty)
    acc = tl.zeros([B, F], centred.dtype)
    mean = tl.zeros([B, F], centred.dtype)
    for step in range(0, last - first, B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        at = p * heads + head
        mask = (p < last)[:, None] & (i < dim)[None, :]
        centred += tl.load(partial_centred + at, mask=p < last, other=0)
        acc += tl.load(partial + (at * dim)[:, None] + i[None, :], mask=mask, other=0)
        mean += tl.load(partial_mean + (at * dim)[:, None] + i[None, :], mask=mask, other=0)
    centred = tl.sum(centred, 0)
    own = tl.sum(acc, 0) - centred * tl.sum(mean, 0)
    if attn is None:
        own = own * tl.cast(factor, centred.dtype)
    else:
        own = own * tl.load(attn + head * dim + i, mask=i < dim, other=0).to(centred.dtype)
    at = tl.load(split_row + j).to(tl.int64) * heads + head
    g = tl.load(grad + at * dim + i, mask=i < dim, other=0).to(centred.dtype)
    near = tl.sum(g * tl.load(out + at * dim + i, mask=i < dim, other=0).to(centred.dtype), 0)
    tl.store(delta + at, near + centred)
    tl.store(grad_dst + at * dim + i, own, mask=i < dim)


@triton.jit
def pair_backward_sources(
    indices, row, start, stop, pieces, split, h, h_dst, attn, factor: tl.float64, heads, dim, largest, total, grad,
    delta, grad_h, partial, grad_attn, R: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Rows are sources: gradients through the sum and through the logits; the program's share of attn's gradient."""
    head = tl.program_id(0) % heads
    i = tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, tl.program_id(0) // heads * R, pieces, R)
    at = r * heads + head
    acc = tl.zeros([R, E, F], partial.dtype.element_ty)
    of_vector = tl.zeros([R, E, F], acc.dtype)
    factor = tl.cast(factor, acc.dtype)
    vector = load_vector(attn, head, i, dim, acc)
    x = load_columns(h, (at * dim)[:, None], i, dim, here[:, None], 1).to(acc.dtype)
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        v = tl.load(indices + k, mask=edge, other=0).to(tl.int64) * heads + head
        y = load_columns(h_dst, v * dim, i, dim, edge, 1).to(acc.dtype)
        g = load_columns(grad, v * dim, i, dim, edge, 1).to(acc.dtype)
        a = exp_difference(pair_logit(x, y, vector, factor), tl.load(largest + v, mask=edge, other=0))
        a = tl.where(edge, a / tl.load(total + v, mask=edge, other=1), 0)
        d = tl.where(edge, a * (tl.sum(g * x, 2) - tl.load(delta + v, mask=edge, other=0)), 0)[:, :, None]
        if attn is None:
            acc += a[:, :, None] * g + d * factor * y
        else:
            acc += a[:, :, None] * g + d * vector * slope_at(x + y, factor)
            of_vector += d * leaky(x + y, factor)
    acc = tl.sum(acc, 1)
    mask = here & (piece >= split)
    tl.store(grad_h + (at * dim)[:, None] + i[None, :], acc, mask=mask[:, None] & (i < dim)[None, :])
    at = piece.to(tl.int64) * heads + head
    mask = here & (piece < split)
    tl.store(partial + (at * dim)[:, None] + i[None, :], acc, mask=mask[:, None] & (i < dim)[None, :])
    if attn is not None:
        at = tl.program_id(0).to(tl.int64) * dim + i  # programs are (pieces, heads)
        tl.store(grad_attn + at, tl.sum(tl.sum(of_vector, 1), 0), mask=i < dim)
