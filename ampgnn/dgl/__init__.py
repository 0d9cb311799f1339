"""The one seam into DGL: after ``enable()`` any DGL program computes on the kernels; nothing else patches anything."""

__all__ = ["disable", "enable", "enabled", "is_enabled", "run_script", "stock_layers", "to_graph"]

_HOMES = {"run_script": "script", "to_graph": "convert"}


def __getattr__(name: str):  # DGL is imported only by those who use it
    if name not in __all__:
        raise AttributeError(f"module 'ampgnn.dgl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES.get(name, 'seam')}", __name__), name)
