"""The operators on the GPU, as Triton kernels: imported when the first operator meets a CUDA tensor.

Each kernel walks the pieces of a ``Schedule``; see ``schedule.py`` for the design they share.
"""

try:
    import triton  # noqa: F401
except ImportError:
    message = "ampgnn_kernels on CUDA tensors needs triton, which CUDA builds of torch bring: pip install triton"
    raise NotImplementedError(message) from None

from .attention import gat_attention, gat_attention_backward
from .edge_softmax import edge_softmax, edge_softmax_backward
from .extreme import arg_scatter
from .pair_attention import dot_attention, dot_attention_backward, gatv2_attention, gatv2_attention_backward
from .sddmm import sddmm
from .spmm import spmm

__all__ = [
    "arg_scatter",
    "dot_attention",
    "dot_attention_backward",
    "edge_softmax",
    "edge_softmax_backward",
    "gat_attention",
    "gat_attention_backward",
    "gatv2_attention",
    "gatv2_attention_backward",
    "sddmm",
    "spmm",
]
