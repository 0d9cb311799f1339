"""Message passing for graph neural networks in float64, float32, float16 and bfloat16, as torch operators.

Sums, softmax and dot products are made in float32 (float64 for float64) and stored in the caller's type.
"""

import torch  # noqa: F401  (first: the native module shares torch's OpenMP)

from ._C import isa, set_isa, supported_isas
from .functional import dot_attention, edge_softmax, gat_attention, gatv2_attention, sddmm, spmm
from .graph import Compressed, Graph
from .linear import head_dot, linear, segment_linear

__all__ = [
    "Compressed",
    "Graph",
    "dot_attention",
    "edge_softmax",
    "gat_attention",
    "gatv2_attention",
    "head_dot",
    "isa",
    "linear",
    "sddmm",
    "segment_linear",
    "set_isa",
    "spmm",
    "supported_isas",
]
__version__ = "0.1.0"
