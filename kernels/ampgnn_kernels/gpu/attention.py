"""Fused GAT attention: nothing is kept per edge, the backward pass makes the weights anew from max and sum.

One program handles one head of its pieces. The gradient of a logit is a (d - D) slope, d = grad[v] . h[u] and D the
row's mean of d under the weights a. D differs from the dot product of grad[v] with the stored output by that output's
rounding, so the pass over destinations finds D itself, and with it the gradient of er; the pass over sources then
needs no correction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rows import combine
from .schedule import Schedule, schedule_of
from .tiles import PARTIALS, WARPS, exp_difference, launch, load_columns, load_pieces, tile

LOGITS = 256  # of a program, looked at at once for their maximum


def gat_attention(indptr, indices, rindptr, rindices, h, el, er, negative_slope) -> tuple[Tensor, Tensor, Tensor]:
    """As ``cpu.gat_attention``, on the GPU."""
    h, el, er = h.contiguous(), el.contiguous(), er.contiguous()
    rows, heads, dim = indptr.shape[0] - 1, *h.shape[1:]
    out, largest, total = h.new_empty((rows, heads, dim)), torch.empty_like(er), torch.empty_like(er)
    schedule = schedule_of(indptr, indices)
    partial = er.new_empty((schedule.split, heads, dim))
    partial_largest, partial_total = er.new_empty((2, schedule.split, heads))
    shape = tile(schedule, dim, h.itemsize, most_columns=dim_tile(dim))
    launch(
        attention_pieces,
        triton.cdiv(schedule.pieces, shape["R"]) * heads,
        *(indices, *schedule[:3], schedule.pieces, schedule.split, h, el, er, out, largest, total),
        *(partial, partial_largest, partial_total, heads, dim, float(negative_slope)),
        **{**shape, "S": max(LOGITS // shape["R"], 1), "num_warps": warps(shape)},
    )
    combine_parts(schedule, partial, partial_largest, partial_total, out, largest, total)
    return out, largest, total


def gat_attention_backward(
    indptr, indices, rindptr, rindices, h, el, er, out, largest, total, grad, negative_slope
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``cpu.gat_attention_backward``, on the GPU."""
    h, el, er, grad, out = (t.contiguous() for t in (h, el, er, grad, out))
    heads, dim = h.shape[1:]
    kept = (el, er, largest, total, float(negative_slope), heads, dim)

    delta, grad_er = torch.empty_like(er), torch.empty_like(er)
    schedule = schedule_of(indptr, indices)
    partial = er.new_empty((schedule.split, heads, 4))
    shape = tile(schedule, dim, h.itemsize, most_columns=dim_tile(dim))
    launch(
        attention_backward_destinations,
        triton.cdiv(schedule.pieces, shape["R"]) * heads,
        *(indices, *schedule[:3], schedule.pieces, schedule.split, h, grad, out, *kept, delta, grad_er, partial),
        **{**shape, "num_warps": warps(shape)},
    )
    launch(
        combine_destinations,
        schedule.split_row.shape[0] * heads,
        *(schedule.split_row, schedule.split_first, partial, delta, grad_er, heads),
        **{"B": 128, "num_warps": WARPS},
    )

    grad_h, grad_el = torch.empty_like(h), torch.empty_like(el)
    schedule = schedule_of(rindptr, rindices)
    partial_h, partial_el = er.new_empty((schedule.split, heads * dim)), er.new_empty((schedule.split, heads))
    shape = tile(schedule, dim, h.itemsize, loads=2, most_columns=dim_tile(dim))
    launch(
        attention_backward_sources,
        triton.cdiv(schedule.pieces, shape["R"]) * heads,
        *(rindices, *schedule[:3], schedule.pieces, schedule.split, h, grad, *kept, delta, grad_h, grad_el),
        *(partial_h, partial_el),
        **{**shape, "num_warps": warps(shape)},
    )
    combine(schedule, rindptr, partial_h, grad_h)
    combine(schedule, rindptr, partial_el, grad_el)
    return grad_h, grad_el, grad_er


def combine_parts(schedule: Schedule, partial, partial_largest, partial_total, out, largest, total) -> None:
    """The second pass of attention: the split rows' results."""
    heads, dim = out.shape[1:]
    launch(
        combine_attention,
        schedule.split_row.shape[0] * heads,
        *(schedule.split_row, schedule.split_first, partial, partial_largest, partial_total, out, largest, total),
        *(heads, dim),
        **{"B": PARTIALS, "F": dim_tile(dim), "num_warps": WARPS},
    )


def dim_tile(dim: int) -> int:
    """Columns of a tile that holds a whole head."""
    return triton.next_power_of_2(max(dim, 1))


def warps(shape: dict[str, int]) -> int:
    """More for a head so wide that one edge of it fills a tile."""
    return min(16, WARPS * max(1, shape["F"] // 2048))


@triton.jit
def leaky(x, slope):
    return tl.where(x < 0, x * slope, x)


@triton.jit
def slope_at(x, slope):
    return tl.where(x > 0, 1.0, slope).to(x.dtype)


@triton.jit
def attention_pieces(
    indices, row, start, stop, pieces, split, h, el, er, out, largest, total,
    partial, partial_largest, partial_total, heads, dim, slope: tl.float64,
    R: tl.constexpr, E: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    low: tl.constexpr = float("-inf")
    head = tl.program_id(0) % heads
    i = tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, tl.program_id(0) // heads * R, pieces, R)
    right = tl.load(er + r * heads + head, mask=here, other=0)
    slope = tl.cast(slope, right.dtype)
    longest = tl.max(k1 - k0)

    top = tl.full([R, S], low, right.dtype)
    for step in range(0, longest, S):
        k = k0[:, None] + step + tl.arange(0, S)[None, :]
        edge = k < k1[:, None]
        u = tl.load(indices + k, mask=edge, other=0).to(tl.int64)
        logit = leaky(tl.load(el + u * heads + head, mask=edge, other=0) + right[:, None], slope)
        top = tl.maximum(top, tl.where(edge, logit, low))
    top = tl.max(top, 1)
    # A part of a row whose logits are all -inf adds nothing to it; a whole row of such has no weights.
    base = tl.where((top == low) & (piece < split), 0, top)

    weights = tl.zeros([R, E], right.dtype)
    acc = tl.zeros([R, E, F], right.dtype)
    for step in range(0, longest, E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        u = tl.load(indices + k, mask=edge, other=0).to(tl.int64)
        x = load_columns(h, (u * heads + head) * dim, i, dim, edge, 1).to(right.dtype)
        logit = leaky(tl.load(el + u * heads + head, mask=edge, other=0) + right[:, None], slope)
        w = tl.where(edge, exp_difference(logit, base[:, None]), 0)
        weights += w
        acc += w[:, :, None] * x
    weights = tl.sum(weights, 1)
    acc = tl.sum(acc, 1)

    store_attention(
        acc, weights, top, piece, here, r, k1 - k0, i, head, split, heads, dim,
        out, largest, total, partial, partial_largest, partial_total,
    )  # fmt: skip


@triton.jit
def store_attention(
    acc, weights, top, piece, here, r, degree, i, head, split, heads, dim,
    out, largest, total, partial, partial_largest, partial_total,
):  # fmt: skip
    """Stores the pieces' weighted sums (R, F), sums of weights and largest logits: as results or as parts of rows."""
    at = r * heads + head
    mask = here & (piece >= split)
    tl.store(largest + at, top, mask=mask)
    tl.store(total + at, weights, mask=mask)
    done = tl.where((degree > 0)[:, None], acc * (1 / weights)[:, None], 0)
    tl.store(out + (at * dim)[:, None] + i[None, :], done, mask=mask[:, None] & (i < dim)[None, :])
    at = piece.to(tl.int64) * heads + head
    mask = here & (piece < split)
    tl.store(partial_largest + at, top, mask=mask)
    tl.store(partial_total + at, weights, mask=mask)
    tl.store(partial + (at * dim)[:, None] + i[None, :], acc, mask=mask[:, None] & (i < dim)[None, :])


@triton.jit
def combine_attention(
    split_row, split_first, partial, partial_largest, partial_total, out, largest, total, heads, dim,
    B: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    low: tl.constexpr = float("-inf")
    j = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    i = tl.arange(0, F)
    first, last = tl.load(split_first + j), tl.load(split_first + j + 1)
    top = tl.full([B], low, partial.dtype.element_ty)
    for step in range(0, last - first, B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        top = tl.maximum(top, tl.load(partial_largest + p * heads + head, mask=p < last, other=low))
    top = tl.max(top, 0)
    weights = tl.zeros([B], partial.dtype.element_ty)
    acc = tl.zeros([B, F], partial.dtype.element_ty)
    for step in range(0, last - first, B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        at = p * heads + head
        w = exp_difference(tl.load(partial_largest + at, mask=p < last, other=low), top)
        w = tl.where(p < last, w, 0)
        weights += w * tl.load(partial_total + at, mask=p < last, other=0)
        mask = (p < last)[:, None] & (i < dim)[None, :]
        acc += w[:, None] * tl.load(partial + (at * dim)[:, None] + i[None, :], mask=mask, other=0)
    weights = tl.sum(weights, 0)
    at = tl.load(split_row + j).to(tl.int64) * heads + head
    tl.store(largest + at, top)
    tl.store(total + at, weights)
    tl.store(out + at * dim + i, tl.sum(acc, 0) * (1 / weights), mask=i < dim)


@triton.jit
def attention_backward_destinations(
    indices, row, start, stop, pieces, split, h, grad, out, el, er, largest, total, slope: tl.float64, heads, dim,
    delta, grad_er, partial, R: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """The rows' D and gradient of er; of parts of rows what they are made of."""
    head = tl.program_id(0) % heads
    i = tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, tl.program_id(0) // heads * R, pieces, R)
    at = r * heads + head
    right = tl.load(er + at, mask=here, other=0)
    slope = tl.cast(slope, right.dtype)
    top = tl.load(largest + at, mask=here, other=0)
    inverse = 1 / tl.load(total + at, mask=here, other=1)
    g = load_columns(grad, (at * dim)[:, None], i, dim, here[:, None], 1).to(right.dtype)
    near = tl.sum(g * load_columns(out, (at * dim)[:, None], i, dim, here[:, None], 1).to(right.dtype), 2)  # (R, 1)

    centred = tl.zeros([R, E], right.dtype)
    sloped = tl.zeros([R, E], right.dtype)
    slopes = tl.zeros([R, E], right.dtype)
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        u = tl.load(indices + k, mask=edge, other=0).to(tl.int64)
        d = tl.sum(load_columns(h, (u * heads + head) * dim, i, dim, edge, 1).to(right.dtype) * g, 2)
        x = tl.load(el + u * heads + head, mask=edge, other=0) + right[:, None]
        a = tl.where(edge, exp_difference(leaky(x, slope), top[:, None]) * inverse[:, None], 0)
        c = tl.where(edge, a * (d - near), 0)
        centred += c
        sloped += c * slope_at(x, slope)
        slopes += a * slope_at(x, slope)
    near = tl.sum(near, 1)
    centred = tl.sum(centred, 1)
    sloped = tl.sum(sloped, 1)
    slopes = tl.sum(slopes, 1)

    mask = here & (piece >= split)
    tl.store(delta + at, near + centred, mask=mask)
    tl.store(grad_er + at, sloped - centred * slopes, mask=mask)
    at = partial + (piece.to(tl.int64) * heads + head) * 4
    mask = here & (piece < split)
    tl.store(at, near, mask=mask)
    tl.store(at + 1, centred, mask=mask)
    tl.store(at + 2, sloped, mask=mask)
    tl.store(at + 3, slopes, mask=mask)


@triton.jit
def combine_destinations(split_row, split_first, partial, delta, grad_er, heads, B: tl.constexpr):
    j = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, last = tl.load(split_first + j), tl.load(split_first + j + 1)
    near = tl.load(partial + (first.to(tl.int64) * heads + head) * 4)
    centred = tl.zeros([B], partial.dtype.element_ty)
    sloped = tl.zeros([B], partial.dtype.element_ty)
    slopes = tl.zeros([B], partial.dtype.element_ty)
    for step in range(0, last - first, B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        at = partial + (p * heads + head) * 4
        centred += tl.load(at + 1, mask=p < last, other=0)
        sloped += tl.load(at + 2, mask=p < last, other=0)
        slopes += tl.load(at + 3, mask=p < last, other=0)
    centred = tl.sum(centred, 0)
    at = tl.load(split_row + j).to(tl.int64) * heads + head
    tl.store(delta + at, near + centred)
    tl.store(grad_er + at, tl.sum(sloped, 0) - centred * tl.sum(slopes, 0))


@triton.jit
def attention_backward_sources(
    indices, row, start, stop, pieces, split, h, grad, el, er, largest, total, slope: tl.float64, heads, dim,
    delta, grad_h, grad_el, partial_h, partial_el, R: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Rows are sources: each gathers the gradients of its destinations once."""
    head = tl.program_id(0) % heads
    i = tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, tl.program_id(0) // heads * R, pieces, R)
    at = r * heads + head
    left = tl.load(el + at, mask=here, other=0)
    slope = tl.cast(slope, left.dtype)
    x = load_columns(h, (at * dim)[:, None], i, dim, here[:, None], 1).to(left.dtype)
    acc = tl.zeros([R, E, F], left.dtype)
    of_logit = tl.zeros([R, E], left.dtype)
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        v = tl.load(indices + k, mask=edge, other=0).to(tl.int64) * heads + head
        g = load_columns(grad, v * dim, i, dim, edge, 1).to(left.dtype)
        d = tl.sum(g * x, 2)
        z = left[:, None] + tl.load(er + v, mask=edge, other=0)
        a = exp_difference(leaky(z, slope), tl.load(largest + v, mask=edge, other=0))
        a = tl.where(edge, a / tl.load(total + v, mask=edge, other=1), 0)
        of_logit += tl.where(edge, a * (d - tl.load(delta + v, mask=edge, other=0)) * slope_at(z, slope), 0)
        acc += a[:, :, None] * g
    acc = tl.sum(acc, 1)
    of_logit = tl.sum(of_logit, 1)
    mask = here & (piece >= split)
    tl.store(grad_el + at, of_logit, mask=mask)
    tl.store(grad_h + (at * dim)[:, None] + i[None, :], acc, mask=mask[:, None] & (i < dim)[None, :])
    at = piece.to(tl.int64) * heads + head
    mask = here & (piece < split)
    tl.store(partial_el + at, of_logit, mask=mask)
    tl.store(partial_h + (at * dim)[:, None] + i[None, :], acc, mask=mask[:, None] & (i < dim)[None, :])
