"""Adam, with what half precision needs around it: loss scaling, and float32 master weights where weights are half."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Optimizer:
    """One step from a loss to new weights.

    fp16 gradients are scaled so that small ones do not vanish (``torch.amp.GradScaler``); a step whose gradients
    overflowed is skipped and counted. Half-precision weights (mode "pure") are copies of float32 master weights that
    the optimizer works on: an update below half a unit in the last place of a weight would be lost otherwise, and
    Adam's epsilon of 1e-8 is 0 in fp16 (Micikevicius et al., 2018, section 3.1).
    """

    def __init__(self, model: nn.Module, precision: str, device: str, lr: float, weight_decay: float):
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.masters = [self._master(p) for p in self.weights]
        self.adam = torch.optim.Adam(self.masters, lr=lr, weight_decay=weight_decay, fused=True)
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
        self.skipped_steps = 0

    @staticmethod
    def _master(p: Tensor) -> Tensor:
        return p if p.dtype == torch.float32 else p.detach().float().requires_grad_()

    def step(self, loss: Tensor) -> None:
        """Backward pass, update, new loss scale; leaves no gradients behind."""
        self.backward(loss)
        self.update()

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of the scaled loss to the weights'."""
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        """New weights from their gradients, which it drops, and a new loss scale."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight:
                master.grad = None if weight.grad is None else weight.grad.float()
        scale = self.loss_scale
        self.scaler.step(self.adam)
        self.scaler.update()
        self.skipped_steps += self.loss_scale < scale
        with torch.no_grad():
            for weight, master in zip(self.weights, self.masters, strict=True):
                if master is not weight:
                    weight.copy_(master)
                weight.grad = master.grad = None

    def state(self) -> tuple[dict[str, Tensor], dict]:
        """Adam's moments and the master weights by name; the loss scale and its counters, as JSON takes them."""
        adam = self.adam.state_dict()["state"]
        tensors = {f"adam.{i}.{k}": v for i, kept in adam.items() for k, v in kept.items()}
        pairs = enumerate(zip(self.weights, self.masters, strict=True))
        tensors |= {f"master.{i}": master.detach() for i, (weight, master) in pairs if master is not weight}
        return tensors, {"scaler": self.scaler.state_dict(), "skipped_steps": self.skipped_steps}

    def restore(self, tensors: dict[str, Tensor], scalars: dict) -> None:
        """Takes what ``state`` gave; the model's weights are restored before.

        Raises:
            KeyError, RuntimeError: it belongs to another model.
        """
        adam: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            kind, i, *key = name.split(".")
            if kind == "adam":
                adam.setdefault(int(i), {})[key[0]] = value
            else:
                with torch.no_grad():
                    self.masters[int(i)].copy_(value)
        self.adam.load_state_dict({"state": adam, "param_groups": self.adam.state_dict()["param_groups"]})
        self.scaler.load_state_dict(scalars["scaler"])
        self.skipped_steps = scalars["skipped_steps"]

    @property
    def loss_scale(self) -> float:
        return self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
