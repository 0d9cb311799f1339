"""Calling an operator: past torch's layers in Python where no gradient is recorded, with a clear error for transforms
of ``torch.func`` that such operators do not take."""

from __future__ import annotations

from collections.abc import Callable

import torch


def call(function: Callable, *args, grad: bool):
    """``function(*args)``; where no gradient is wanted at half the cost of a call.

    Args:
        grad: whether an argument needs a gradient that is to be recorded.

    Raises:
        RuntimeError: inside ``torch.func.grad`` and what is built on it.
    """
    if not grad and not torch.compiler.is_compiling():
        with torch._C._AutoDispatchBelowAutograd():
            return function(*args)
    try:
        return function(*args)
    except RuntimeError as error:
        if "functorch transforms" not in str(error):
            raise
        raise RuntimeError(
            "ampgnn's operators cannot be differentiated inside torch.func (grad, vjp, jacrev, or vmap over inputs that "
            "need a gradient): use torch.autograd, and put a batch into the feature dimensions"
        ) from error
