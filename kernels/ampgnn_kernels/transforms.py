"""Calling an operator, and giving it a gradient: as ``torch.library`` does it, at a fraction of the cost of its layers in
Python, which on a small graph is most of a call; with a clear error for transforms of ``torch.func`` that such operators
do not take."""

from __future__ import annotations

from collections.abc import Callable

import torch

_recorded: dict[Callable, type[torch.autograd.Function]] = {}


def differentiable(lib: torch.library.Library, name: str, backward: Callable, save: Callable) -> None:
    """Gives the operator ``name`` of ``lib`` a gradient.

    Args:
        backward: (ctx, *gradients of the results) -> a gradient, or None, for each argument.
        save: (ctx, arguments, result) keeps in ``ctx`` what ``backward`` needs.
    """
    operator = getattr(getattr(torch.ops, lib.ns), name).default

    def forward(ctx, *args):
        out = _below_autograd(operator, *args)
        save(ctx, args, out)
        return out

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    _recorded[operator] = type(name, (torch.autograd.Function,), members)

    def dispatched(*args):
        grad = needs_grad(*args)
        return apply(_recorded[operator], *args) if grad else _below_autograd(operator, *args)

    lib.impl(name, dispatched, "Autograd")


def needs_grad(*args) -> bool:
    """Whether a tensor among ``args`` needs a gradient that is to be recorded."""
    return torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)


def apply(function: type[torch.autograd.Function], *args):
    """``function.apply(*args)``.

    Raises:
        RuntimeError: inside ``torch.func.grad`` and what is built on it.
    """
    try:
        return function.apply(*args)
    except RuntimeError as error:
        if "functorch transforms" not in str(error):
            raise
        raise RuntimeError(
            "ampgnn's operators cannot be differentiated inside torch.func (grad, vjp, jacrev, or vmap over inputs that "
            "need a gradient): use torch.autograd, and put a batch into the feature dimensions"
        ) from error


def _below_autograd(operator: Callable, *args):
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args)


def call(operator: Callable, *args, grad: bool):
    """``operator(*args)``, past the dispatcher's look for a gradient.

    Args:
        grad: as ``needs_grad`` says of the arguments.
    """
    if torch.compiler.is_compiling() or (grad and operator not in _recorded):
        return operator(*args)
    return apply(_recorded[operator], *args) if grad else _below_autograd(operator, *args)
