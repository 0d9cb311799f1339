"""How a graph's rows are cut into pieces of work, once a graph.

A row of at most ``CHUNK`` edges is one piece; a longer one is split into pieces of ``CHUNK``, so that no hub keeps one
program busy for long. A program takes a few consecutive pieces and walks them side by side, so whole rows are put in
order of their length's power of two: neighbours end at about the same time, and the longest start first. The partial
results of split rows are combined in a second pass in the order of their edges. There are no atomics, so the same
input gives the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

CHUNK = 1024  # edges


class Schedule(NamedTuple):
    """Piece ``i`` is the entries ``start[i]`` to ``stop[i]`` of row ``row[i]``; the first ``split`` are parts of rows.

    Partial results lie in the order of the pieces: those of the row ``split_row[j]`` are ``split_first[j]`` to
    ``split_first[j + 1]``.
    """

    row: Tensor  # (pieces,), ids as wide as the graph's
    start: Tensor
    stop: Tensor
    split: int
    split_row: Tensor  # (split rows,)
    split_first: Tensor  # (split rows + 1,)
    mean_length: float

    @property
    def pieces(self) -> int:
        return self.row.shape[0]


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # of indptr: the schedule
_entries: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # of eids: the entry of each edge


def schedule_of(indptr: Tensor, indices: Tensor) -> Schedule:
    """The graph's schedule, made when first asked for and kept as long as ``indptr``."""
    if indptr not in _kept:
        _kept[indptr] = _make(indptr, indices.shape[0])
    return _kept[indptr]


def entry_of(eids: Tensor) -> Tensor:
    """(edges,) the entry that holds each edge, kept as long as ``eids``."""
    if eids not in _entries:
        entries = torch.arange(eids.shape[0], dtype=eids.dtype, device=eids.device)
        _entries[eids] = torch.empty_like(eids).index_copy_(0, eids.long(), entries)
    return _entries[eids]


def _make(indptr: Tensor, edges: int) -> Schedule:
    degree = indptr.diff()
    long, whole = (degree > CHUNK).nonzero().flatten(), (degree <= CHUNK).nonzero().flatten()
    whole = whole[torch.argsort(_length_class(degree[whole]), descending=True, stable=True)]

    parts = (degree[long] + CHUNK - 1) // CHUNK
    first = torch.cat([parts.new_zeros(1), parts.cumsum(0)])
    row = long.repeat_interleave(parts)
    part = torch.arange(row.shape[0], device=row.device) - first[:-1].repeat_interleave(parts)
    start = indptr[row] + part * CHUNK
    stop = torch.minimum(start + CHUNK, indptr[row + 1])

    def ids(*tensors: Tensor) -> Tensor:
        return torch.cat(tensors).to(indptr.dtype)

    pieces = row.shape[0] + whole.shape[0]
    return Schedule(
        row=ids(row, whole),
        start=ids(start, indptr[whole]),
        stop=ids(stop, indptr[whole + 1]),
        split=row.shape[0],
        split_row=ids(long),
        split_first=ids(first),
        mean_length=edges / max(pieces, 1),
    )


def _length_class(degree: Tensor) -> Tensor:
    """The exponent of the power of two above ``degree``; 0 for 0."""
    return torch.frexp(degree.float()).exponent
