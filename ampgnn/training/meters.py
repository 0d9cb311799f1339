"""What an epoch costs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorBytes(TorchDispatchMode):
    """Counts the bytes of tensors while it is entered: those it is told of, and all that operators make, until freed.

    What an operator allocates and frees inside is not seen. It works on real tensors and on fake ones alike, and
    costs some microseconds an operator, so it is entered for a few steps, not for a run.
    """

    def __init__(self, held: Iterable[Tensor] = ()):
        super().__init__()
        self.now = self.peak = 0
        self._storages: dict[int, weakref.ref] = {}
        for tensor in held:
            self._count(tensor)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        size = storage.nbytes()

        def freed(_):
            self.now -= size
            del self._storages[key]

        self._storages[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


class PeakMemory:
    """Peak memory of a seed since it was made: of tensors, and of the process.

    On the CPU tensors are counted in ``watch``, and what a DGLGraph holds beside; on CUDA torch's allocator counts.
    The resident memory includes the interpreter and its libraries; where the system does not let its peak be reset,
    it is the peak of the whole process so far.
    """

    def __init__(self, device: str, held: Iterable[Tensor], beside: int = 0):
        """
        Args:
            held: tensors that are there already. beside: bytes of data that are no tensors.
        """
        self.device, self.beside = device, beside
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.tensors = TensorBytes(held)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def watch(self) -> TensorBytes:
        """The context to run a step in that shall count."""
        return self.tensors

    def read(self) -> dict[str, int]:
        """Bytes: ``peak_tensor_bytes``, ``peak_rss_bytes`` and, on CUDA, ``peak_reserved_bytes`` of torch's allocator."""
        read = {"peak_tensor_bytes": self.tensors.peak + self.beside, "peak_rss_bytes": peak_resident()}
        if self.device == "cuda":
            read["peak_tensor_bytes"] = torch.cuda.max_memory_allocated()
            read["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return read


def peak_resident() -> int:
    """This process's largest resident set so far, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tensors_of(*things) -> list[Tensor]:
    """Every tensor in tensors, containers, modules, optimizers and graphs, however nested."""
    from ampgnn.graph import Graph

    found = []
    for thing in things:
        if isinstance(thing, Tensor):
            found.append(thing)
        elif isinstance(thing, dict):
            found += tensors_of(*thing.values())
        elif isinstance(thing, (list, tuple)):
            found += tensors_of(*thing)
        elif isinstance(thing, torch.nn.Module):
            found += [*thing.parameters(), *thing.buffers()]
        elif isinstance(thing, Graph):
            found += tensors_of(thing._csc, thing._csr, thing._scales)
    return found


def dgl_graph_bytes(nodes: int, edges: int, id_bytes: int = 4) -> int:
    """Of a DGLGraph in training: DGL keeps the edge list, and both compressed forms with edge ids."""
    return id_bytes * (2 * edges + 2 * (2 * edges + nodes + 1))
