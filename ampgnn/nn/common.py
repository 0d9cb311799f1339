"""What the layers share."""

from __future__ import annotations

import torch
from ampgnn_kernels import linear
from torch import Tensor, nn

from ampgnn.graph import Graph

ZERO_IN_DEGREE = (
    "There are 0-in-degree nodes in the graph, output for those nodes will be invalid: add self-loops with "
    "`g = dgl.add_self_loop(g)`, or set `allow_zero_in_degree` to True when constructing this module"
)


def as_graph(graph) -> Graph:
    """The kernels' view of a Graph (itself) or of a DGLGraph with one edge type."""
    if isinstance(graph, Graph):
        return graph
    from ampgnn.dgl import to_graph

    return to_graph(graph)


def error_of(graph) -> type[Exception]:
    """What a layer raises: DGL's own error for a DGLGraph, else ValueError."""
    if isinstance(graph, Graph):
        return ValueError
    from dgl import DGLError

    return DGLError


def check_in_degrees(graph, view: Graph) -> None:
    """Refuses nodes without in-edges.

    Raises:
        ValueError or dgl.DGLError; inside torch.compile RuntimeError.
    """
    if torch.compiler.is_compiling():
        torch._assert_async((view.in_degrees() > 0).all(), ZERO_IN_DEGREE)
    elif view.has_zero_in_degree:
        raise error_of(graph)(ZERO_IN_DEGREE)


def source_and_destination(feat: Tensor | tuple[Tensor, Tensor], graph, view: Graph) -> tuple[Tensor, Tensor]:
    """Features of both ends: a pair as it is; of one tensor the destinations are its first rows in a block (or a
    ``Graph``, which does not tell), else all of it.

    Raises:
        ValueError or dgl.DGLError: rows that do not fit the graph.
    """
    if isinstance(feat, tuple):
        source, destination = feat
    else:
        block = graph is view or graph.is_block
        source, destination = feat, first_rows(feat, view.num_dst) if block else feat
    if (source.shape[0], destination.shape[0]) != (view.num_src, view.num_dst):
        raise error_of(graph)(
            f"the graph has {view.num_src} source and {view.num_dst} destination nodes, "
            f"the features {source.shape[0]} and {destination.shape[0]} rows"
        )
    return source, destination


def first_rows(x: Tensor, count: int) -> Tensor:
    """The first ``count`` rows; ``x`` itself where those are all, or its gradient would be a padded copy."""
    return x if len(x) == count else x[:count]


def attention_ends(layer, graph, feat) -> tuple[Graph, Tensor, Tensor, Tensor]:
    """What an attention layer, ours or DGL's, computes its logits from.

    Args:
        layer: with ``fc`` for both ends, or ``fc_src`` and ``fc_dst``. feat: (N, *, in), or a pair.

    Returns:
        The kernels' view of the graph; projected features of the sources and of the destinations, (N, H, out), where H
        holds the dimensions between too; the features (N, *, in) of the destinations.

    Raises:
        ValueError or dgl.DGLError: as ``check_in_degrees`` and ``source_and_destination``.
    """
    view = as_graph(graph)
    if not layer._allow_zero_in_degree:
        check_in_degrees(graph, view)
    source, destination = source_and_destination(feat, graph, view)
    pair = isinstance(feat, tuple)
    if hasattr(layer, "feat_drop"):
        source = layer.feat_drop(source)
        destination = layer.feat_drop(destination) if pair else first_rows(source, view.num_dst)

    def project(x: Tensor, name: str) -> Tensor:
        fc = getattr(layer, name) if hasattr(layer, name) else layer.fc
        return apply_linear(fc, x).flatten(1).unflatten(1, (-1, layer._out_feats))

    h = project(source, "fc_src")
    shared = not pair and getattr(layer, "share_weights", True)
    h_dst = first_rows(h, view.num_dst) if shared else project(destination, "fc_dst").to(h.dtype)
    return view, h, h_dst, destination


def add_residual(layer, out: Tensor, destination: Tensor) -> Tensor:
    """``out`` (N, *, H, out) and, where the layer has one, its projection of the destinations' features."""
    return out if layer.res_fc is None else out + apply_linear(layer.res_fc, destination).view(out.shape).to(out.dtype)


def apply_linear(fc: nn.Module, x: Tensor) -> Tensor:
    """``fc(x)``; a plain linear layer through the kernels' product, one that is hooked or replaced as it is."""
    hooks = fc._forward_hooks or fc._forward_pre_hooks or fc._backward_hooks or fc._backward_pre_hooks
    return linear(x, fc.weight, fc.bias) if type(fc) is nn.Linear and not hooks else fc(x)


def passes_all(dropout: nn.Module) -> bool:
    """Whether the module lets every element through as it is."""
    if isinstance(dropout, nn.Dropout):
        return dropout.p == 0 or not dropout.training
    return isinstance(dropout, nn.Identity)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast asks for on a device, None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def autocast(t: Tensor) -> Tensor:
    """``t`` in autocast's type, where it is on and t is a float of another width (float64 stays)."""
    dtype = autocast_dtype(t.device)
    return t if dtype is None or not t.is_floating_point() or t.dtype == torch.float64 else t.to(dtype)
