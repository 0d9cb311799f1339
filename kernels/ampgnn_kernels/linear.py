"""Products with weights that hold no wide copy of the features.

A linear layer whose float16 is not much slower on the CPU than its float32.

Without the CPU's float16 instructions torch multiplies float16 matrices with a plain loop, 15 times slower in the
backward pass than float32. There, blocks of rows are widened, multiplied in float32 and rounded once, so no whole
float32 copy is ever held. With them torch's own product is faster than float32, and sums in float32 as well.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu
from .cpu import accumulator
from .transforms import apply, call, differentiable, needs_grad

# Elements widened at once: few enough to stay in the CPU's cache until they are used, enough to keep a GPU busy.
BLOCK, GPU_BLOCK = 1 << 20, 1 << 24

# Whether torch multiplies float16 matrices with the CPU's own instructions, by oneDNN.
_CPU_MULTIPLIES_HALF = (
    hasattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported") and torch.ops.mkldnn._is_mkldnn_fp16_supported()
)


def _rows(x: Tensor) -> int:
    """Rows of a block."""
    return max(64, (BLOCK if x.device.type == "cpu" else GPU_BLOCK) // max(1, x.shape[1:].numel()))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``, as ``torch.nn.functional.linear``, autocast included.

    Args:
        x: (*, in). weight: (out, in). bias: (out,) or None. Floats of several types are multiplied in a type of all.
    """
    device, dtype = x.device.type, None
    if torch.is_autocast_enabled(device):
        if torch.get_autocast_dtype(device) == torch.float16 and device == "cpu" and x.dtype != torch.float64:
            dtype = torch.float16
    elif x.dtype != weight.dtype and x.is_floating_point():
        dtype = torch.promote_types(x.dtype, weight.dtype)
    if dtype is not None:
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if x.dtype == weight.dtype == torch.float16 and device == "cpu" and not _CPU_MULTIPLIES_HALF:
        out = apply(_HalfLinear, x.reshape(-1, x.shape[-1]), weight, bias)
        return out.reshape(*x.shape[:-1], weight.shape[0])
    return F.linear(x, weight, bias)


def segment_linear(x: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    """Rows of ``x``, segment i of ``lengths[i]`` rows times ``weight[i]``, in a type of both, with sums in float32.

    Args:
        x: (N, in). weight: (R, in, out). lengths: (R,) integers that add up to N.

    Returns:
        (N, out).

    Raises:
        ValueError: shapes that do not fit each other.
    """
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[1] or lengths.shape != weight.shape[:1]:
        shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, lengths {tuple(lengths.shape)}"
        raise ValueError(f"segment_linear needs x (N, in), weight (R, in, out) and lengths (R,), got {shapes}")
    dtype = torch.promote_types(x.dtype, weight.dtype)
    return call(_ops.segment_linear.default, x.to(dtype), weight.to(dtype), lengths, grad=True)


# Operators, so that a graph of torch.compile holds a segment's length as a value and not as a shape.
_lib = torch.library.Library("ampgnn", "FRAGMENT")
_lib.define("segment_linear(Tensor x, Tensor weight, Tensor lengths) -> Tensor")
_lib.define("segment_outer(Tensor x, Tensor y, Tensor lengths) -> Tensor")
_ops = torch.ops.ampgnn


def _segment_linear(x: Tensor, weight: Tensor, lengths: Tensor) -> Tensor:
    out, start = x.new_empty((x.shape[0], weight.shape[2])), 0
    for w, length in zip(weight, lengths.tolist(), strict=True):
        if length:
            out[start : start + length] = linear(x[start : start + length], w.t())
        start += length
    if start != x.shape[0]:
        raise ValueError(f"the segments have {start} rows together, x has {x.shape[0]}")
    return out


def _segment_outer(x: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
    """out[i] = the sum over the rows of segment i of the outer product of x and y."""
    out, start = x.new_zeros((lengths.shape[0], x.shape[1], y.shape[1])), 0
    wide = torch.promote_types(x.dtype, torch.float32)
    for to, length in zip(out, lengths.tolist(), strict=True):
        if length:
            to.copy_(x[start : start + length].to(wide).t() @ y[start : start + length].to(wide))
        start += length
    return out


for _name, _function in (("segment_linear", _segment_linear), ("segment_outer", _segment_outer)):
    _lib.impl(_name, _function, "CompositeExplicitAutograd")


@torch.library.register_fake("ampgnn::segment_linear", lib=_lib)
def _(x, weight, lengths):
    return x.new_empty((x.shape[0], weight.shape[2]))


@torch.library.register_fake("ampgnn::segment_outer", lib=_lib)
def _(x, y, lengths):
    return x.new_empty((lengths.shape[0], x.shape[1], y.shape[1]))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _segment_linear_backward(ctx, grad):
    x, weight, lengths = ctx.saved_tensors
    return _ops.segment_linear(grad, weight.transpose(1, 2), lengths), _ops.segment_outer(x, grad, lengths), None


def _segment_outer_backward(ctx, grad):
    x, y, lengths = ctx.saved_tensors
    return _ops.segment_linear(y, grad.transpose(1, 2), lengths), _ops.segment_linear(x, grad, lengths), None


differentiable(_lib, "segment_linear", _segment_linear_backward, _save)
differentiable(_lib, "segment_outer", _segment_outer_backward, _save)


class _HalfLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        with torch.amp.autocast("cpu", enabled=False):
            out, wide = x.new_empty((x.shape[0], weight.shape[0])), weight.float()
            wide_bias = None if bias is None else bias.float()
            for rows, to in zip(x.split(_rows(x)), out.split(_rows(x)), strict=True):
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
            for start in range(0, x.shape[0], _rows(x)):
                block = slice(start, start + _rows(x))
                rows = grad[block].float()
                if need_x:
                    grad_x[block] = rows @ wide
                if need_weight:
                    grad_weight.addmm_(rows.T, x[block].float())
                if need_bias:
                    grad_bias += rows.sum(0)
        half = [None if g is None else g.to(torch.float16) for g in (grad_weight, grad_bias)]
        return grad_x, *half


def head_dot(h: Tensor, a: Tensor) -> Tensor:
    """``out[..., k] = h[..., k, :] · a[..., k, :]`` in float32 (float64 for float64): the halves of GAT's logits.

    Args:
        h: (N, H, D). a: (H, D), or (K, H, D) for K of them in one pass over ``h``; any float type.

    Returns:
        (N, H), or (K, N, H); float32, or float64.

    Raises:
        ValueError: shapes that do not fit each other.
    """
    if h.dim() != 3 or a.dim() not in (2, 3) or a.shape[-2:] != h.shape[1:]:
        raise ValueError(
            f"head_dot needs h (N, H, D) and a (H, D) or (K, H, D), got {tuple(h.shape)}, {tuple(a.shape)}"
        )
    vectors = (a if a.dim() == 3 else a[None]).to(accumulator(h.dtype))
    out = call(_ops.head_dot.default, h, vectors, grad=needs_grad(h, a))
    return out if a.dim() == 3 else out[0]


def _head_dot(h: Tensor, a: Tensor) -> Tensor:
    out = a.new_empty((a.shape[0], *h.shape[:2]))
    for rows, to in zip(h.split(_rows(h)), out.split(_rows(h), 1), strict=True):
        for factors, dots in zip(a, to, strict=True):
            torch.sum(rows.to(a.dtype) * factors, -1, out=dots)
    return out


def _head_dot_backward(h: Tensor, a: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    grad_h, grad_a = torch.empty_like(h), torch.zeros_like(a)
    for start in range(0, h.shape[0], _rows(h)):
        block = slice(start, start + _rows(h))
        g, rows = grad[:, block, :, None], h[block].to(a.dtype)
        grad_h[block] = (g * a[:, None]).sum(0)
        for total, each in zip(grad_a, g, strict=True):
            total += (each * rows).sum(0)
    return grad_h, grad_a


_lib.define("head_dot(Tensor h, Tensor a) -> Tensor")
_lib.define("head_dot_backward(Tensor h, Tensor a, Tensor grad) -> (Tensor, Tensor)")
for _name, _on_cpu, _on_gpu in (
    ("head_dot", cpu.head_dot, _head_dot),
    ("head_dot_backward", cpu.head_dot_backward, _head_dot_backward),
):
    _lib.impl(_name, _on_cpu, "CPU")
    _lib.impl(_name, _on_gpu, "CUDA")


@torch.library.register_fake("ampgnn::head_dot", lib=_lib)
def _(h, a):
    return a.new_empty((a.shape[0], *h.shape[:2]))


@torch.library.register_fake("ampgnn::head_dot_backward", lib=_lib)
def _(h, a, grad):
    return h.new_empty(h.shape), a.new_empty(a.shape)


def _head_dot_gradient(ctx, grad):
    return _ops.head_dot_backward(*ctx.saved_tensors, grad)


def _head_dot_double_backward(ctx, z_h, z_a):
    """Of (Σ over k of grad[k] a[k], Σ over the rows of grad h) against (z_h, z_a)."""
    h, a, grad = ctx.saved_tensors
    of_grad = _ops.head_dot(z_h, a) + _ops.head_dot(h, z_a)
    return _ops.head_dot_backward(h, z_a, grad)[0], _ops.head_dot_backward(z_h, a, grad)[1], of_grad


differentiable(_lib, "head_dot", _head_dot_gradient, _save)
differentiable(_lib, "head_dot_backward", _head_dot_double_backward, _save)
