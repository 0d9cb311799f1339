"""Running an unchanged DGL script on the kernels."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ampgnn.errors import UserError

from .seam import enable


def run_script(path: str, arguments: list[str]) -> None:
    """Runs the script as ``python path arguments...`` would, after ``enable()``.

    Raises:
        UserError: there is no such file.
    """
    if not Path(path).is_file():
        raise UserError(f"no script at {path}")
    enable()
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    runpy.run_path(path, run_name="__main__")
