"""Dropout that falls on the same elements in every precision."""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """As ``torch.nn.Dropout``, its mask drawn in float32 whatever the input's type.

    torch draws other masks from one seed for other types, so that runs in two precisions would differ by more than
    their rounding.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = torch.empty(x.shape, device=x.device).bernoulli_(1 - self.p)
        return x * (keep / (1 - self.p)).to(x.dtype)
