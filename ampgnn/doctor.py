"""What this machine can do, and why not."""

from __future__ import annotations

import shutil

import torch
from rich.console import Console
from rich.table import Table

from . import containers, environment, precision, tracking
from .config import choices


def main() -> None:
    """Prints the machine, the versions, the container engines, the store, and every combination with its reason."""
    console = Console()
    about = environment.describe()
    facts = Table("what", "found", title="This machine", title_justify="left")
    for name, value in {**about["machine"], **about["versions"]}.items():
        facts.add_row(name, "-" if value is None else str(value))
    facts.add_row("torch threads", str(torch.get_num_threads()))
    for engine in containers.ENGINES:
        facts.add_row(engine, containers.engine_problem(engine) or "answers")
    facts.add_row("apptainer", "installed" if shutil.which("apptainer") else "not installed")
    facts.add_row("image", about["image"] or "-")
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
