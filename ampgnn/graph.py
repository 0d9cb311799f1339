"""The graph that the kernels and ``ampgnn.nn`` work on; ``ampgnn.dgl.to_graph`` makes one of a DGLGraph."""

from ampgnn_kernels import Compressed, Graph

__all__ = ["Compressed", "Graph"]
