"""The user guide's GAT: three layers, ELU, heads concatenated between layers and averaged at the end."""

import torch.nn.functional as F
from torch import nn

from .dropout import Dropout


class GAT(nn.Module):
    def __init__(self, layers, in_feats: int, num_classes: int, config):
        super().__init__()
        heads, hidden = config.heads, config.hidden
        widths = [in_feats, *(hidden * h for h in heads[:-1])]
        outs = [hidden] * (len(heads) - 1) + [num_classes]
        self.layers = nn.ModuleList(
            layers.GATConv(i, o, h, activation=F.elu) for i, o, h in zip(widths, outs, heads, strict=True)
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, graph, features):
        """(N, num_classes) logits."""
        h = features
        for layer in self.layers[:-1]:
            h = self.dropout(layer(graph, h).flatten(1))
        return self.layers[-1](graph, h).mean(1)
