"""What this machine can do, and why not."""

from __future__ import annotations

import shutil
import subprocess

import torch
from rich.console import Console
from rich.table import Table

from . import environment, precision, tracking
from .config import choices


def main() -> None:
    """Prints the machine, the versions, the container engines, the store, and every combination with its reason."""
    console = Console()
    about = environment.describe()
    facts = Table("what", "found", title="This machine", title_justify="left")
    for name, value in {**about["machine"], **about["versions"]}.items():
        facts.add_row(name, "-" if value is None else str(value))
    facts.add_row("torch threads", str(torch.get_num_threads()))
    for engine in ("docker", "podman", "apptainer"):
        facts.add_row(engine, _engine(engine))
    facts.add_row("MLflow store", tracking.default_uri())
    console.print(facts)
    table = Table("device", "backend", "precision", "mode", "runs", title="Combinations", title_justify="left")
    for device in choices("device"):
        for backend in choices("backend"):
            for kind in choices("precision"):
                for mode in ("-",) if kind == "fp32" else choices("mode"):
                    reason = precision.why_not(device, kind, backend, mode)
                    table.add_row(device, backend, kind, mode, "yes" if reason is None else f"no: {reason}")
    console.print(table)


def _engine(name: str) -> str:
    if shutil.which(name) is None:
        return "not installed"
    if name == "apptainer":
        return "installed"
    answer = subprocess.run([name, "info"], capture_output=True, timeout=30)
    return "answers" if answer.returncode == 0 else "installed, does not answer"
