"""The user guide's GCN: two layers, ReLU, dropout between them."""

import torch.nn.functional as F
from torch import nn

from .blocks import apply_layer, graph_of_each_layer
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
        self.recompute = config.recompute

    def forward(self, graph, features):
        """(N, num_classes) logits."""
        first, last = graph_of_each_layer(graph, len(self.layers))
        h = self.dropout(apply_layer(self.layers[0], first, features, self.recompute))
        return apply_layer(self.layers[1], last, h, self.recompute)
