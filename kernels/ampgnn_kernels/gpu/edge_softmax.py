"""Softmax of each row's logits and its gradient. Sums are kept in float64: a hub's million terms lose nothing."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cpu import accumulator
from .schedule import schedule_of
from .tiles import PARTIALS, WARPS, edge_ids, exp_difference, launch, load_columns, load_pieces, tile


def edge_softmax(indptr, indices, eids, logits) -> Tensor:
    """As ``cpu.edge_softmax``, on the GPU."""
    return _softmax(indptr, indices, eids, logits.contiguous(), None)


def edge_softmax_backward(indptr, indices, eids, logits, grad) -> Tensor:
    """As ``cpu.edge_softmax_backward``, on the GPU."""
    return _softmax(indptr, indices, eids, logits.contiguous(), grad.contiguous())


def _softmax(indptr, indices, eids, logits: Tensor, grad: Tensor | None) -> Tensor:
    out = torch.empty_like(logits)
    heads = logits.shape[1:].numel()
    schedule = schedule_of(indptr, indices)
    largest = logits.new_empty((schedule.split, heads), dtype=accumulator(logits.dtype))
    sums = logits.new_empty((2, schedule.split, heads), dtype=torch.float64)  # of exp, of exp times grad
    shape = tile(schedule, heads, itemsize=16, most_columns=64)  # a place keeps two float64 sums
    blocks = triton.cdiv(heads, shape["F"])
    pieces = (eids, *schedule[:3])
    kept = (logits, grad, out, largest, *sums, heads, blocks)
    for first_pass in (True, False):
        count = schedule.pieces if first_pass else schedule.split
        launch(
            softmax_pieces,
            triton.cdiv(count, shape["R"]) * blocks,
            *(*pieces, count, schedule.split, *kept),
            **{**shape, "FIRST": first_pass, "num_warps": WARPS},
        )
        if first_pass:
            launch(
                combine_softmax,
                schedule.split_row.shape[0] * blocks,
                *(schedule.split_first, grad, largest, *sums, heads, blocks),
                **{"B": PARTIALS, "F": shape["F"], "num_warps": 1},
            )
    return out


@triton.jit
def finite_base(largest):
    """What to subtract from logits: logits of -inf alone have the weight 0, beside others and not among themselves."""
    return tl.where(largest == float("-inf"), 0, largest)


@triton.jit
def softmax_pieces(
    eids, row, start, stop, pieces, split, logits, grad, out, largest, sums, dots, heads, blocks,
    R: tl.constexpr, E: tl.constexpr, F: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """FIRST: the weights of whole rows, and the parts' own largest logit and sums. Then: the weights of the parts."""
    acc_type: tl.constexpr = largest.dtype.element_ty
    low: tl.constexpr = float("-inf")
    i = tl.program_id(0) % blocks * F + tl.arange(0, F)
    piece, here, _, k0, k1 = load_pieces(row, start, stop, tl.program_id(0) // blocks * R, pieces, R)
    longest = tl.max(k1 - k0)
    at = piece.to(tl.int64)[:, None] * heads + i[None, :]
    part = (here & (piece < split))[:, None] & (i < heads)[None, :]
    if FIRST:
        top = tl.full([R, E, F], low, acc_type)
        for step in range(0, longest, E):
            k = k0[:, None] + step + tl.arange(0, E)[None, :]
            edge = k < k1[:, None]
            x = load_columns(logits, edge_ids(eids, k, edge) * heads, i, heads, edge, 1).to(acc_type)
            top = tl.maximum(top, tl.where(edge[:, :, None], x, low))
        top = tl.max(top, 1)
        total = tl.zeros([R, E, F], tl.float64)
        dot = tl.zeros([R, E, F], tl.float64)
        for step in range(0, longest, E):
            k = k0[:, None] + step + tl.arange(0, E)[None, :]
            edge = k < k1[:, None]
            e = edge_ids(eids, k, edge) * heads
            x = load_columns(logits, e, i, heads, edge, 1).to(acc_type)
            w = tl.where(edge[:, :, None], exp_difference(x, finite_base(top)[:, None, :]), 0)
            total += w.to(tl.float64)
            if grad is not None:
                dot += (w * load_columns(grad, e, i, heads, edge, 1).to(acc_type)).to(tl.float64)
        total = tl.sum(total, 1)
        dot = tl.sum(dot, 1)
        tl.store(largest + at, top, mask=part)
        tl.store(sums + at, total, mask=part)
        tl.store(dots + at, dot, mask=part)
        mine = here & (piece >= split)
    else:
        top = tl.load(largest + at, mask=part, other=0)
        total = tl.load(sums + at, mask=part, other=1)
        dot = tl.load(dots + at, mask=part, other=0)
        mine = here
    inverse = 1 / total.to(acc_type)  # in float32: a division in float64 is a call
    mean = (dot * inverse).to(acc_type)[:, None, :]
    inverse = inverse[:, None, :]
    for step in range(0, longest, E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = (k < k1[:, None]) & mine[:, None]
        e = edge_ids(eids, k, edge) * heads
        x = load_columns(logits, e, i, heads, edge, 1).to(acc_type)
        w = exp_difference(x, finite_base(top)[:, None, :]) * inverse
        if grad is not None:
            w *= load_columns(grad, e, i, heads, edge, 1).to(acc_type) - mean
        tl.store(out + e[:, :, None] + i[None, None, :], w, mask=edge[:, :, None] & (i < heads))


@triton.jit
def combine_softmax(split_first, grad, largest, sums, dots, heads, blocks, B: tl.constexpr, F: tl.constexpr):
    """Gives each part of a split row the largest logit and the sums of the whole row."""
    acc_type: tl.constexpr = largest.dtype.element_ty
    low: tl.constexpr = float("-inf")
    j = tl.program_id(0) // blocks
    i = tl.program_id(0) % blocks * F + tl.arange(0, F)
    first, last = tl.load(split_first + j), tl.load(split_first + j + 1)
    top = tl.full([B, F], low, acc_type)
    for step in range(0, last - first, B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        mask = (p < last)[:, None] & (i < heads)[None, :]
        top = tl.maximum(top, tl.load(largest + p[:, None] * heads + i[None, :], mask=mask, other=low))
    top = tl.max(top, 0)[None, :]
    total = tl.zeros([B, F], tl.float64)
    dot = tl.zeros([B, F], tl.float64)
    for step in range(0, last - first, B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        mask = (p < last)[:, None] & (i < heads)[None, :]
        at = p[:, None] * heads + i[None, :]
        w = exp_difference(tl.load(largest + at, mask=mask, other=low), finite_base(top)).to(tl.float64)
        total += w * tl.load(sums + at, mask=mask, other=0)
        if grad is not None:
            dot += w * tl.load(dots + at, mask=mask, other=0)
    total = tl.sum(total, 0)[None, :]
    dot = tl.sum(dot, 0)[None, :]
    for step in range(0, last - first, B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        mask = (p < last)[:, None] & (i < heads)[None, :]
        at = p[:, None] * heads + i[None, :]
        tl.store(largest + at, tl.broadcast_to(top, [B, F]), mask=mask)
        tl.store(sums + at, tl.broadcast_to(total, [B, F]), mask=mask)
        tl.store(dots + at, tl.broadcast_to(dot, [B, F]), mask=mask)
