"""Relational graph convolution (Schlichtkrull et al., 2018)."""

from __future__ import annotations

import math

import torch
from ampgnn_kernels import linear, segment_linear, spmm
from torch import Tensor, nn

from ampgnn.graph import Graph

from .common import as_graph, autocast, error_of

REGULARIZERS = (None, "basis", "bdd")


def rel_graph_forward(layer, g, feat, etypes, norm: Tensor | None = None, *, presorted: bool = False) -> Tensor:
    """The forward pass of a ``RelGraphConv``, ours or DGL's (the same attributes).

    A node is projected once for each type of its out-edges, not once for each edge, and the projections are summed
    in float32: no message is held.

    Args:
        g: Graph or DGLGraph. feat: (N, in).
        etypes: (E,) integers, the types of the edges.
        norm: (E,) or (E, 1) factors of the messages.
        presorted: accepted for DGL's sake; sorted types need no other way here.

    Returns:
        (N, out) in the features' type, under autocast in its type.
    """
    view = as_graph(g)
    etypes = torch.as_tensor(etypes, device=feat.device)
    if feat.shape[0] != view.num_src or etypes.shape[0] != view.num_edges:
        raise error_of(g)(
            f"the graph has {view.num_src} source nodes and {view.num_edges} edges, "
            f"there are features of {feat.shape[0]} and types of {etypes.shape[0]}"
        )
    src, dst = view.coo()
    sources, kinds, pair = _pairs(src, etypes)
    projected = _project(layer.linear_r, feat[sources], kinds)
    messages = Graph.from_coo(pair.to(dst.dtype), dst, len(sources), view.num_dst)
    w = None if norm is None else autocast(norm.reshape(view.num_edges, 1))
    out = spmm(messages, projected, w, op="copy_u" if w is None else "mul")
    if layer.layer_norm:
        out = layer.layer_norm_weight(out)
    if layer.bias:
        out = out + layer.h_bias.to(out.dtype)
    if layer.self_loop:
        out = out + linear(feat[: view.num_dst], layer.loop_weight.t()).to(out.dtype)
    if layer.activation:
        out = layer.activation(out)
    return layer.dropout(out)


def _pairs(src: Tensor, etypes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs of source and type that there are, in order of types: sources, types, and the pair of each edge."""
    if torch.compiler.is_compiling():  # their number would be a shape that depends on values: a pair for each edge
        order = torch.argsort(etypes, stable=True)
        return src[order].long(), etypes[order], torch.argsort(order)
    nodes = int(src.max()) + 1 if src.numel() else 1
    pairs, pair = torch.unique(etypes.long() * nodes + src.long(), return_inverse=True)
    return pairs % nodes, pairs // nodes, pair


def _project(typed, x: Tensor, kinds: Tensor) -> Tensor:
    """Each row of ``x`` times the weight of its kind; the kinds are sorted."""
    weight = typed.get_weight()
    lengths = torch.zeros(typed.num_types, dtype=torch.int64, device=x.device)
    lengths = lengths.index_add(0, kinds, torch.ones_like(kinds, dtype=torch.int64))
    if typed.regularizer != "bdd":
        return segment_linear(autocast(x), autocast(weight), lengths)
    blocks = autocast(weight).view(-1, typed.num_bases, typed.submat_in, typed.submat_out).transpose(0, 1)
    parts = autocast(x).view(-1, typed.num_bases, typed.submat_in).transpose(0, 1)
    return torch.cat([segment_linear(part, block, lengths) for part, block in zip(parts, blocks, strict=True)], 1)


class TypedLinear(nn.Module):
    """A weight for each type; parameters of ``dgl.nn.TypedLinear``.

    Args:
        in_size, out_size: widths of input and output. num_types: number of types.
        regularizer: None, "basis" (each weight is a combination of ``num_bases``) or "bdd" (each weight is
            ``num_bases`` blocks on the diagonal).

    Raises:
        ValueError: an unknown regularizer, or widths that the blocks do not divide.
    """

    def __init__(self, in_size, out_size, num_types, regularizer=None, num_bases=None):
        super().__init__()
        if regularizer not in REGULARIZERS:
            raise ValueError(f"regularizer must be None, basis or bdd, got {regularizer!r}")
        if regularizer is not None and num_bases is None:
            raise ValueError(f'Missing "num_bases" for {regularizer} regularization.')
        self.in_size, self.out_size, self.num_types = in_size, out_size, num_types
        self.regularizer, self.num_bases = regularizer, num_bases
        if regularizer is None:
            self.W = nn.Parameter(torch.empty(num_types, in_size, out_size))
        elif regularizer == "basis":
            self.W = nn.Parameter(torch.empty(num_bases, in_size, out_size))
            self.coeff = nn.Parameter(torch.empty(num_types, num_bases))
        else:
            if in_size % num_bases != 0 or out_size % num_bases != 0:
                raise ValueError(f"Input and output sizes must be divisible by num_bases, {num_bases}.")
            self.submat_in, self.submat_out = in_size // num_bases, out_size // num_bases
            self.W = nn.Parameter(torch.empty(num_types, num_bases * self.submat_in * self.submat_out))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform between -1 and 1 over the square root of a block's input width, coefficients after Glorot."""
        bound = 1 / math.sqrt(self.submat_in if self.regularizer == "bdd" else self.in_size)
        nn.init.uniform_(self.W, -bound, bound)
        if self.regularizer == "basis":
            nn.init.xavier_uniform_(self.coeff, gain=nn.init.calculate_gain("relu"))

    def get_weight(self) -> Tensor:
        """(types, in, out), the combinations made; for "bdd" the blocks, (types, bases * in * out / bases**2)."""
        if self.regularizer != "basis":
            return self.W
        return (self.coeff @ self.W.flatten(1)).view(self.num_types, self.in_size, self.out_size)

    def forward(self, x: Tensor, x_type: Tensor, sorted_by_type: bool = False) -> Tensor:
        """(N, in) rows and their (N,) types to (N, out)."""
        if sorted_by_type:
            return _project(self, x, x_type)
        order = torch.argsort(x_type, stable=True)
        return _project(self, x[order], x_type[order])[torch.argsort(order)]


class RelGraphConv(nn.Module):
    """Relational graph convolution; arguments, parameters and results of ``dgl.nn.RelGraphConv``.

    Args:
        in_feat, out_feat: widths of input and output. num_rels: number of edge types.
        regularizer, num_bases: of the types' weights, see ``TypedLinear``; ``num_bases`` is ``num_rels`` by default.
        bias: learn a bias. activation: applied to the result.
        self_loop: add the node's own projection. dropout: of the result. layer_norm: normalise the sums.
    """

    def __init__(
        self,
        in_feat,
        out_feat,
        num_rels,
        regularizer=None,
        num_bases=None,
        bias=True,
        activation=None,
        self_loop=True,
        dropout=0.0,
        layer_norm=False,
    ):
        super().__init__()
        if regularizer is not None and num_bases is None:
            num_bases = num_rels
        self.linear_r = TypedLinear(in_feat, out_feat, num_rels, regularizer, num_bases)
        self.bias, self.activation, self.self_loop, self.layer_norm = bias, activation, self_loop, layer_norm
        if bias:
            self.h_bias = nn.Parameter(torch.zeros(out_feat))
        if layer_norm:
            self.layer_norm_weight = nn.LayerNorm(out_feat, elementwise_affine=True)
        if self_loop:
            self.loop_weight = nn.Parameter(torch.empty(in_feat, out_feat))
            nn.init.xavier_uniform_(self.loop_weight, gain=nn.init.calculate_gain("relu"))
        self.dropout = nn.Dropout(dropout)

    def forward(self, g, feat, etypes, norm=None, *, presorted=False):
        return rel_graph_forward(self, g, feat, etypes, norm, presorted=presorted)

    forward.__doc__ = rel_graph_forward.__doc__
