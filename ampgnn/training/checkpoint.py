"""A seed's state on disk: one file, replaced as a whole, so that a process killed at any moment leaves the last one."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from .optimizer import Optimizer


@dataclass
class State:
    """What a seed's next epoch depends on, beside torch's random generators."""

    model: nn.Module
    optimizer: Optimizer
    seed: int
    epoch: int = 0  # finished epochs


def save(path: Path, state: State, seconds: float) -> None:
    """Writes weights, optimizer, loss scale, random generators and epoch; ``path`` holds either the old or the new.

    Args:
        seconds: spent on the seed so far.
    """
    tensors, scalars = state.optimizer.state()
    tensors = {f"optimizer.{k}": v for k, v in tensors.items()}
    tensors |= {f"model.{k}": v.contiguous() for k, v in state.model.state_dict().items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    about = {"epoch": state.epoch, "seconds": seconds, "optimizer": scalars}
    part = path.with_suffix(".part")
    save_file(tensors, part, metadata={"about": json.dumps(about)})
    _to_disk(part)
    os.replace(part, path)
    _to_disk(path.parent)


def restore(path: Path, state: State) -> float:
    """Puts a saved state into ``state`` and torch's random generators; returns the seconds spent before it was saved.

    Raises:
        ValueError: no such file, or it is damaged or of another model.
    """
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["about"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        state.model.load_state_dict(_below("model.", tensors))
        state.optimizer.restore(_below("optimizer.", tensors), about["optimizer"])
        state.epoch = about["epoch"]
    except (OSError, SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be used: {' '.join(str(error).split())}") from None
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return about["seconds"]


class Schedule:
    """Tells when a checkpoint is due: every so many epochs, or once so many minutes have passed, whichever is first."""

    def __init__(self, epochs: int | None, minutes: float):
        self.epochs, self.minutes = epochs, minutes
        self.last = time.monotonic()

    def due(self, epoch: int) -> bool:
        """Whether one is due after ``epoch`` finished epochs; if so, the minutes count anew."""
        late = time.monotonic() - self.last >= 60 * self.minutes
        if late or (self.epochs is not None and epoch % self.epochs == 0):
            self.last = time.monotonic()
            return True
        return False


def _below(prefix: str, tensors: dict) -> dict:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _to_disk(path: Path) -> None:
    """Waits until a file or a folder's entries are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
