"""Compiles every kernel for GPUs that need not be there, and lists what it takes of them.

``python -m ampgnn_kernels.gpu.resources --out kernels/benchmarks/gpu_resources.csv`` (minutes) writes the table that the tests
compare with. Each operator is called as a model would call it; where a kernel would run it is compiled instead, with
the same arguments and so for the same alignments.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from .. import Graph
from .. import gpu as ops
from . import tiles
from .schedule import CHUNK

ARCHITECTURES = (80, 90, 100)
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
IDS = {"int32": torch.int32, "int64": torch.int64}
# heads and dim: one wide head, eight heads, a width that no power of two fits
SHAPES = ((1, 256), (8, 32), (1, 41))
FIELDS = ("kernel", "case", "type", "ids", "sm", "registers", "shared", "stack", "vector_loads", "float_atomics")


class Driver:
    """Stands in for a GPU of that compute capability."""

    def __init__(self, architecture: int):
        self.architecture = architecture

    def get_current_device(self) -> int:
        return self.architecture  # Triton keeps what it compiled a device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)


def graph(ids: torch.dtype) -> Graph:
    """Small, with a row and a column that are split."""
    hub = torch.arange(3 * CHUNK, dtype=ids) % 60
    return Graph.from_coo(torch.cat([hub, 0 * hub]), torch.cat([0 * hub, hub]), 60, 60)


def calls(dtype: torch.dtype, ids: torch.dtype) -> Iterator[tuple[str, object]]:
    """(case, the call of an operator), all operators of a training step and the other reducers."""
    g = graph(ids)
    both, n, e = (*g.csc, *g.csr, g.num_src), g.num_src, g.num_edges
    ends, scale = (*g.csc[:2], *g.csr[:2]), torch.ones(n)

    def ones(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.ones(shape, dtype=of)

    for heads, dim in SHAPES:
        case, h, w = f"{heads}x{dim}", ones(n, heads, dim), ones(e, heads, 1)
        el = ones(n, heads, of=torch.float32)
        yield case, lambda: ops.spmm(*both, h, None, "copy_u", "sum", scale, scale, False)
        yield case, lambda: ops.spmm(*both, h, w, "mul", "mean", None, None, False)
        yield case, lambda: ops.spmm(*both, h, None, "copy_u", "max", None, None, True)
        yield case, lambda: ops.arg_scatter(*both[:6], h, ones(n, heads, dim, of=ids), "copy_u", "u", n)
        yield case, lambda: ops.arg_scatter(*both[:6], h, ones(n, heads, dim, of=ids), "copy_e", "e", e)
        yield case, lambda: ops.sddmm(*both, h, h, "dot", "u", "v", None, None)
        yield case, lambda: ops.sddmm(*both, h, h, "add", "u", "v", None, None)
        yield case, lambda: ops.edge_softmax(*g.csc, ones(e, heads))
        yield case, lambda: ops.edge_softmax_backward(*g.csc, ones(e, heads), ones(e, heads))
        yield case, lambda: ops.gat_attention(*ends, h, el, el, 0.2)
        yield case, lambda: ops.gat_attention_backward(*ends, h, el, el, h, el, el, h, 0.2)
        attn = torch.ones(heads, dim)
        yield f"{case} v2", lambda: ops.gatv2_attention(*ends, h, h, attn, 0.2)
        yield f"{case} v2", lambda: ops.gatv2_attention_backward(*ends, h, h, attn, h, el, el, h, 0.2)
        yield f"{case} dot", lambda: ops.dot_attention(*ends, h, h, 0.1)
        yield f"{case} dot", lambda: ops.dot_attention_backward(*ends, h, h, h, el, el, h, 0.1)


def compile_all(architecture: int, type_name: str, ids_name: str) -> list[dict]:
    """A row of the table for each kernel of each case."""
    driver.set_active(Driver(architecture))
    rows = {}

    def compile_here(kernel, programs, args, meta):
        compiled = kernel.warmup(*args, grid=(programs,), **meta)
        key = (kernel.__name__, case, *meta.items())
        rows[key] = {
            **{"kernel": kernel.__name__, "case": f"{case} {meta['OP']}" if "OP" in meta else case},
            **{"type": type_name, "ids": ids_name, "sm": architecture, **_usage(compiled)},
        }

    tiles.run = compile_here
    for case, call in calls(TYPES[type_name], IDS[ids_name]):
        call()
    return list(rows.values())


def _usage(compiled) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    ptx = compiled.asm["ptx"]
    return {
        "registers": found["REG"],
        "shared": compiled.metadata.shared,
        "stack": found["STACK"] + found["LOCAL"],  # a spilled register lies here
        "vector_loads": len(re.findall(r"ld\.global\.v4\.b32", ptx)),
        "float_atomics": len(re.findall(r"\b(?:atom|red)\.", ptx)),
    }


def table(jobs: list[tuple[int, str, str]], workers: int | None = None) -> list[dict]:
    """The rows of (architecture, type, ids) each, made in processes of their own."""
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(compile_all, *zip(*jobs, strict=True)))
    return [row for part in parts for row in part]


def all_jobs() -> list[tuple[int, str, str]]:
    """Every architecture with every type and every kind of ids."""
    return list(product(ARCHITECTURES, TYPES, IDS))


def write(rows: list[dict], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--job", action="append", help="SM,TYPE,IDS, e.g. 90,bf16,int32; all of them without it")
    args = parser.parse_args()
    jobs = [(int(sm), kind, ids) for sm, kind, ids in (j.split(",") for j in args.job or [])] or all_jobs()
    rows = table(jobs)
    write(rows, args.out)
    spilled = [r for r in rows if r["stack"]]
    print(f"{len(rows)} kernels, {len(spilled)} with spilled registers, Triton {triton.__version__}: {args.out}")
    sys.exit(bool(spilled))


if __name__ == "__main__":
    main()
