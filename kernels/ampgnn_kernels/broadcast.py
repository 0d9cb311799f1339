"""How two operands' feature dimensions broadcast, flattened into what the native kernels walk."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Size, Tensor


class Plan(NamedTuple):
    """Column (o, i) of the result reads ``lhs_off[o] + i * lhs_step`` and ``rhs_off[o] + i * rhs_step``."""

    shape: tuple[int, ...]  # of the result's features; for dot the last dimension is 1
    outer: int
    inner: int
    lhs_off: Tensor  # (outer,) int64 on the CPU
    rhs_off: Tensor
    lhs_step: int
    rhs_step: int

    def arguments(self) -> tuple[int, ...]:
        return (
            self.outer,
            self.inner,
            self.lhs_off.data_ptr(),
            self.rhs_off.data_ptr(),
            self.lhs_step,
            self.rhs_step,
        )


@lru_cache(maxsize=4096)
def plan(lhs: Size, rhs: Size, dot: bool = False) -> Plan:
    """The plan for feature shapes ``lhs`` and ``rhs``.

    Raises:
        ValueError: the shapes do not broadcast; for ``dot`` also if their last dimensions differ.
    """
    if dot and (not lhs or not rhs or lhs[-1] != rhs[-1]):
        raise ValueError(f"dot needs an equal last dimension, got feature shapes {tuple(lhs)} and {tuple(rhs)}")
    try:
        out = torch.broadcast_shapes(lhs, rhs)
    except RuntimeError:
        raise ValueError(f"feature shapes {tuple(lhs)} and {tuple(rhs)} do not broadcast") from None
    dims = _merged(out, _strides(lhs, len(out)), _strides(rhs, len(out)), keep_last=dot)
    (inner, lhs_step, rhs_step), outer = dims[-1], dims[:-1]
    lhs_off = rhs_off = torch.zeros(1, dtype=torch.int64)
    for size, lhs_stride, rhs_stride in outer:
        steps = torch.arange(size)
        lhs_off = (lhs_off[:, None] + steps * lhs_stride).reshape(-1)
        rhs_off = (rhs_off[:, None] + steps * rhs_stride).reshape(-1)
    shape = (*out[:-1], 1) if dot else tuple(out)
    return Plan(shape, lhs_off.numel(), inner, lhs_off.contiguous(), rhs_off.contiguous(), lhs_step, rhs_step)


def _strides(shape: Size, ndim: int) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(0 if size == 1 else step)
        step *= size
    return list(reversed(strides + [0] * (ndim - len(shape))))


def _merged(out: Size, lhs: list[int], rhs: list[int], keep_last: bool) -> list[tuple[int, int, int]]:
    """(size, lhs stride, rhs stride) of each dimension, neighbours joined where one walk covers both."""
    dims = list(zip(out, lhs, rhs, strict=True))
    last = [dims.pop()] if keep_last else []
    merged: list[tuple[int, int, int]] = []
    for size, left, right in dims:
        if size == 1:
            continue
        if merged and merged[-1][1] == left * size and merged[-1][2] == right * size:
            merged[-1] = (merged[-1][0] * size, left, right)
        else:
            merged.append((size, left, right))
    return (merged + last) or [(1, 0, 0)]


def unbroadcast(grad: Tensor, features: Size) -> Tensor:
    """``grad`` (rows, *broadcast) summed down to (rows, *features), of as many dimensions."""
    dims = [i + 1 for i, (have, want) in enumerate(zip(grad.shape[1:], features, strict=True)) if have != want]
    return grad.sum(dims, keepdim=True) if dims else grad
