"""Graph attention with dot products for logits."""

from __future__ import annotations

import torch
from ampgnn_kernels import dot_attention, edge_softmax, is_fused, sddmm, spmm
from torch import nn

from .common import apply_linear, as_graph, check_in_degrees, source_and_destination


def dotgat_forward(layer, graph, feat, get_attention: bool = False):
    """The forward pass of a ``DotGatConv``, ours or DGL's (the same attributes).

    Args:
        graph: Graph or DGLGraph. feat: (N, in), or a pair for sources and destinations.
        get_attention: also return the (E, H, 1) attention weights.

    Returns:
        (N, H, out); logits and weights are float32, the projected features and the result in autocast's type.
    """
    view = as_graph(graph)
    if not layer._allow_zero_in_degree:
        check_in_degrees(graph, view)
    source, destination = source_and_destination(feat, graph, view)
    heads = layer._num_heads, layer._out_feats
    pair = isinstance(feat, tuple)
    h = apply_linear(layer.fc_src if pair else layer.fc, source).view(-1, *heads)
    h_dst = apply_linear(layer.fc_dst, destination).view(-1, *heads) if pair else h[: view.num_dst]
    if not get_attention and is_fused("dot_attention", h.device):
        return dot_attention(view, h, h_dst.to(h.dtype), layer._out_feats**-0.5)
    wide = torch.promote_types(h.dtype, torch.float32)
    logits = sddmm(view, "dot", h.to(wide), h_dst.to(wide)) / layer._out_feats**0.5
    weights = edge_softmax(view, logits)
    out = spmm(view, h, weights.to(h.dtype), op="mul")
    return (out, weights.to(out.dtype)) if get_attention else out


class DotGatConv(nn.Module):
    """Graph attention layer with dot products; arguments, parameters and results of ``dgl.nn.DotGatConv``.

    Args:
        in_feats: width of the input, or a pair for sources and destinations.
        out_feats: width of a head's output.
        num_heads: number of heads.
        allow_zero_in_degree: accept nodes without in-edges; their result is 0.
    """

    def __init__(self, in_feats, out_feats, num_heads, allow_zero_in_degree=False):
        super().__init__()
        self._num_heads, self._out_feats = num_heads, out_feats
        self._in_src_feats, self._in_dst_feats = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        self._allow_zero_in_degree = allow_zero_in_degree
        width = num_heads * out_feats
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(self._in_src_feats, width, bias=False)
            self.fc_dst = nn.Linear(self._in_dst_feats, width, bias=False)
        else:
            self.fc = nn.Linear(self._in_src_feats, width, bias=False)

    def forward(self, graph, feat, get_attention=False):
        return dotgat_forward(self, graph, feat, get_attention)

    forward.__doc__ = dotgat_forward.__doc__
