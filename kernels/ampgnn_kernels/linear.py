"""A linear layer whose float16 is as fast on the CPU as its float32.

torch multiplies float16 matrices on the CPU with a plain loop, 15 times slower in the backward pass than float32.
Here blocks of rows are widened, multiplied in float32 and rounded once, so no whole float32 copy is ever held.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 8192  # of a block


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``, as ``torch.nn.functional.linear``, autocast included.

    Args:
        x: (*, in). weight: (out, in). bias: (out,) or None.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        if dtype == torch.float16 and device == "cpu" and x.dtype != torch.float64:
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if x.dtype == weight.dtype == torch.float16 and device == "cpu":
        out = _HalfLinear.apply(x.reshape(-1, x.shape[-1]), weight, bias)
        return out.reshape(*x.shape[:-1], weight.shape[0])
    return F.linear(x, weight, bias)


class _HalfLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        with torch.amp.autocast("cpu", enabled=False):
            out, wide = x.new_empty((x.shape[0], weight.shape[0])), weight.float()
            wide_bias = None if bias is None else bias.float()
            for rows, to in zip(x.split(ROWS), out.split(ROWS), strict=True):
                to.copy_(F.linear(rows.float(), wide, wide_bias))
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        with torch.amp.autocast("cpu", enabled=False):
            wide = weight.float()
            grad_x = torch.empty_like(x) if need_x else None
            grad_weight = torch.zeros_like(wide) if need_weight else None
            grad_bias = wide.new_zeros(wide.shape[0]) if need_bias else None
            for start in range(0, x.shape[0], ROWS):
                rows = grad[start : start + ROWS].float()
                if need_x:
                    grad_x[start : start + ROWS] = rows @ wide
                if need_weight:
                    grad_weight.addmm_(rows.T, x[start : start + ROWS].float())
                if need_bias:
                    grad_bias += rows.sum(0)
        half = [None if g is None else g.to(torch.float16) for g in (grad_weight, grad_bias)]
        return grad_x, *half
