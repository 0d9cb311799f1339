"""The commit that this code is from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def commit_and_dirty() -> tuple[str | None, bool | None]:
    """The commit, and whether the tree differs from it.

    An image has no .git: AMPGNN_GIT_COMMIT, baked in or given by who runs it, and AMPGNN_GIT_DIRTY tell instead.
    """
    here = Path(__file__).parent
    try:
        commit, status = (
            subprocess.run(["git", "-C", str(here), *args], capture_output=True, text=True, check=True).stdout.strip()
            for args in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
        return commit, bool(status)
    except (OSError, subprocess.CalledProcessError):
        dirty = {"True": True, "False": False}.get(os.environ.get("AMPGNN_GIT_DIRTY", ""))
        return os.environ.get("AMPGNN_GIT_COMMIT") or None, dirty
