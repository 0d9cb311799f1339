"""Graph isomorphism network (Xu et al., 2019)."""

from __future__ import annotations

import torch
from ampgnn_kernels import spmm
from torch import Tensor, nn

from .common import as_graph, autocast, autocast_dtype, source_and_destination

AGGREGATORS = ("sum", "max", "mean")


def gin_forward(layer, graph, feat, edge_weight: Tensor | None = None) -> Tensor:
    """The forward pass of a ``GINConv``, ours or DGL's (the same attributes).

    Args:
        graph: Graph or DGLGraph. feat: (N, *, in), or a pair for sources and destinations.
        edge_weight: (E,) or (E, 1) factors of the messages.

    Returns:
        What ``apply_func`` makes of the (N, *, in) sums, those in a type of features and eps, under autocast in its
        type.
    """
    view = as_graph(graph)
    source, destination = source_and_destination(feat, graph, view)
    w = None if edge_weight is None else autocast(edge_weight)
    reduce = layer._aggregator_type
    out = spmm(view, autocast(source), w, op="copy_u" if w is None else "mul", reduce=reduce)
    own = (1 + layer.eps) * destination
    out = own + out if autocast_dtype(out.device) is None else (own + out).to(out.dtype)
    if layer.apply_func is not None:
        out = layer.apply_func(out)
    return out if layer.activation is None else layer.activation(out)


class GINConv(nn.Module):
    """Graph isomorphism layer; arguments, parameters and results of ``dgl.nn.GINConv``.

    Args:
        apply_func: module applied to the sum of own and aggregated features, or None.
        aggregator_type: "sum", "max" or "mean".
        init_eps: the own features count 1 + eps times.
        learn_eps: learn eps.
        activation: applied to the result.

    Raises:
        KeyError: an unknown aggregator.
    """

    def __init__(self, apply_func=None, aggregator_type="sum", init_eps=0, learn_eps=False, activation=None):
        super().__init__()
        if aggregator_type not in AGGREGATORS:
            raise KeyError(f"aggregator_type must be one of {', '.join(AGGREGATORS)}, got {aggregator_type!r}")
        self.apply_func, self._aggregator_type, self.activation = apply_func, aggregator_type, activation
        eps = torch.tensor([float(init_eps)])
        if learn_eps:
            self.eps = nn.Parameter(eps)
        else:
            self.register_buffer("eps", eps)

    def forward(self, graph, feat, edge_weight=None):
        return gin_forward(self, graph, feat, edge_weight)

    forward.__doc__ = gin_forward.__doc__
