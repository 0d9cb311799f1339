"""The largest or smallest message of each row's edges, and the gradient's way back to the edge it came from.

Of equal messages that of the smallest edge id counts, in whatever order a row's entries lie, so the kernels note edge
ids; the operator's ``arg`` is the entry with that id.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cpu import accumulator
from .rows import combine, store_rows
from .schedule import Schedule, entry_of, schedule_of
from .tiles import (
    PARTIALS,
    WARPS,
    apply_op,
    edge_ids,
    launch,
    load_columns,
    load_pieces,
    messages,
    narrow_tile,
    tile,
)


def extreme(schedule: Schedule, indptr, indices, eids, x, w, op, reduce, with_arg) -> tuple[Tensor, Tensor]:
    """The first extreme of each row and, ``with_arg``, its entry, -1 for a row without any."""
    m = messages(schedule, indices, x, w, op, loads=2)
    width = m.columns.width
    out = m.like.new_empty((indptr.shape[0] - 1, *m.columns.plan.shape))
    arg = indices.new_empty(out.shape if with_arg else (0,))
    partial = out.new_empty((schedule.split, width), dtype=accumulator(out.dtype))
    entries = entry_of(eids) if with_arg and eids is not None else None
    results = (out, arg if with_arg else None, entries, partial, indices.new_empty(partial.shape), indices.shape[0])
    largest = reduce == "max"
    launch(extreme_pieces, m.programs, eids, *m.args, *results, **m.meta, MAX=largest)
    f = narrow_tile(width)
    blocks = triton.cdiv(width, f)
    launch(
        combine_extremes,
        schedule.split_row.shape[0] * blocks,
        *(schedule.split_row, schedule.split_first, *results, width, blocks),
        **{"B": PARTIALS, "F": f, "MAX": largest, "num_warps": WARPS},
    )
    return out, arg


@triton.jit
def take(best, arg, value, k, mask, none, MAX: tl.constexpr):
    """The better of a place's best, whose arg is ``none`` before there is one, and another: NaN beats all."""
    ahead = value > best if MAX else value < best
    ahead = ahead | ((value != value) & (best == best))
    equal = (value == best) | ((value != value) & (best != best))
    better = mask & ((arg == none) | ahead | (equal & (k < arg)))
    return tl.where(better, value, best), tl.where(better, k, arg)


@triton.jit
def first_extreme(value, arg, none, AXIS: tl.constexpr, MAX: tl.constexpr):
    """The NaN of the smallest arg along AXIS, or the extreme of the smallest arg, and that arg."""
    low: tl.constexpr = float("-inf")
    valid = arg != none
    nan = valid & (value != value)
    ordered = value if MAX else -value
    ordered = tl.where(nan | (valid == 0), low, ordered)
    any_nan = tl.expand_dims(tl.max(nan.to(tl.int32), AXIS), AXIS) > 0
    top = tl.expand_dims(tl.max(ordered, AXIS), AXIS)
    chosen = tl.where(any_nan, nan, valid & (ordered == top))
    first = tl.min(tl.where(chosen, arg, none), AXIS)
    here = valid & (arg == tl.expand_dims(first, AXIS))
    top = tl.max(tl.where(here, ordered, low), AXIS)
    top = top if MAX else -top
    return tl.where(tl.max((here & nan).to(tl.int32), AXIS) > 0, float("nan"), top), first


@triton.jit
def extreme_pieces(
    eids, indices, row, start, stop, pieces, split,
    x, w, x_off, w_off, x_stride, w_stride, inner, width, inner_blocks, blocks,
    out, arg, entries, partial, partial_arg, none,
    OP: tl.constexpr, X_STEP: tl.constexpr, W_STEP: tl.constexpr, X_ALIGN: tl.constexpr, W_ALIGN: tl.constexpr,
    R: tl.constexpr, E: tl.constexpr, F: tl.constexpr, MAX: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    outer = program % blocks // inner_blocks
    i = program % blocks % inner_blocks * F + tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, program // blocks * R, pieces, R)
    x_first = tl.multiple_of(tl.load(x_off + outer), X_ALIGN)
    w_first = tl.multiple_of(tl.load(w_off + outer), W_ALIGN)
    best = tl.zeros([R, E, F], partial.dtype.element_ty)
    best_arg = tl.zeros([R, E, F], k0.dtype) + none
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        u = tl.load(indices + k, mask=edge, other=0).to(tl.int64)
        e = edge_ids(eids, k, edge)
        a = best
        b = best
        if x is not None:
            a = load_columns(x, u * x_stride + x_first, i, inner, edge, X_STEP).to(best.dtype)
        if w is not None:
            b = load_columns(w, e * w_stride + w_first, i, inner, edge, W_STEP).to(best.dtype)
        message = apply_op(a, b, OP)
        best, best_arg = take(best, best_arg, message, e.to(k.dtype)[:, :, None], edge[:, :, None], none, MAX)
    value, entry = first_extreme(best, best_arg, none, 1, MAX)
    column = (outer * inner + i)[None, :]
    mask = here[:, None] & (i < inner)[None, :]
    parts = mask & (piece < split)[:, None]
    at = piece.to(tl.int64)[:, None] * width + column
    tl.store(partial + at, value, mask=parts)
    tl.store(partial_arg + at, entry, mask=parts)
    whole = mask & (piece >= split)[:, None]
    empty = (k0 == k1)[:, None]
    tl.store(out + r[:, None] * width + column, tl.where(empty, 0, value), mask=whole)
    if arg is not None:
        if entries is not None:
            entry = tl.load(entries + entry, mask=whole & (empty == 0), other=0)
        tl.store(arg + r[:, None] * width + column, tl.where(empty, -1, entry), mask=whole)


@triton.jit
def combine_extremes(
    split_row, split_first, out, arg, entries, partial, partial_arg, none, width, blocks,
    B: tl.constexpr, F: tl.constexpr, MAX: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * F + tl.arange(0, F)
    r = tl.load(split_row + j).to(tl.int64)
    first, last = tl.load(split_first + j), tl.load(split_first + j + 1)
    best = tl.zeros([B, F], partial.dtype.element_ty)
    best_arg = tl.zeros([B, F], partial_arg.dtype.element_ty) + none
    for step in range(0, last - first, B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        mask = (p < last)[:, None] & (column < width)[None, :]
        at = p[:, None] * width + column[None, :]
        value = tl.load(partial + at, mask=mask, other=0)
        k = tl.load(partial_arg + at, mask=mask, other=0)
        best, best_arg = take(best, best_arg, value, k, mask, none, MAX)
    value, entry = first_extreme(best, best_arg, none, 0, MAX)
    to = r * width + column
    tl.store(out + to, value, mask=column < width)
    if arg is not None:
        if entries is not None:
            entry = tl.load(entries + entry, mask=column < width, other=0)
        tl.store(arg + to, entry, mask=column < width)


def arg_scatter(indptr, indices, eids, rindptr, rindices, reids, grad, arg, op, target, rows) -> Tensor:
    """As ``cpu.arg_scatter``, on the GPU, where ``arg`` holds entries whatever ``op`` is. Towards sources each source looks up which of its edges were chosen."""
    grad, arg = grad.contiguous(), arg.contiguous()
    out = grad.new_zeros((rows, *grad.shape[1:]))
    chosen = arg if eids is None or eids.numel() == 0 else torch.where(arg < 0, arg, eids[arg.clamp(min=0)])
    width = grad.shape[1:].numel()
    if target == "e":
        block = 1024
        launch(scatter_to_edges, triton.cdiv(arg.numel(), block), grad, chosen, out, arg.numel(), width, BLOCK=block)
        return out
    if rindptr is None:
        raise RuntimeError("a gradient needs the edges grouped by source too: pass rindptr, rindices, reids")
    schedule = schedule_of(rindptr, rindices)
    partial = grad.new_empty((schedule.split, width), dtype=accumulator(grad.dtype))
    shape = tile(schedule, width, grad.itemsize)
    blocks = triton.cdiv(width, shape["F"])
    launch(
        gather_chosen,
        triton.cdiv(schedule.pieces, shape["R"]) * blocks,
        *(rindices, reids, *schedule[:3], schedule.pieces, schedule.split, grad, chosen, out, partial, width, blocks),
        **{**shape, "num_warps": WARPS},
    )
    combine(schedule, rindptr, partial, out)
    return out


@triton.jit
def scatter_to_edges(grad, chosen, out, count, width, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    edge = tl.load(chosen + at, mask=at < count, other=-1).to(tl.int64)
    tl.store(out + edge * width + at % width, tl.load(grad + at, mask=at < count, other=0), mask=edge >= 0)


@triton.jit
def gather_chosen(
    indices, eids, row, start, stop, pieces, split, grad, chosen, out, partial, width, blocks,
    R: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) % blocks * F + tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, tl.program_id(0) // blocks * R, pieces, R)
    acc = tl.zeros([R, E, F], partial.dtype.element_ty)
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        at = tl.load(indices + k, mask=edge, other=0).to(tl.int64) * width
        e = edge_ids(eids, k, edge)[:, :, None]
        mine = load_columns(chosen, at, column, width, edge, 1).to(tl.int64) == e
        mine = mine & edge[:, :, None] & (column < width)
        value = tl.load(grad + at[:, :, None] + column[None, None, :], mask=mine, other=0)
        acc += value.to(acc.dtype)
    store_rows(tl.sum(acc, 1), piece, here, r, k1 - k0, column, column < width, width, split, None, out, partial, False)
