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
        self.adam = torch.optim.Adam(self.masters, lr=lr, weight_decay=weight_decay)
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

    @property
    def loss_scale(self) -> float:
        return self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
