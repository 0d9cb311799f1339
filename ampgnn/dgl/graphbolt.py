"""Makes DGL 2.1 importable beside a torch that it has no graphbolt library for.

DGL 2.1 loads a library built for one torch version when it is imported, and fails as a whole where there is none,
though only ``dgl.graphbolt`` needs it.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

NAME = "dgl.graphbolt"


class _StandIn(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        real = PathFinder.find_spec(name, path)
        if real is None or _library(real).exists():  # an older DGL, or one that works
            return None
        return ModuleSpec(NAME, self)

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Stands in for dgl.graphbolt, which needs another torch."
        module.__getattr__ = _refuse


def _library(real: ModuleSpec) -> Path:
    torch_version = version("torch").split("+", maxsplit=1)[0]
    return Path(real.origin).parent / f"libgraphbolt_pytorch_{torch_version}.so"


def _refuse(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"{NAME}.{name} cannot be used: DGL {version('dgl')} has no graphbolt library for torch {version('torch')}; "
        "use dgl.dataloading, or a torch that DGL was built for"
    )


def stand_in() -> None:
    """Stands in for ``dgl.graphbolt`` wherever DGL has none for this torch. Calling it again changes nothing."""
    if not any(isinstance(finder, _StandIn) for finder in sys.meta_path):
        sys.meta_path.insert(0, _StandIn())
