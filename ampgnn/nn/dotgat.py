"""Graph attention with dot products for logits."""

from __future__ import annotations

import torch
from ampgnn_kernels import dot_attention, edge_softmax, sddmm, spmm
from torch import nn

from .common import attention_ends


def dotgat_forward(layer, graph, feat, get_attention: bool = False):
    """The forward pass of a ``DotGatConv``, ours or DGL's (the same attributes).

    Args:
        graph: Graph or DGLGraph. feat: (N, in), or a pair for sources and destinations.
        get_attention: also return the (E, H, 1) attention weights.

    Returns:
        (N, H, out); logits and weights are float32, the projected features and the result in autocast's type.
    """
    view, h, h_dst, _ = attention_ends(layer, graph, feat)
    if not get_attention:
        return dot_attention(view, h, h_dst, layer._out_feats**-0.5)
    wide = torch.promote_types(h.dtype, torch.float32)
    logits = sddmm(view, "dot", h.to(wide), h_dst.to(wide)) / layer._out_feats**0.5
    weights = edge_softmax(view, logits)
    out = spmm(view, h, weights.to(h.dtype), op="mul")
    return out, weights.to(out.dtype)


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
