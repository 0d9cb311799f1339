"""GraphSAGE (Hamilton et al., 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from ampgnn_kernels import spmm
from torch import Tensor, nn

from ampgnn.graph import Graph

from .common import apply_linear, as_graph, autocast, autocast_dtype, error_of, source_and_destination

AGGREGATORS = ("mean", "gcn", "pool", "lstm")


def sage_forward(layer, graph, feat, edge_weight: Tensor | None = None) -> Tensor:
    """The forward pass of a ``SAGEConv``, ours or DGL's (the same attributes).

    Means are sums in float32 with the division inside, so that a hub's does not overflow in float16.

    Args:
        graph: Graph or DGLGraph. feat: (N, in), or a pair for sources and destinations.
        edge_weight: (E,) or (E, 1) factors of the messages.

    Returns:
        (N, out) in the features' type, under autocast in its type.
    """
    view = as_graph(graph)
    source, destination = source_and_destination(feat, graph, view)
    kind = layer._aggre_type
    if kind == "gcn" and source.shape[1:] != destination.shape[1:]:
        raise error_of(graph)(
            f"The feature shape of source nodes: {tuple(source.shape[1:])} should be equal to the feature shape of "
            f"destination nodes: {tuple(destination.shape[1:])}."
        )
    pair = isinstance(feat, tuple)
    source = layer.feat_drop(source)
    destination = layer.feat_drop(destination) if pair else source[: view.num_dst]
    w = None if edge_weight is None else autocast(edge_weight)
    narrow_first = kind in ("mean", "gcn") and layer._in_src_feats > layer._out_feats
    x = apply_linear(layer.fc_neigh, source) if narrow_first else autocast(source)
    if kind == "mean":
        out = _aggregate(view, x, w, "mean")
    elif kind == "gcn":
        own = x[: view.num_dst] if not pair else destination
        own = apply_linear(layer.fc_neigh, own) if pair and narrow_first else autocast(own)
        scale = 1 / (view.in_degrees() + 1).to(torch.promote_types(x.dtype, torch.float32))
        out = _aggregate(view, x, w, "sum", dst_scale=scale)
        out = out + (own * scale[:, None]).to(out.dtype)
    elif kind == "pool":
        out = _aggregate(view, F.relu(apply_linear(layer.fc_pool, source)), w, "max")
    else:
        out = _last_states(layer.lstm, view, x, w)
    if not narrow_first:
        out = apply_linear(layer.fc_neigh, out)
    if kind != "gcn":
        out = apply_linear(layer.fc_self, destination) + out
    elif layer.bias is not None:
        out = out + layer.bias.to(out.dtype)
    out = out if layer.activation is None else layer.activation(out)
    return out if layer.norm is None else layer.norm(out)


def _aggregate(view: Graph, x: Tensor, w: Tensor | None, reduce: str, dst_scale: Tensor | None = None) -> Tensor:
    return spmm(view, x, w, op="copy_u" if w is None else "mul", reduce=reduce, dst_scale=dst_scale)


def _last_states(lstm: nn.LSTM, view: Graph, x: Tensor, w: Tensor | None) -> Tensor:
    """The last hidden state over each destination's messages in edge order, those of equal degree together."""
    if autocast_dtype(x.device) is None:  # which casts the parameters; without it torch refuses other types than theirs
        x = x.to(torch.promote_types(x.dtype, lstm.weight_ih_l0.dtype))
    indptr, indices, eids = view.csc
    degrees = indptr.diff()
    rows, states = [(degrees == 0).nonzero()[:, 0]], [x.new_zeros((int((degrees == 0).sum()), lstm.hidden_size))]
    for degree in degrees.unique().tolist():
        if degree == 0:
            continue
        row = (degrees == degree).nonzero()[:, 0]
        entry = indptr[row, None].long() + torch.arange(degree, device=indptr.device)
        messages = x[indices[entry].long()]
        if w is not None:
            messages = messages * w.reshape(len(w), -1)[entry if eids is None else eids[entry].long()]
        rows.append(row)
        states.append(lstm(messages)[1][0].squeeze(0))
    return torch.cat(states)[torch.argsort(torch.cat(rows))]


class SAGEConv(nn.Module):
    """GraphSAGE layer; arguments, parameters and results of ``dgl.nn.SAGEConv``.

    Args:
        in_feats: width of the input, or a pair for sources and destinations.
        out_feats: width of the output.
        aggregator_type: "mean", "gcn", "pool" or "lstm".
        feat_drop: dropout of the input.
        bias: learn a bias.
        norm, activation: applied to the result, the activation first.

    Raises:
        ValueError: an unknown aggregator.
    """

    def __init__(self, in_feats, out_feats, aggregator_type, feat_drop=0.0, bias=True, norm=None, activation=None):
        super().__init__()
        if aggregator_type not in AGGREGATORS:
            raise ValueError(f"aggregator_type must be one of {', '.join(AGGREGATORS)}, got {aggregator_type!r}")
        self._in_src_feats, self._in_dst_feats = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        self._out_feats, self._aggre_type = out_feats, aggregator_type
        self.norm, self.feat_drop, self.activation = norm, nn.Dropout(feat_drop), activation
        if aggregator_type == "pool":
            self.fc_pool = nn.Linear(self._in_src_feats, self._in_src_feats)
        if aggregator_type == "lstm":
            self.lstm = nn.LSTM(self._in_src_feats, self._in_src_feats, batch_first=True)
        self.fc_neigh = nn.Linear(self._in_src_feats, out_feats, bias=False)
        if aggregator_type != "gcn":
            self.fc_self = nn.Linear(self._in_dst_feats, out_feats, bias=bias)
        elif bias:
            self.bias = nn.Parameter(torch.zeros(out_feats))
        else:
            self.register_buffer("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's uniform initialisation with the gain of a ReLU, in DGL's order: a seed gives its values."""
        gain = nn.init.calculate_gain("relu")
        if self._aggre_type == "pool":
            nn.init.xavier_uniform_(self.fc_pool.weight, gain=gain)
        if self._aggre_type == "lstm":
            self.lstm.reset_parameters()
        if self._aggre_type != "gcn":
            nn.init.xavier_uniform_(self.fc_self.weight, gain=gain)
        nn.init.xavier_uniform_(self.fc_neigh.weight, gain=gain)

    def forward(self, graph, feat, edge_weight=None):
        return sage_forward(self, graph, feat, edge_weight)

    forward.__doc__ = sage_forward.__doc__
