"""Sums and means of the messages of each row's edges."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..cpu import accumulator
from .extreme import extreme
from .rows import combine, store_rows
from .schedule import schedule_of
from .tiles import apply_op, edge_ids, launch, load_columns, load_pieces, messages

EDGE_OPS = {"copy_u": "copy_lhs", "copy_e": "copy_rhs"}


def spmm(
    indptr, indices, eids, rindptr, rindices, reids, cols, x, w, op, reduce, src_scale, dst_scale, with_arg
) -> tuple[Tensor, Tensor]:
    """As ``cpu.spmm``, on the GPU."""
    x, w = (None if t is None else t.contiguous() for t in (x, w))
    op = EDGE_OPS.get(op, op)
    schedule = schedule_of(indptr, indices)
    if reduce in ("max", "min"):
        return extreme(schedule, indptr, indices, eids, x, w, op, reduce, with_arg)
    m = messages(schedule, indices, x, w, op)
    out = m.like.new_empty((indptr.shape[0] - 1, *m.columns.plan.shape))
    partial = out.new_empty((schedule.split, m.columns.width), dtype=accumulator(out.dtype))
    mean = reduce == "mean"
    of_weights = None if w is None else eids
    launch(sum_pieces, m.programs, of_weights, *m.args, src_scale, dst_scale, out, partial, **m.meta, MEAN=mean)
    combine(schedule, indptr, partial, out, mean, dst_scale)
    return out, indices.new_empty(0)


@triton.jit
def sum_pieces(
    eids, indices, row, start, stop, pieces, split,
    x, w, x_off, w_off, x_stride, w_stride, inner, width, inner_blocks, blocks,
    src_scale, dst_scale, out, partial,
    OP: tl.constexpr, X_STEP: tl.constexpr, W_STEP: tl.constexpr, X_ALIGN: tl.constexpr, W_ALIGN: tl.constexpr,
    R: tl.constexpr, E: tl.constexpr, F: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    acc_type: tl.constexpr = partial.dtype.element_ty
    program = tl.program_id(0)
    outer = program % blocks // inner_blocks
    i = program % blocks % inner_blocks * F + tl.arange(0, F)
    piece, here, r, k0, k1 = load_pieces(row, start, stop, program // blocks * R, pieces, R)
    x_first = tl.multiple_of(tl.load(x_off + outer), X_ALIGN)
    w_first = tl.multiple_of(tl.load(w_off + outer), W_ALIGN)
    acc = tl.zeros([R, E, F], acc_type)
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        u = tl.load(indices + k, mask=edge, other=0).to(tl.int64)
        a = acc
        b = acc
        if x is not None:
            a = load_columns(x, u * x_stride + x_first, i, inner, edge, X_STEP).to(acc_type)
        if w is not None:
            b = load_columns(w, edge_ids(eids, k, edge) * w_stride + w_first, i, inner, edge, W_STEP).to(acc_type)
        message = apply_op(a, b, OP)
        if src_scale is not None:
            message *= tl.load(src_scale + u, mask=edge, other=0)[:, :, None]
        acc += tl.where(edge[:, :, None], message, 0)
    total = tl.sum(acc, 1)
    column = outer * inner + i
    store_rows(total, piece, here, r, k1 - k0, column, i < inner, width, split, dst_scale, out, partial, MEAN)
