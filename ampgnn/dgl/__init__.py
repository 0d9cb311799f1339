"""The one seam into DGL: after ``enable()`` any DGL program computes on the kernels; nothing else patches anything."""

from .convert import to_graph
from .script import run_script
from .seam import disable, enable, enabled, is_enabled, stock_layers

__all__ = ["disable", "enable", "enabled", "is_enabled", "run_script", "stock_layers", "to_graph"]
