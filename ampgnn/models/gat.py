"""The user guide's GAT: three layers, ELU, heads concatenated between layers and averaged at the end."""

import torch.nn.functional as F
from torch import nn

from .blocks import apply_layer, graph_of_each_layer
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
        self.recompute = config.recompute

    def forward(self, graph, features):
        """(N, num_classes) logits."""
        *graphs, last = graph_of_each_layer(graph, len(self.layers))
        h = features
        for layer, g in zip(self.layers[:-1], graphs, strict=True):
            h = self.dropout(apply_layer(layer, g, h, self.recompute).flatten(1))
        h = apply_layer(self.layers[-1], last, h, self.recompute)
        return h.mean(1) if h.shape[1] > 1 else h.squeeze(1)  # the mean of one head would cost torch a slow pass
