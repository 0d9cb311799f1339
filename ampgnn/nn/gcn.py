"""Graph convolution (Kipf and Welling, 2017)."""

from __future__ import annotations

import torch
from ampgnn_kernels import linear, sddmm, spmm
from torch import Tensor, nn

from .common import as_graph, autocast, autocast_dtype, check_in_degrees, error_of

NORMS = ("none", "both", "right", "left")


def gcn_forward(layer, graph, feat, weight: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
    """The forward pass of a ``GraphConv``, ours or DGL's (the same attributes).

    The degree norms are factors inside the sum, in float32: no degree is rounded to half and nothing overflows that
    is finite in the end.

    Args:
        graph: Graph or DGLGraph. feat: (N, *, in), or a pair for sources and destinations.
        weight: (in, out) in place of the layer's own. edge_weight: (E,) or (E, 1) factors of the messages.

    Returns:
        (N, *, out) in the features' type, under autocast in its type.
    """
    view = as_graph(graph)
    if not layer._allow_zero_in_degree:
        check_in_degrees(graph, view)
    if weight is not None and layer.weight is not None:
        raise error_of(graph)(
            "an external weight was given to a layer that has its own: construct it with weight=False"
        )
    weight = layer.weight if weight is None else weight
    out = feat[0] if isinstance(feat, tuple) else feat
    if weight is not None and layer._in_feats > layer._out_feats:  # the narrower side is aggregated
        out = _aggregate(layer, view, linear(out, weight.t()), edge_weight)
    else:
        out = _aggregate(layer, view, autocast(out), edge_weight)
        out = out if weight is None else linear(out, weight.t())
    if layer.bias is not None:
        out = out + (layer.bias if autocast_dtype(out.device) is None else layer.bias.to(out.dtype))
    return out if layer._activation is None else layer._activation(out)


def _aggregate(layer, view, x: Tensor, edge_weight: Tensor | None) -> Tensor:
    norm = layer._norm
    src_scale = view.degree_scale("out", -0.5 if norm == "both" else -1.0) if norm in ("left", "both") else None
    dst_scale = view.degree_scale("in", -0.5 if norm == "both" else -1.0) if norm in ("right", "both") else None
    if edge_weight is None:
        return spmm(view, x, op="copy_u", src_scale=src_scale, dst_scale=dst_scale)
    w = autocast(edge_weight.reshape(view.num_edges, -1))
    return spmm(view, x, w, op="mul", src_scale=src_scale, dst_scale=dst_scale)


class GraphConv(nn.Module):
    """Graph convolution layer; arguments, parameters and results of ``dgl.nn.GraphConv``.

    Args:
        in_feats, out_feats: widths of input and output.
        norm: "both" (1 / sqrt of both degrees), "right" (1 / in-degree), "left" (1 / out-degree) or "none".
        weight, bias: learn them.
        activation: applied to the result.
        allow_zero_in_degree: accept nodes without in-edges; their result is the bias.

    Raises:
        ValueError: an unknown norm.
    """

    def __init__(
        self,
        in_feats,
        out_feats,
        norm="both",
        weight=True,
        bias=True,
        activation=None,
        allow_zero_in_degree=False,
    ):
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        self._in_feats, self._out_feats, self._norm = in_feats, out_feats, norm
        self._allow_zero_in_degree = allow_zero_in_degree
        self.register_parameter("weight", nn.Parameter(torch.empty(in_feats, out_feats)) if weight else None)
        self.register_parameter("bias", nn.Parameter(torch.empty(out_feats)) if bias else None)
        self.reset_parameters()
        self._activation = activation

    def reset_parameters(self) -> None:
        """Glorot's uniform initialisation, bias 0."""
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        self._allow_zero_in_degree = set_value

    def forward(self, graph, feat, weight=None, edge_weight=None):
        return gcn_forward(self, graph, feat, weight, edge_weight)

    forward.__doc__ = gcn_forward.__doc__


def edge_weight_norm(layer, graph, edge_weight: Tensor) -> Tensor:
    """The forward pass of an ``EdgeWeightNorm``, ours or DGL's: weights over the sums of weights at their ends.

    The sums are float32: those of a hub's float16 weights do not overflow.

    Args:
        graph: Graph or DGLGraph. edge_weight: (E,), positive for norm "both".

    Returns:
        (E,) in the weights' type.
    """
    view = as_graph(graph)
    if edge_weight.dim() > 1:
        raise error_of(graph)(
            f"the normalization is defined on scalar edge weights, got shape {tuple(edge_weight.shape)}"
        )
    if layer._norm == "both":
        _check_positive(graph, edge_weight)
    if layer._norm == "none":
        return edge_weight
    wide = edge_weight.to(torch.promote_types(edge_weight.dtype, torch.float32))
    into = spmm(view, None, wide, op="copy_e") + layer._eps
    if layer._norm == "both":
        out_of = spmm(view.reverse(), None, wide, op="copy_e") + layer._eps
        factor = sddmm(view, "mul", out_of.pow(-0.5), into.pow(-0.5))
    else:
        factor = sddmm(view, "copy_rhs", None, 1 / into)
    return (wide * factor).to(edge_weight.dtype)


def _check_positive(graph, edge_weight: Tensor) -> None:
    message = "non-positive edge weight with norm both: it has no square root to divide by"
    if torch.compiler.is_compiling():
        torch._assert_async((edge_weight > 0).all(), message)
    elif bool((edge_weight <= 0).any()):
        raise error_of(graph)(message)


class EdgeWeightNorm(nn.Module):
    """Normalisation of edge weights for a ``GraphConv`` with norm "none"; as ``dgl.nn.EdgeWeightNorm``.

    Args:
        norm: "both" (square roots of the sums at both ends), "right" (sum at the destination) or "none".
        eps: added to the sums.
    """

    def __init__(self, norm="both", eps=0.0):
        super().__init__()
        self._norm, self._eps = norm, eps

    def forward(self, graph, edge_weight):
        return edge_weight_norm(self, graph, edge_weight)

    forward.__doc__ = edge_weight_norm.__doc__
