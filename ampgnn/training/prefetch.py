"""Mini-batches on the device before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from ampgnn.graph import Graph

Batch = TypeVar("Batch")


def prefetch(batches: Iterable[Batch], device: torch.device | str) -> Iterator[Batch]:
    """The batches on ``device``, in order; on a GPU the next one is copied while this one is worked on.

    Copies come out of page-locked memory on a stream of their own, which the batch's first use waits for.

    Args:
        batches: tensors and ``Graph``s, or tuples, lists and dictionaries of them; anything else is passed on as it is.
    """
    device = torch.device(device)
    if device.type != "cuda":
        yield from (_each(batch, lambda t: t.to(device)) for batch in batches)
        return
    side, waiting = torch.cuda.Stream(device), None
    for batch in batches:
        with torch.cuda.stream(side):
            coming = _each(batch, lambda t: t.pin_memory().to(device, non_blocking=True))
            copied = side.record_event()
        if waiting is not None:
            yield _ready(*waiting)
        waiting = coming, copied
    if waiting is not None:
        yield _ready(*waiting)


def _ready(batch: Batch, copied: torch.cuda.Event) -> Batch:
    """The batch for the current stream, which then owns its memory."""
    stream = torch.cuda.current_stream()
    stream.wait_event(copied)
    return _each(batch, lambda t: _owned(t, stream))


def _owned(value: Tensor | Graph, stream: torch.cuda.Stream) -> Tensor | Graph:
    for t in (value,) if isinstance(value, Tensor) else value.tensors():
        t.record_stream(stream)
    return value


def _each(value, change: Callable):
    if isinstance(value, (Tensor, Graph)):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_each(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _each(v, change) for k, v in value.items()}
    return value
