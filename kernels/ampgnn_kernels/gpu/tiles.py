"""What the kernels share: launching, the shape of a tile, and the device functions that walk pieces.

A tile is (R pieces, E edges of each, F columns). A kernel keeps one accumulator for each place of the tile and adds
them up along E once, at the end: no thread waits for another inside the loop.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..broadcast import Plan, plan
from .schedule import Schedule

WARPS = 4
MOST_COLUMNS = 256  # of a tile: a warp's 16-byte loads of half-precision values
MOST_EDGES = 16
LOADS = 4  # of a thread at once: more in flight than this costs more registers than it hides time
PARTIALS = 16  # partial results taken at once in the second pass


def launch(kernel, programs: int, *args, **meta) -> None:
    """Runs the kernel; nothing where there is nothing to do."""
    if programs:
        run(kernel, programs, args, meta)


def run(kernel, programs: int, args: tuple, meta: dict) -> None:
    """On the device of the first tensor. (``resources.py`` compiles here instead.)"""
    with torch.cuda.device_of(next(a for a in args if a is not None)):
        kernel[(programs,)](*args, **meta)


def tile(
    schedule: Schedule, columns: int, itemsize: int, loads: int = LOADS, most_columns: int = MOST_COLUMNS
) -> dict[str, int]:
    """{"R", "E", "F"}: pieces, edges and columns of a tile, from how many ``loads`` a thread has in flight.

    Loads are of 16 bytes where rows of ``columns`` values are whole numbers of those, else of as much as divides them.
    """
    f = min(most_columns, triton.next_power_of_2(max(columns, 1)))
    size = loads * WARPS * 32 * math.gcd(columns, 16 // itemsize)
    e = min(MOST_EDGES, triton.next_power_of_2(max(int(schedule.mean_length), 1)), max(size // f, 1))
    return {"R": max(size // (e * f), 1), "E": e, "F": f}


def narrow_tile(width: int) -> int:
    """Columns of a tile in the second pass."""
    return min(128, triton.next_power_of_2(max(width, 1)))


class Columns(NamedTuple):
    """How a result's columns, ``outer`` blocks of ``inner``, read the two operands (``broadcast.Plan`` on a device)."""

    plan: Plan
    lhs_off: Tensor  # (outer,) int64
    rhs_off: Tensor
    lhs_align: int  # a power of two that divides every offset
    rhs_align: int

    @property
    def width(self) -> int:
        """Columns the kernel walks."""
        return self.plan.outer * self.plan.inner


@lru_cache(maxsize=4096)
def columns(lhs: torch.Size, rhs: torch.Size, dot: bool, device: torch.device) -> Columns:
    p = plan(lhs, rhs, dot)
    return Columns(p, p.lhs_off.to(device), p.rhs_off.to(device), _alignment(p.lhs_off), _alignment(p.rhs_off))


def _alignment(offsets: Tensor) -> int:
    return next(a for a in (16, 8, 4, 2, 1) if not (offsets % a).any())


class Messages(NamedTuple):
    """What the kernels of spmm have in common."""

    columns: Columns
    like: Tensor  # an operand: type and device of the result
    programs: int
    args: tuple
    meta: dict


def messages(schedule: Schedule, indices, x, w, op: str, loads: int = LOADS) -> Messages:
    a, b = (w if x is None else x), (x if w is None else w)
    c = columns(a.shape[1:], b.shape[1:], False, a.device)
    shape = tile(schedule, c.plan.inner, a.itemsize, loads)
    inner_blocks = triton.cdiv(c.plan.inner, shape["F"])
    blocks = c.plan.outer * inner_blocks
    strides = (a.shape[1:].numel(), b.shape[1:].numel())
    args = (
        *(indices, *schedule[:3], schedule.pieces, schedule.split),
        *(x, w, c.lhs_off, c.rhs_off, *strides, c.plan.inner, c.width, inner_blocks, blocks),
    )
    steps = {"X_STEP": c.plan.lhs_step, "W_STEP": c.plan.rhs_step, "X_ALIGN": c.lhs_align, "W_ALIGN": c.rhs_align}
    meta = {"OP": op, **steps, **shape, "num_warps": WARPS}
    return Messages(c, a, triton.cdiv(schedule.pieces, shape["R"]) * blocks, args, meta)


def wide_type(dtype: torch.dtype) -> tl.dtype:
    """``cpu.accumulator`` as Triton names it."""
    return tl.float64 if dtype == torch.float64 else tl.float32


# ---- device functions


@triton.jit
def load_pieces(row, start, stop, first, pieces, R: tl.constexpr):
    """Numbers, rows and bounds of the pieces from ``first`` on; those past the last are empty."""
    piece = first + tl.arange(0, R)
    here = piece < pieces
    r = tl.load(row + piece, mask=here, other=0).to(tl.int64)
    k0 = tl.load(start + piece, mask=here, other=0)
    k1 = tl.load(stop + piece, mask=here, other=0)
    return piece, here, r, k0, k1


@triton.jit
def edge_ids(eids, k, edge):
    """Ids of the entries ``k``."""
    if eids is None:
        return k.to(tl.int64)
    return tl.load(eids + k, mask=edge, other=0).to(tl.int64)


@triton.jit
def load_columns(base, at, i, inner, mask, STEP: tl.constexpr):
    """(R, E, F) values ``base[at + i]``, or (R, E, 1) values ``base[at]`` for all columns where STEP is 0."""
    if STEP == 1:
        values = tl.load(base + at[:, :, None] + i[None, None, :], mask=mask[:, :, None] & (i < inner), other=0)
    else:
        values = tl.load(base + at, mask=mask, other=0)[:, :, None]
    return values


@triton.jit
def divide(a, b):
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def apply_op(a, b, OP: tl.constexpr):
    """An edge's value from its operands."""
    if OP == "copy_lhs":
        return a
    elif OP == "copy_rhs":
        return b
    elif OP == "add":
        return a + b
    elif OP == "sub":
        return a - b
    elif OP == "div":
        return divide(a, b)
    else:
        return a * b


@triton.jit
def exp_difference(x, largest):
    """exp(x - largest) for x up to largest, to an ulp or two: at -80 the rounding of the difference alone is 2^-18."""
    d = x - largest
    if d.dtype == tl.float64:
        return tl.exp(d)
    else:
        back = d - x
        rest = (x - (d - back)) - (largest + back)
        n = tl.maximum(tl.floor(d * 1.4426950408889634 + 0.5), -150.0)
        r = tl.fma(n, -0.693359375, d)
        r = tl.fma(n, 2.12194440e-4, r) + tl.where(rest == rest, rest, 0)
        return tl.exp2(r * 1.4426950408889634) * tl.exp2(n)
