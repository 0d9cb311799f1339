"""Graph attention (Veličković et al., 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from ampgnn_kernels import edge_softmax, gat_attention, head_dot, sddmm, spmm
from torch import Tensor, nn

from .common import add_residual, attention_ends, passes_all


def gat_forward(layer, graph, feat, edge_weight: Tensor | None = None, get_attention: bool = False):
    """The forward pass of a ``GATConv``, ours or DGL's (the same attributes).

    Args:
        graph: Graph or DGLGraph. feat: (N, *, in), or a pair for sources and destinations.
        edge_weight: (E,) factors of the attention weights, after the softmax.
        get_attention: also return the (E, *, H, 1) attention weights.

    Returns:
        (N, *, H, out); the logits' halves are float32, the projected features and the result in autocast's type.
    """
    view, h, h_dst, destination = attention_ends(layer, graph, feat)
    heads = layer._num_heads, layer._out_feats
    copies = h.shape[1] // layer._num_heads
    a_l, a_r = (a.view(heads).repeat(copies, 1) for a in (layer.attn_l, layer.attn_r))
    el, er = head_dot(h, torch.stack((a_l, a_r))) if h_dst is h else (head_dot(h, a_l), head_dot(h_dst, a_r))
    ordinary = passes_all(layer.attn_drop) and type(layer.leaky_relu) is nn.LeakyReLU
    if edge_weight is None and not get_attention and ordinary:
        out = gat_attention(view, h, el, er, layer.leaky_relu.negative_slope)
    else:
        weights = edge_softmax(view, layer.leaky_relu(sddmm(view, "add", el, er))).unsqueeze(-1)
        weights = layer.attn_drop(weights)
        if edge_weight is not None:
            weights = weights * edge_weight.reshape(-1, 1, 1)
        out = spmm(view, h, weights.to(h.dtype), op="mul")
    shape = *destination.shape[:-1], *heads
    out = add_residual(layer, out.view(shape), destination)
    if layer.bias is not None:
        out = out + layer.bias.view(heads).to(out.dtype)
    if layer.activation is F.elu and layer.bias is not None:
        out = F.elu(out, inplace=True)  # of a sum that nobody else holds; its gradient needs the result alone
    elif layer.activation:
        out = layer.activation(out)
    return (out, weights.view(view.num_edges, *shape[1:-1], 1)) if get_attention else out


class GATConv(nn.Module):
    """Graph attention layer; arguments, parameters and results of ``dgl.nn.GATConv``.

    Args:
        in_feats: width of the input, or a pair for sources and destinations.
        out_feats: width of a head's output.
        num_heads: number of heads.
        feat_drop, attn_drop: dropout of the input and of the attention weights.
        negative_slope: of the leaky ReLU on the logits.
        residual: add the (projected) input to the result.
        activation: applied to the result.
        allow_zero_in_degree: accept nodes without in-edges; their result is the bias.
        bias: learn a bias.
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
    ):
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
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        self.leaky_relu = nn.LeakyReLU(negative_slope)
        projected = residual and self._in_dst_feats != width
        if projected:
            self.res_fc = nn.Linear(self._in_dst_feats, width, bias=bias)
        elif residual:
            self.res_fc = nn.Identity()
        else:
            self.register_buffer("res_fc", None)
        if bias and not projected:
            self.bias = nn.Parameter(torch.empty(width))
        else:
            self.register_buffer("bias", None)
        self.reset_parameters()
        self.activation = activation

    def reset_parameters(self) -> None:
        """Glorot's normal initialisation with the gain of a ReLU, biases 0, in DGL's order: a seed gives its values."""
        gain = nn.init.calculate_gain("relu")
        for fc in ("fc", "fc_src", "fc_dst"):
            if hasattr(self, fc):
                nn.init.xavier_normal_(getattr(self, fc).weight, gain=gain)
        nn.init.xavier_normal_(self.attn_l, gain=gain)
        nn.init.xavier_normal_(self.attn_r, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
            if self.res_fc.bias is not None:
                nn.init.zeros_(self.res_fc.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        self._allow_zero_in_degree = set_value

    def forward(self, graph, feat, edge_weight=None, get_attention=False):
        return gat_forward(self, graph, feat, edge_weight, get_attention)

    forward.__doc__ = gat_forward.__doc__
