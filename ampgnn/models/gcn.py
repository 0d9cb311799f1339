"""The user guide's GCN: two layers, ReLU, dropout between them."""

import torch.nn.functional as F
from torch import nn

from .dropout import Dropout


class GCN(nn.Module):
    def __init__(self, layers, in_feats: int, num_classes: int, config):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                layers.GraphConv(in_feats, config.hidden, activation=F.relu),
                layers.GraphConv(config.hidden, num_classes),
            ]
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, graph, features):
        """(N, num_classes) logits."""
        return self.layers[1](graph, self.dropout(self.layers[0](graph, features)))
