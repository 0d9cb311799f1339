"""The passes of a training step as one CUDA graph: a launch a step in place of some hundred."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UPS = 3  # in which kernels are compiled and what is kept for a graph is made


class CapturedPasses:
    """Forward and backward pass of a step whose shapes and addresses never change.

    Loss scaling stays right: the scale is a tensor that the recorded passes read. The optimizer's step is not
    recorded, since whether it is skipped is decided on the CPU.

    Args:
        passes: runs both passes, leaves gradients in the parameters and returns the loss.
    """

    def __init__(self, passes: Callable[[], Tensor], parameters: list[Tensor]):
        self.parameters = parameters
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._drop()
                passes()
        torch.cuda.current_stream().wait_stream(side)
        self._drop()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = passes()
        self.gradients = [p.grad for p in parameters]

    def _drop(self) -> None:
        for p in self.parameters:
            p.grad = None

    def __call__(self) -> Tensor:
        self.graph.replay()
        for p, gradient in zip(self.parameters, self.gradients, strict=True):
            p.grad = gradient
        return self.loss
