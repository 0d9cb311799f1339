"""More than one training process: what torchrun's environment says, and the little that they tell each other."""

from __future__ import annotations

import os
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor


@contextmanager
def joined(device: str):
    """Joins the processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield
        return
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """0 is the process that evaluates and writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def told(value):
    """What process 0 gave."""
    if size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def added(value: Tensor) -> Tensor:
    """The sum over the processes."""
    if size() > 1:
        dist.all_reduce(value)
    return value
