"""A value on each edge from its source, its destination or itself."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .schedule import schedule_of
from .tiles import WARPS, apply_op, columns, edge_ids, launch, load_columns, load_pieces, tile, wide_type


def sddmm(
    indptr, indices, eids, rindptr, rindices, reids, cols, lhs, rhs, op, lhs_target, rhs_target, src_scale, dst_scale
) -> Tensor:
    """As ``cpu.sddmm``, on the GPU."""
    lhs, rhs = (None if t is None else t.contiguous() for t in (lhs, rhs))
    a, b = (rhs if lhs is None else lhs), (lhs if rhs is None else rhs)
    dot = op == "dot"
    c = columns(a.shape[1:], b.shape[1:], dot, a.device)
    out = a.new_empty((indices.shape[0], *c.plan.shape))
    schedule = schedule_of(indptr, indices)
    shape = tile(schedule, c.plan.inner, a.itemsize)
    inner_blocks = 1 if dot else triton.cdiv(c.plan.inner, shape["F"])
    blocks = c.plan.outer * inner_blocks
    launch(
        sddmm_pieces,
        triton.cdiv(schedule.pieces, shape["R"]) * blocks,
        *(indices, eids, *schedule[:3], schedule.pieces, lhs, rhs, c.lhs_off, c.rhs_off),
        *(a.shape[1:].numel(), b.shape[1:].numel(), c.plan.inner, c.plan.outer, inner_blocks, blocks),
        *(src_scale, dst_scale, out),
        **{"OP": op, "LHS": lhs_target, "RHS": rhs_target, "L_STEP": c.plan.lhs_step, "R_STEP": c.plan.rhs_step},
        **{"L_ALIGN": c.lhs_align, "R_ALIGN": c.rhs_align, **shape, "WIDE": wide_type(a.dtype), "num_warps": WARPS},
    )
    return out


@triton.jit
def load_operand(base, u, r, e, stride, first, i, inner, edge, here, TARGET: tl.constexpr, STEP: tl.constexpr):
    """The columns ``i`` of an edge's operand: (R, E or 1, F or 1)."""
    if TARGET == "u":
        values = load_columns(base, u * stride + first, i, inner, edge, STEP)
    elif TARGET == "e":
        values = load_columns(base, e * stride + first, i, inner, edge, STEP)
    else:
        values = load_columns(base, (r * stride + first)[:, None], i, inner, here[:, None], STEP)
    return values


@triton.jit
def sddmm_pieces(
    indices, eids, row, start, stop, pieces,
    lhs, rhs, l_off, r_off, l_stride, r_stride, inner, outers, inner_blocks, blocks, src_scale, dst_scale, out,
    OP: tl.constexpr, LHS: tl.constexpr, RHS: tl.constexpr, L_STEP: tl.constexpr, R_STEP: tl.constexpr,
    L_ALIGN: tl.constexpr, R_ALIGN: tl.constexpr, R: tl.constexpr, E: tl.constexpr, F: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    outer = program % blocks // inner_blocks
    i = program % blocks % inner_blocks * F + tl.arange(0, F)
    _, here, r, k0, k1 = load_pieces(row, start, stop, program // blocks * R, pieces, R)
    l_first = tl.multiple_of(tl.load(l_off + outer), L_ALIGN)
    r_first = tl.multiple_of(tl.load(r_off + outer), R_ALIGN)
    for step in range(0, tl.max(k1 - k0), E):
        k = k0[:, None] + step + tl.arange(0, E)[None, :]
        edge = k < k1[:, None]
        u = tl.load(indices + k, mask=edge, other=0).to(tl.int64)
        e = edge_ids(eids, k, edge)
        scale = tl.full([R, E], 1, WIDE)
        if src_scale is not None:
            scale *= tl.load(src_scale + u, mask=edge, other=0)
        if dst_scale is not None:
            scale *= tl.load(dst_scale + r, mask=here, other=0)[:, None]
        if OP == "dot":
            acc = tl.zeros([R, E, F], WIDE)
            for c in range(0, inner, F):
                a = load_operand(lhs, u, r, e, l_stride, l_first, c + i, inner, edge, here, LHS, L_STEP)
                b = load_operand(rhs, u, r, e, r_stride, r_first, c + i, inner, edge, here, RHS, R_STEP)
                acc += a.to(WIDE) * b.to(WIDE)
            tl.store(out + e * outers + outer, tl.sum(acc, 2) * scale, mask=edge)
        else:
            a = tl.zeros([1, 1, 1], WIDE)
            b = a
            if lhs is not None:
                a = load_operand(lhs, u, r, e, l_stride, l_first, i, inner, edge, here, LHS, L_STEP).to(WIDE)
            if rhs is not None:
                b = load_operand(rhs, u, r, e, r_stride, r_first, i, inner, edge, here, RHS, R_STEP).to(WIDE)
            a, b = tl.broadcast(a, b)
            value = apply_op(a, b, OP) * scale[:, :, None]
            at = (e * (outers * inner) + outer * inner)[:, :, None] + i[None, None, :]
            tl.store(out + at, tl.broadcast_to(value, [R, E, F]), mask=edge[:, :, None] & (i < inner))
