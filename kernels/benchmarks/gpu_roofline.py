"""What the GPU kernels should take on Reddit, from bytes and bandwidth alone; writes the tables of docs/gpu.md.

``python kernels/benchmarks/gpu_roofline.py`` prints them, ``--write`` puts them between the marks in docs/gpu.md.
A model on paper: no GPU was used.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "gpu.md"
NODES, EDGES, FEATURES, CLASSES, HIDDEN = 232_965, 114_615_892 + 232_965, 602, 41, 256  # with self loops
ID, WIDE = 4, 4  # bytes of an int32 id, of a float32
CHUNK = 1024  # edges of a piece of a split row
REACHED = 0.6  # of the bandwidth: the share that a gather is asked to reach
PRODUCTS = 0.5  # of the peak: what torch's matrix products reach
ROW_PASSES = 8  # over a layer's result in forward and backward: bias, activation, logits' halves, casts


@dataclass(frozen=True)
class Gpu:
    name: str
    bandwidth: float  # bytes/s of its memory
    memory: float  # bytes
    half: float  # flop/s of dense products in half precision
    single: float  # the same in float32 without TF32


GPUS = (
    Gpu("H200", 4.8e12, 141e9, 989e12, 67e12),
    Gpu("A100 80 GB", 2.04e12, 80e9, 312e12, 19.5e12),
)


@dataclass(frozen=True)
class Kernel:
    """Bytes that a kernel moves; ``gathered`` of them at random rows, ``least`` if each row came from memory once."""

    name: str
    gathered: float
    streamed: float
    least: float

    @property
    def moved(self) -> float:
        return self.gathered + self.streamed

    def seconds(self, gpu: Gpu, share: float = 1.0) -> float:
        return self.moved / gpu.bandwidth / share


def kernels(heads: int, dim: int, size: int) -> list[Kernel]:
    """Those of the operators on Reddit for features (nodes, heads, dim) of ``size`` bytes a value."""
    row, per_head = heads * dim * size, heads * WIDE
    gather, table = EDGES * row, NODES * row
    ids = EDGES * ID

    def kernel(name: str, gathers: int, streams: float) -> Kernel:
        return Kernel(name, gathers * gather, streams, gathers * table + streams)

    return [
        kernel("copy_u, sum", 1, ids + table),
        kernel("u_mul_e, sum (weights in edge order)", 1, ids + EDGES * heads * size + table),
        kernel("u_dot_v", 1, ids + table + EDGES * heads * size),
        kernel("edge softmax, forward", 0, 4 * EDGES * heads * size),
        kernel("GAT attention, forward", 1, 2 * ids + table + 4 * NODES * per_head),
        kernel("GAT attention, backward by destination", 1, ids + 2 * table + 6 * NODES * per_head),
        kernel("GAT attention, backward by source", 1, ids + 2 * table + 6 * NODES * per_head),
    ]


def layers(heads: int) -> list[tuple[int, int, int]]:
    """(in, heads, dim) of the chapter's three layers."""
    wide = heads * HIDDEN
    return [(FEATURES, heads, HIDDEN), (wide, heads, HIDDEN), (wide, heads, CLASSES)]


def epoch_seconds(gpu: Gpu, heads: int, size: int, share: float) -> float:
    """Forward and backward of the three layers."""
    total = 0.0
    for width, count, dim in layers(heads):
        attention = [k for k in kernels(count, dim, size) if k.name.startswith("GAT")]
        rows = ROW_PASSES * NODES * count * dim * size
        products = 3 * 2 * NODES * width * count * dim  # the result, the input's and the weight's gradient
        peak = gpu.half if size == 2 else gpu.single
        total += sum(k.seconds(gpu, share) for k in attention) + rows / gpu.bandwidth + products / peak / PRODUCTS
    return total


def peak_bytes(heads: int, size: int) -> float:
    """Beyond graph and float32 input features: what the layers keep, and what the largest backward step holds."""
    kept = NODES * FEATURES * size if size == 2 else 0  # autocast's copy of the input
    for width, count, dim in layers(heads):
        row = NODES * count * dim * size
        kept += 3 * row + 4 * NODES * count * WIDE  # projected, result, activated; logits' halves, max, sum
    largest = NODES * heads * HIDDEN * size
    parts = 2 * EDGES / CHUNK * heads * HIDDEN * WIDE  # at most
    return kept + 3 * largest + parts


def dgl_edge_bytes(heads: int) -> float:
    """What DGL 1.1's GATConv keeps an edge, in float32: logits, activated logits, weights, dropped weights."""
    return 3 * 4 * EDGES * heads * WIDE


def tables() -> str:
    lines = [
        "| kernel, one head of 256, bf16 | GB moved | GB if each row came once | "
        + " | ".join(f"{g.name}, ms" for g in GPUS)
        + " |",
        "| --- | --- | --- |" + " --- |" * len(GPUS),
    ]
    for k in kernels(1, HIDDEN, 2):
        times = [f"{k.seconds(g) * 1e3:.1f} to {k.seconds(g, REACHED) * 1e3:.1f}" for g in GPUS]
        lines.append(f"| {k.name} | {k.moved / 1e9:.1f} | {k.least / 1e9:.2f} | {' | '.join(times)} |")
    lines += [
        "",
        "| GAT, heads, precision | " + " | ".join(f"{g.name}, s an epoch" for g in GPUS) + " | peak, GB |",
        "| --- |" + " --- |" * (len(GPUS) + 1),
    ]
    for heads in (1, 2, 8):
        for name, size in (("fp32", 4), ("fp16, bf16", 2)):
            times = [
                f"{epoch_seconds(g, heads, size, 1):.3f} to {epoch_seconds(g, heads, size, REACHED):.3f}" for g in GPUS
            ]
            lines.append(
                f"| [{heads}, {heads}, {heads}], {name} | {' | '.join(times)} | {peak_bytes(heads, size) / 1e9:.1f} |"
            )
    lines += ["", f"DGL's tensors of an edge each, one head, fp32: {dgl_edge_bytes(1) / 1e9:.1f} GB."]
    return "\n".join(lines)


def placed(document: str) -> str:
    """``document`` with the tables between its marks."""
    return re.sub(
        r"(<!-- roofline -->\n).*?(\n<!-- end -->)", lambda m: m[1] + tables() + m[2], document, flags=re.DOTALL
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.name}")
    if parser.parse_args().write:
        DOCUMENT.write_text(placed(DOCUMENT.read_text()))
    else:
        print(tables())


if __name__ == "__main__":
    main()
