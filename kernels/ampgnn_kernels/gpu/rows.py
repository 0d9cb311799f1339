"""A row's sum: stored at once, or in parts that a second pass adds up in order where the row is split."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .schedule import Schedule
from .tiles import PARTIALS, WARPS, divide, launch, narrow_tile


@triton.jit
def finish_sum(total, r, degree, dst_scale, here, MEAN: tl.constexpr):
    """(rows, F) results from the sums of the rows' messages."""
    if MEAN:
        total = divide(total, tl.maximum(degree, 1).to(total.dtype)[:, None] + tl.zeros_like(total))
    if dst_scale is not None:
        total *= tl.load(dst_scale + r, mask=here, other=0)[:, None]
    return total


@triton.jit
def store_rows(total, piece, here, r, degree, column, mask, width, split, dst_scale, out, partial, MEAN: tl.constexpr):
    """Stores the pieces' sums (R, F): of whole rows the result in ``out``, of parts of rows the sum in ``partial``."""
    mask = here[:, None] & mask[None, :]
    part = (piece < split)[:, None]
    tl.store(partial + piece.to(tl.int64)[:, None] * width + column[None, :], total, mask=mask & part)
    done = finish_sum(total, r, degree, dst_scale, here, MEAN)
    tl.store(out + r[:, None] * width + column[None, :], done, mask=mask & (part == 0))


def combine(schedule: Schedule, indptr: Tensor, partial: Tensor, out: Tensor, mean=False, dst_scale=None) -> None:
    """The second pass: ``out`` of the split rows from ``partial`` (parts, width)."""
    width = partial.shape[1]
    f = narrow_tile(width)
    blocks = triton.cdiv(width, f)
    launch(
        combine_sums,
        schedule.split_row.shape[0] * blocks,
        *(indptr, schedule.split_row, schedule.split_first, partial, dst_scale, out, width, blocks),
        **{"MEAN": mean, "B": PARTIALS, "F": f, "num_warps": WARPS},
    )


@triton.jit
def combine_sums(
    indptr, split_row, split_first, partial, dst_scale, out, width, blocks,
    MEAN: tl.constexpr, B: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0) // blocks + tl.arange(0, 1)
    column = tl.program_id(0) % blocks * F + tl.arange(0, F)
    r = tl.load(split_row + j).to(tl.int64)
    first, last = tl.load(split_first + j), tl.load(split_first + j + 1)
    acc = tl.zeros([B, F], partial.dtype.element_ty)
    for step in range(0, tl.max(last - first), B):
        p = (first + step + tl.arange(0, B)).to(tl.int64)
        mask = (p < last)[:, None] & (column < width)[None, :]
        acc += tl.load(partial + p[:, None] * width + column[None, :], mask=mask, other=0)
    degree = tl.load(indptr + r + 1) - tl.load(indptr + r)
    done = finish_sum(tl.sum(acc, 0)[None, :], r, degree, dst_scale, r >= 0, MEAN)
    tl.store(out + r[:, None] * width + column[None, :], done, mask=(column < width)[None, :])
