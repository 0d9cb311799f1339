"""What a dataset is to the rest of the project."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from ampgnn.errors import UserError


class DatasetError(UserError):
    """A dataset that is wrong: unknown, corrupted or inconsistent."""


class DatasetUnavailable(UserError):
    """A dataset that cannot be had here and has no stand-in; the message is the reason."""


@dataclass(frozen=True)
class Provenance:
    """Where a dataset comes from."""

    origin: str  # "download", "embedded" or "synthetic stand-in"
    note: str  # one sentence for readers of a report
    license: str
    urls: list[str] = field(default_factory=list)
    sha256: dict[str, str] = field(default_factory=dict)  # of the files it was made from
    scale: float | None = None

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class NodeDataset:
    """A graph whose nodes are to be classified.

    ``src``, ``dst``: (E,) int32, edge i is src[i] -> dst[i], both directions of an undirected edge, no self loops added.
    ``features``: (N, F) float32. ``labels``: (N,) int64. The masks: (N,) bool.
    """

    name: str
    src: Tensor
    dst: Tensor
    features: Tensor
    labels: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    provenance: Provenance

    @property
    def num_nodes(self) -> int:
        return self.labels.shape[0]

    def edges(self, add_self_loop: bool = True) -> tuple[Tensor, Tensor]:
        """(src, dst); with ``add_self_loop`` existing loops are replaced by one at each node, at the end."""
        if not add_self_loop:
            return self.src, self.dst
        keep = self.src != self.dst
        loops = torch.arange(self.num_nodes, dtype=self.src.dtype)
        src, dst = (self.src, self.dst) if bool(keep.all()) else (self.src[keep], self.dst[keep])
        return torch.cat([src, loops]), torch.cat([dst, loops])

    def graph(self, add_self_loop: bool = True):
        """The graph for the native kernels, its edges numbered by destination: that order needs no edge ids."""
        from ampgnn_kernels import Graph

        by_dst = Graph.from_coo(*self.edges(add_self_loop), self.num_nodes, self.num_nodes).csc
        return Graph.from_csc(by_dst.indptr, by_dst.indices, num_src=self.num_nodes, check=False)

    def dgl_graph(self, add_self_loop: bool = True):
        """The graph as a DGLGraph with 32-bit ids."""
        import dgl

        return dgl.graph(self.edges(add_self_loop), num_nodes=self.num_nodes, idtype=torch.int32)

    def validate(self) -> NodeDataset:
        """Itself, if its parts fit each other.

        Raises:
            DatasetError: naming the part that does not.
        """
        n = self.num_nodes
        if self.features.dim() != 2 or self.features.shape[0] != n:
            raise DatasetError(f"{self.name}: features must have {n} rows, got shape {tuple(self.features.shape)}")
        for name, ids in (("src", self.src), ("dst", self.dst)):
            if ids.shape != self.src.shape:
                raise DatasetError(f"{self.name}: {name} must have {len(self.src)} edge ids, got {len(ids)}")
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < n:
                raise DatasetError(
                    f"{self.name}: {name} has ids from {ids.min()} to {ids.max()}, allowed are 0 to {n - 1}"
                )
        for name in ("train_mask", "val_mask", "test_mask"):
            mask = getattr(self, name)
            if mask.dtype != torch.bool or mask.shape != (n,):
                raise DatasetError(f"{self.name}: {name} must be {n} booleans, got {mask.dtype} {tuple(mask.shape)}")
        used = self.labels[self.train_mask | self.val_mask | self.test_mask]
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < self.num_classes:
            raise DatasetError(
                f"{self.name}: labels run from {used.min()} to {used.max()}, allowed are 0 to {self.num_classes - 1}"
            )
        return self


def masks(num_nodes: int, *index_sets: Tensor) -> list[Tensor]:
    """A boolean mask (num_nodes,) for each set of node ids."""
    made = []
    for ids in index_sets:
        mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[ids] = True
        made.append(mask)
    return made
