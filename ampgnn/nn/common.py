"""What the layers share."""

from __future__ import annotations

import torch
from ampgnn_kernels import Graph
from torch import Tensor

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


def check_in_degrees(graph, view: Graph) -> None:
    """Refuses nodes without in-edges, with DGL's own error for a DGLGraph.

    Raises:
        ValueError or dgl.DGLError.
    """
    if not view.has_zero_in_degree:
        return
    if graph is view:
        raise ValueError(ZERO_IN_DEGREE)
    from dgl import DGLError

    raise DGLError(ZERO_IN_DEGREE)


def source_and_destination(feat: Tensor | tuple[Tensor, Tensor], graph: Graph) -> tuple[Tensor, Tensor]:
    """Features of both ends: a pair as it is; of one tensor the destinations are its first rows, as in DGL's blocks."""
    return feat if isinstance(feat, tuple) else (feat, feat[: graph.num_dst])


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast asks for on a device, None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def autocast(t: Tensor) -> Tensor:
    """``t`` in autocast's type, where it is on and t is a float of another width (float64 stays)."""
    dtype = autocast_dtype(t.device)
    return t if dtype is None or not t.is_floating_point() or t.dtype == torch.float64 else t.to(dtype)
