"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_json(path: Path, value: dict) -> None:
    """Writes ``path``, in a folder that is made if need be, and puts it in place at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(part, path)
