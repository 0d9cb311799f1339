"""A progress bar on a terminal, plain lines elsewhere, and the same lines in the log."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINES = 10  # of a seed, in the log


class Progress:
    """Shows the epochs of all seeds of a configuration; writes ``log``."""

    def __init__(self, config, log: Path):
        self.config, self.log = config, log
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Bar(*columns, console=self.console, disable=not self.console.is_terminal)
        self.start = time.perf_counter()

    def __enter__(self):
        self.file = self.log.open("a")
        self.bar.start()
        name = f"{self.config.dataset} {self.config.id}"
        self.task = self.bar.add_task(name, total=self.config.epochs * len(self.config.seeds))
        self.note(f"{name}: {self.config.epochs} epochs, seeds {', '.join(map(str, self.config.seeds))}")
        return self

    def __exit__(self, *_):
        self.bar.stop()
        self.file.close()

    def advance(self, seed: int, metrics: dict) -> None:
        epoch, epochs = metrics["step"] + 1, self.config.epochs
        text = f"seed {seed} loss {metrics['train/loss']:.4f} val {metrics['val/acc']:.3f}"
        self.bar.update(self.task, advance=1, description=f"{self.config.dataset} {self.config.id} {text}")
        if epoch == epochs or epoch * LINES // epochs != (epoch - 1) * LINES // epochs:
            self._write(f"{text} test {metrics['test/acc']:.3f} epoch {epoch}/{epochs} ({100 * epoch // epochs} %)")

    def skip(self, seed: int, epochs: int) -> None:
        """Counts epochs that an earlier process trained."""
        self.bar.update(self.task, advance=epochs)
        self.note(f"seed {seed} goes on after epoch {epochs}/{self.config.epochs}")

    def note(self, text: str) -> None:
        self._write(text)

    def _write(self, text: str) -> None:
        line = f"[{time.perf_counter() - self.start:7.1f} s] {text}"
        self.file.write(line + "\n")
        self.file.flush()
        if not self.console.is_terminal:
            print(line, flush=True)
