"""Graph attention with dynamic logits (Brody et al., 2022)."""

from __future__ import annotations

import torch
from ampgnn_kernels import edge_softmax, gatv2_attention, head_dot, sddmm, spmm
from torch import nn

from .common import add_residual, attention_ends, passes_all


def gatv2_forward(layer, graph, feat, get_attention: bool = False):
    """The forward pass of a ``GATv2Conv``, ours or DGL's (the same attributes).

    Args:
        graph: Graph or DGLGraph. feat: (N, in), or a pair for sources and destinations.
        get_attention: also return the (E, H, 1) attention weights.

    Returns:
        (N, H, out); logits and weights are float32, the projected features and the result in autocast's type.
    """
    view, h, h_dst, destination = attention_ends(layer, graph, feat)
    attn = layer.attn.view(layer._num_heads, layer._out_feats)
    if passes_all(layer.attn_drop) and type(layer.leaky_relu) is nn.LeakyReLU and not get_attention:
        out = gatv2_attention(view, h, h_dst, attn, layer.leaky_relu.negative_slope)
    else:
        logits = head_dot(layer.leaky_relu(sddmm(view, "add", h, h_dst)), attn)
        weights = layer.attn_drop(edge_softmax(view, logits).unsqueeze(-1))
        out = spmm(view, h, weights.to(h.dtype), op="mul")
    out = add_residual(layer, out, destination)
    if layer.activation:
        out = layer.activation(out)
    return (out, weights.to(out.dtype)) if get_attention else out


class GATv2Conv(nn.Module):
    """Graph attention layer with dynamic logits; arguments, parameters and results of ``dgl.nn.GATv2Conv``.

    Args:
        in_feats: width of the input, or a pair for sources and destinations.
        out_feats: width of a head's output.
        num_heads: number of heads.
        feat_drop, attn_drop: dropout of the input and of the attention weights.
        negative_slope: of the leaky ReLU inside the logits.
        residual: add the (projected) input to the result.
        activation: applied to the result.
        allow_zero_in_degree: accept nodes without in-edges; their result is 0.
        bias: learn biases of the projections.
        share_weights: one projection for sources and destinations.
    """

    def __init__(
        self,
        in_feats,
        out_feats,
        num_heads,
        feat_drop=0.0,
        attn_drop=0.0,
        negative_slope=0.2,
        residual=False,
        activation=None,
        allow_zero_in_degree=False,
        bias=True,
        share_weights=False,
    ):
        super().__init__()
        self._num_heads, self._out_feats = num_heads, out_feats
        self._in_src_feats, self._in_dst_feats = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        self._allow_zero_in_degree = allow_zero_in_degree
        width = num_heads * out_feats
        self.fc_src = nn.Linear(self._in_src_feats, width, bias=bias)
        shared = share_weights and not isinstance(in_feats, tuple)
        self.fc_dst = self.fc_src if shared else nn.Linear(self._in_dst_feats, width, bias=bias)
        self.attn = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        self.leaky_relu = nn.LeakyReLU(negative_slope)
        if residual and self._in_dst_feats != width:
            self.res_fc = nn.Linear(self._in_dst_feats, width, bias=bias)
        elif residual:
            self.res_fc = nn.Identity()
        else:
            self.register_buffer("res_fc", None)
        self.activation, self.share_weights, self.bias = activation, share_weights, bias
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's normal initialisation with the gain of a ReLU, biases 0, in DGL's order: a seed gives its values."""
        gain = nn.init.calculate_gain("relu")

        def reset(fc: nn.Linear) -> None:
            nn.init.xavier_normal_(fc.weight, gain=gain)
            if self.bias:
                nn.init.zeros_(fc.bias)

        reset(self.fc_src)
        if not self.share_weights:
            reset(self.fc_dst)
        nn.init.xavier_normal_(self.attn, gain=gain)
        if isinstance(self.res_fc, nn.Linear):
            reset(self.res_fc)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        self._allow_zero_in_degree = set_value

    def forward(self, graph, feat, get_attention=False):
        return gatv2_forward(self, graph, feat, get_attention)

    forward.__doc__ = gatv2_forward.__doc__
