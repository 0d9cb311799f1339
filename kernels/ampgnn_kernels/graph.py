"""A graph as torch tensors: compressed by destination (CSC) and by source (CSR)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from . import _C


class Compressed(NamedTuple):
    """Edges grouped by row: entries ``indptr[r]`` to ``indptr[r + 1]`` belong to row ``r``.

    Entry ``k`` is the edge ``eids[k]`` (``k`` itself where ``eids`` is None); its other end is ``indices[k]``.
    """

    indptr: Tensor  # (rows + 1,)
    indices: Tensor  # (edges,)
    eids: Tensor | None  # (edges,)

    def tidy(self) -> Compressed:
        """The same rows as the kernels like them, on the CPU: without ``eids`` where those count 0, 1, 2, ..., and, for
        many edges, with rising indices, the order in which the kernels walk by tiles."""
        indptr, indices, eids = self
        edges, rows, wide = indices.numel(), indptr.numel() - 1, indices.dtype == torch.int64
        if indices.device.type != "cpu" or _is_traced(indices):
            return self
        if eids is not None and _counts(eids):
            eids = None
        if edges < MANY_EDGES or _C.indices_rise(indptr.data_ptr(), indices.data_ptr(), rows, wide):
            return Compressed(indptr, indices, eids)
        indices = indices.clone()
        eids = torch.arange(edges, dtype=indices.dtype) if eids is None else eids.clone()
        _C.sort_rows(indptr.data_ptr(), rows, indices.data_ptr(), eids.data_ptr(), wide)
        return Compressed(indptr, indices, eids)


def _counts(ids: Tensor) -> bool:
    """Whether ids are 0, 1, 2, ..."""
    n = ids.numel()
    if n == 0 or int(ids[0]) != 0 or int(ids[-1]) != n - 1:
        return n == 0
    return bool((ids.diff() == 1).all())


MANY_EDGES = 1 << 20


def _is_traced(t: Tensor) -> bool:
    """Whether a tensor stands for its shape alone: under torch.compile and torch's fake tensors."""
    return torch.compiler.is_compiling() or isinstance(t, FakeTensor)


class Graph:
    """A directed, possibly bipartite graph with parallel edges allowed.

    Args:
        num_src: number of source nodes.
        num_dst: number of destination nodes.
        csc: edges grouped by destination, or None if ``csr`` is given.
        csr: edges grouped by source, or None; whichever is missing is made when first asked for and kept.
    """

    def __init__(self, num_src: int, num_dst: int, csc: Compressed | None = None, csr: Compressed | None = None):
        if csc is None and csr is None:
            raise ValueError("Graph: give csc, csr or both")
        self.num_src, self.num_dst = num_src, num_dst
        self._csc, self._csr = csc and csc.tidy(), csr and csr.tidy()
        self._reversed: Graph | None = None
        self._scales: dict[tuple[str, float], Tensor] = {}
        self._zero_in_degree: bool | None = None

    @classmethod
    def from_coo(cls, src: Tensor, dst: Tensor, num_src: int | None = None, num_dst: int | None = None) -> Graph:
        """The graph whose edge ``i`` goes from ``src[i]`` to ``dst[i]`` (int32 or int64, on the CPU or a GPU).

        Without ``num_src`` and ``num_dst`` the graph has as many nodes, on both sides, as its largest id asks for.

        Raises:
            ValueError: lengths differ or an id is out of range.
            TypeError: ids are not int32 or int64.
        """
        _check_ids(src, dst)
        if num_src is None and num_dst is None:
            largest = max(int(src.max()), int(dst.max())) if src.numel() else -1
            num_src = num_dst = largest + 1
        num_src = num_dst if num_src is None else num_src
        num_dst = num_src if num_dst is None else num_dst
        return cls(num_src, num_dst, csc=_group(dst, src, num_dst, num_src, names=("dst", "src")))

    @classmethod
    def from_csc(
        cls,
        indptr: Tensor,
        indices: Tensor,
        eids: Tensor | None = None,
        num_src: int | None = None,
        check: bool = True,
    ) -> Graph:
        """The graph with in-edges ``indptr[v] .. indptr[v + 1]`` of destination ``v`` coming from ``indices``.

        Args:
            eids: (edges,) edge id of each entry, a permutation; None means 0, 1, 2, ...
            check: look at every value (a pass over the edges); turn off for arrays that are known to be right.

        Raises:
            ValueError: arrays that do not fit each other. TypeError: ids that are not int32 or int64.
        """
        arrays = (indptr, indices) if eids is None else (indptr, indices, eids)
        _check_ids(*arrays, same_length=False)
        if num_src is None:
            num_src = max(indptr.numel() - 1, int(indices.max()) + 1 if indices.numel() else 0)
        if check:
            _check_compressed(indptr, indices, eids, num_src)
        arrays = [a.contiguous() for a in arrays]
        return cls(
            num_src,
            indptr.numel() - 1,
            csc=Compressed(arrays[0], arrays[1], arrays[2] if eids is not None else None),
        )

    @property
    def csc(self) -> Compressed:
        if self._csc is None:
            self._csc = _transpose(self._csr, self.num_dst, self.num_src)
        return self._csc

    @property
    def csr(self) -> Compressed:
        if self._csr is None:
            self._csr = self._grouped_by_source()
        return self._csr

    def _grouped_by_source(self) -> Compressed:
        return _transpose(self._csc, self.num_src, self.num_dst)

    @property
    def _any(self) -> Compressed:
        return self._csc if self._csc is not None else self._csr

    @property
    def num_edges(self) -> int:
        return self._any.indices.numel()

    @property
    def device(self) -> torch.device:
        return self._any.indices.device

    @property
    def idtype(self) -> torch.dtype:
        return self._any.indices.dtype

    def coo(self) -> tuple[Tensor, Tensor]:
        """(src, dst), both (edges,), in edge-id order."""
        by_source = self._csc is None
        rows, cols = _to_coo(self._any)
        return (rows, cols) if by_source else (cols, rows)

    def in_degrees(self) -> Tensor:
        """(num_dst,) number of edges into each destination, as ``idtype``."""
        return self.csc.indptr.diff()

    def out_degrees(self) -> Tensor:
        """(num_src,) number of edges out of each source, as ``idtype``."""
        return self.csr.indptr.diff()

    def degree_scale(self, side: str, power: float) -> Tensor:
        """(nodes,) float32: degree to the ``power``, a degree of 0 taken as 1; kept for the next call.

        Args:
            side: "out", degrees of the sources, or "in", those of the destinations.
        """
        if (side, power) not in self._scales:
            degrees = self.out_degrees() if side == "out" else self.in_degrees()
            self._scales[side, power] = degrees.clamp(min=1).double().pow(power).float()
        return self._scales[side, power]

    @property
    def has_zero_in_degree(self) -> bool:
        """Whether some destination has no edge; looked up once."""
        if self._zero_in_degree is None:
            self._zero_in_degree = bool((self.in_degrees() == 0).any())
        return self._zero_in_degree

    def reverse(self) -> Graph:
        """The graph with every edge turned round; edge ids stay, arrays are shared."""
        if self._reversed is None:
            self._reversed = Graph(self.num_dst, self.num_src, csc=self._csr, csr=self._csc)
            self._reversed._reversed = self
        if self._reversed._csc is None and self._csr is not None:
            self._reversed._csc = self._csr
        return self._reversed

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Graph:
        """The graph on ``device``, with the orders of its edges that it has; itself if it is there already.

        Args:
            non_blocking: do not wait for copies out of pinned memory.
        """
        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        return self._with(lambda a: a.to(device, non_blocking=non_blocking))

    def tensors(self) -> list[Tensor]:
        """The arrays that it holds."""
        return [a for c in (self._csc, self._csr) if c for a in c if a is not None]

    def pin_memory(self) -> Graph:
        """The graph in page-locked memory, out of which a GPU copies while it computes."""
        return self._with(lambda a: a.pin_memory())

    def _with(self, change: Callable[[Tensor], Tensor]) -> Graph:
        def changed(c: Compressed | None) -> Compressed | None:
            return c and Compressed(*(a if a is None else change(a) for a in c))

        return Graph(self.num_src, self.num_dst, csc=changed(self._csc), csr=changed(self._csr))

    def __repr__(self) -> str:
        return (
            f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, "
            f"idtype={self.idtype}, device={self.device})"
        )

    def __reduce__(self):
        return Graph, (self.num_src, self.num_dst, self._csc, self._csr)


def _check_ids(*arrays: Tensor, same_length: bool = True) -> None:
    first = arrays[0]
    for a in arrays:
        if a.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"graph ids must be int32 or int64, got {a.dtype}")
        if a.dtype == torch.int32 and a.numel() > torch.iinfo(torch.int32).max:
            raise ValueError(f"{a.numel()} edges are more than int32 ids can count: use int64")
        if a.dtype != first.dtype:
            raise TypeError(f"graph ids must share one type, got {first.dtype} and {a.dtype}")
        if a.dim() != 1 or (same_length and a.shape != first.shape):
            raise ValueError(
                f"graph ids must be vectors of one length, got shapes {tuple(first.shape)} and {tuple(a.shape)}"
            )
        if a.device != first.device:
            raise ValueError(f"graph ids must be on one device, got {first.device} and {a.device}")


def _check_compressed(indptr: Tensor, indices: Tensor, eids: Tensor | None, num_src: int) -> None:
    edges = indices.numel()
    if indptr.numel() == 0 or int(indptr[0]) != 0 or int(indptr[-1]) != edges or bool((indptr.diff() < 0).any()):
        raise ValueError(f"indptr must rise from 0 to the number of edges, {edges}")
    if edges and not (int(indices.min()) >= 0 and int(indices.max()) < num_src):
        raise ValueError(f"indices must be at least 0 and below the number of source nodes, {num_src}")
    if eids is not None:
        seen = torch.zeros(edges, dtype=torch.bool, device=eids.device)
        if eids.numel() != edges or (edges and not (int(eids.min()) >= 0 and int(eids.max()) < edges)):
            raise ValueError(f"eids must be a permutation of 0 to {edges - 1}")
        seen[eids.long()] = True
        if not bool(seen.all()):
            raise ValueError(f"eids must be a permutation of 0 to {edges - 1}")


def _group(row: Tensor, col: Tensor, rows: int, cols: int, names=("row", "col")) -> Compressed:
    row, col = row.contiguous(), col.contiguous()
    if _is_traced(row):
        return Compressed(*torch.ops.ampgnn.group(row, col, rows, cols))
    if row.device.type != "cpu":
        return _group_anywhere(row, col, rows, cols, names)
    edges, wide = row.numel(), row.dtype == torch.int64
    bad = _C.find_bad_edge(row.data_ptr(), col.data_ptr(), edges, rows, cols, wide)
    if bad >= 0:
        name, value, limit = (
            (names[0], int(row[bad]), rows) if not 0 <= row[bad] < rows else (names[1], int(col[bad]), cols)
        )
        raise ValueError(f"edge {bad}: {name} is {value}, allowed are 0 to {limit - 1}")
    indptr, indices, eids = row.new_empty(rows + 1), torch.empty_like(col), torch.empty_like(col)
    in_order = _C.coo_to_rows(
        row.data_ptr(),
        col.data_ptr(),
        edges,
        rows,
        indptr.data_ptr(),
        indices.data_ptr(),
        eids.data_ptr(),
        wide,
    )
    return Compressed(indptr, indices, None if in_order else eids)


# An operator, for torch.compile.
_lib = torch.library.Library("ampgnn", "FRAGMENT")
_lib.define("group(Tensor row, Tensor col, SymInt rows, SymInt cols) -> (Tensor, Tensor, Tensor)")


def _group_entries(row: Tensor, col: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    indptr, indices, eids = _group(row, col, rows, cols)
    eids = torch.arange(row.numel(), dtype=row.dtype, device=row.device) if eids is None else eids
    return indptr, indices, eids


_lib.impl("group", _group_entries, "CompositeExplicitAutograd")


@torch.library.register_fake("ampgnn::group", lib=_lib)
def _(row, col, rows, cols):
    return row.new_empty(rows + 1), torch.empty_like(col), torch.empty_like(col)


def _group_anywhere(row: Tensor, col: Tensor, rows: int, cols: int, names: tuple[str, str]) -> Compressed:
    for name, ids, limit in zip(names, (row, col), (rows, cols), strict=True):
        if ids.numel() and not 0 <= (least := int(ids.min())) <= (most := int(ids.max())) < limit:
            bad = least if least < 0 else most
            raise ValueError(f"edge {int((ids == bad).nonzero()[0])}: {name} is {bad}, allowed are 0 to {limit - 1}")
    order = torch.argsort(row, stable=True)
    indptr = torch.searchsorted(row[order], torch.arange(rows + 1, device=row.device, dtype=row.dtype))
    return Compressed(indptr.to(row.dtype), col[order], order.to(row.dtype))


def _to_coo(c: Compressed) -> tuple[Tensor, Tensor]:
    rows = torch.arange(c.indptr.numel() - 1, dtype=c.indices.dtype, device=c.indices.device)
    row = rows.repeat_interleave(c.indptr.diff(), output_size=c.indices.numel())
    if c.eids is None:
        return row, c.indices
    at = c.eids.long()
    return torch.empty_like(row).index_copy_(0, at, row), torch.empty_like(row).index_copy_(0, at, c.indices)


def _transpose(c: Compressed, rows: int, cols: int) -> Compressed:
    if c.indices.device.type != "cpu" or _is_traced(c.indices):
        row, col = _to_coo(c)
        return _group(col, row, rows, cols)
    indptr, indices, eids = c.indptr.new_empty(rows + 1), torch.empty_like(c.indices), torch.empty_like(c.indices)
    in_order = _C.transpose(
        *(c.indptr.data_ptr(), c.indices.data_ptr(), 0 if c.eids is None else c.eids.data_ptr(), cols, rows),
        *(indptr.data_ptr(), indices.data_ptr(), eids.data_ptr(), indices.dtype == torch.int64),
    )
    return Compressed(indptr, indices, None if in_order else eids)
