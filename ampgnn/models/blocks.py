"""What models share: a layer's graph, and activations that are made again instead of kept."""

import torch
from torch.utils.checkpoint import checkpoint


def graph_of_each_layer(graph, layers: int) -> list:
    """A list of blocks as it is, one graph once for every layer."""
    return graph if isinstance(graph, list) else [graph] * layers


def apply_layer(layer, graph, h, recompute: bool):
    """``layer(graph, h)``; with ``recompute`` only ``h`` is kept for the backward pass, which runs the layer again."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(layer, graph, h, use_reentrant=False)
    return layer(graph, h)
