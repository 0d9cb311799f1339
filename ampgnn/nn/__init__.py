"""Layers on the fused kernels, with the arguments, parameters and state dict of their twins in ``dgl.nn``.

They take an ``ampgnn_kernels.Graph`` or a ``DGLGraph``, and need no DGL for the former.
"""

from .gat import GATConv
from .gcn import GraphConv

__all__ = ["GATConv", "GraphConv"]
