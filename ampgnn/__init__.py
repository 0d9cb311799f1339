"""Mixed-precision training of graph neural networks: right, fast and reproducible.

``ampgnn.enable()`` makes any DGL program in this process compute on the native kernels, in every precision.
"""

from .dgl.graphbolt import stand_in

stand_in()

__version__ = "0.1.0"
__all__ = ["disable", "enable", "enabled", "reorder", "supports"]

_HOMES = {
    "enable": "ampgnn.dgl",
    "disable": "ampgnn.dgl",
    "enabled": "ampgnn.dgl",
    "reorder": "ampgnn.dgl.reorder",
    "supports": "ampgnn.precision",
}


def __getattr__(name: str):  # DGL is imported only by those who use it
    if name not in _HOMES:
        raise AttributeError(f"module 'ampgnn' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
