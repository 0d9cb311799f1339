"""Layers on the fused kernels, with the arguments, parameters and state dict of their twins in ``dgl.nn``.

They take an ``ampgnn_kernels.Graph`` or a ``DGLGraph``, and need no DGL for the former.
"""

from .dotgat import DotGatConv
from .gat import GATConv
from .gatv2 import GATv2Conv
from .gcn import EdgeWeightNorm, GraphConv
from .gin import GINConv
from .rgcn import RelGraphConv, TypedLinear
from .sage import SAGEConv

__all__ = [
    "DotGatConv",
    "EdgeWeightNorm",
    "GATConv",
    "GATv2Conv",
    "GINConv",
    "GraphConv",
    "RelGraphConv",
    "SAGEConv",
    "TypedLinear",
]
