"""Each operator beside its peers and beside memory bandwidth, in one run: ``python -m ampgnn_kernels.bench``.

Every result is compared with float64 before it is timed. A peer that is not installed is listed as missing. Times are
the smallest of several calls; run it with nothing else on the machine, and quote ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import ampgnn_kernels as ak

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SECONDS = 1.0  # spent on the repeats of one measurement, at least two calls
SAMPLE = 200  # destinations that are compared with float64


def power_law_graph(nodes: int, edges: int, seed: int = 0) -> ak.Graph:
    """A random graph whose sources are uniform and whose destinations' degrees fall as a power law."""
    r = torch.Generator().manual_seed(seed)
    src = torch.randint(nodes, (edges,), generator=r, dtype=torch.int32)
    dst = (nodes * torch.rand(edges, generator=r) ** 1.5).to(torch.int32)
    return ak.Graph.from_coo(src, dst, nodes, nodes)


def stream_bandwidth(gigabytes: float = 1.0) -> float:
    """GB/s of a plain streaming read by all of torch's threads."""
    x = torch.ones(int(gigabytes * 2**30) // 4)
    return x.numel() * 4 / best_time(lambda: x.sum()) / 1e9


def best_time(call: Callable[[], object]) -> float:
    """Seconds of the fastest call, after one to warm up."""
    call()
    times, start = [], time.perf_counter()
    while len(times) < 2 or time.perf_counter() - start < SECONDS:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return min(times)


class Case:
    """Inputs of one operator, the same for every implementation, and how each is called."""

    def __init__(self, graph: ak.Graph, width: int, heads: int, dtype: torch.dtype):
        r = torch.Generator().manual_seed(1)
        make = lambda *shape: torch.randn(*shape, generator=r).to(dtype)  # noqa: E731
        self.graph, self.heads, self.dtype = graph, heads, dtype
        self.x, self.y = make(graph.num_src, heads, width // heads), make(graph.num_dst, heads, width // heads)
        self.w = make(graph.num_edges, heads, 1)
        self.el, self.er = make(graph.num_src, heads), make(graph.num_dst, heads)
        self.grad = torch.ones_like(self.y)


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().requires_grad_() for t in tensors]


def ours(c: Case) -> dict[str, Callable[[], Tensor]]:
    def gat():
        h, el, er = leaves(c.x, c.el, c.er)
        out = ak.gat_attention(c.graph, h, el, er)
        out.backward(c.grad)
        return out

    def extreme():
        (x,) = leaves(c.x)
        out = ak.spmm(c.graph, x, op="copy_u", reduce="max")
        out.backward(c.grad)
        return out

    return {
        "copy_u sum": lambda: ak.spmm(c.graph, c.x, op="copy_u"),
        "u_mul_e sum": lambda: ak.spmm(c.graph, c.x, c.w, op="mul"),
        "u_dot_v": lambda: ak.sddmm(c.graph, "dot", c.x, c.y),
        "edge_softmax": lambda: ak.edge_softmax(c.graph, c.w),
        "max fwd+bwd": extreme,
        "GAT fwd+bwd": gat,
    }


def dgl_peer(c: Case, g) -> dict[str, Callable[[], Tensor]]:
    import dgl
    import torch.nn.functional as F

    def gat():
        h, el, er = leaves(c.x, c.el.unsqueeze(-1), c.er.unsqueeze(-1))
        e = F.leaky_relu(dgl.ops.u_add_v(g, el, er), 0.2)
        out = dgl.ops.u_mul_e_sum(g, h, dgl.ops.edge_softmax(g, e))
        out.backward(c.grad)
        return out

    def extreme():
        (x,) = leaves(c.x)
        out = dgl.ops.copy_u_max(g, x)
        out.backward(c.grad)
        return out

    return {
        "copy_u sum": lambda: dgl.ops.copy_u_sum(g, c.x),
        "u_mul_e sum": lambda: dgl.ops.u_mul_e_sum(g, c.x, c.w),
        "u_dot_v": lambda: dgl.ops.u_dot_v(g, c.x, c.y),
        "edge_softmax": lambda: dgl.ops.edge_softmax(g, c.w),
        "max fwd+bwd": extreme,
        "GAT fwd+bwd": gat,
    }


def sampled(c: Case) -> tuple[ak.Graph, Tensor, Tensor]:
    """The subgraph of the in-edges of a few destinations, those and the edges' ids."""
    r = torch.Generator().manual_seed(2)
    rows = torch.randperm(c.graph.num_dst, generator=r)[:SAMPLE]
    indptr, indices, eids = c.graph.csc
    entries = torch.cat([torch.arange(int(indptr[v]), int(indptr[v + 1])) for v in rows.tolist()])
    ids = entries if eids is None else eids[entries].long()
    dst = torch.repeat_interleave(torch.arange(len(rows)), indptr.diff()[rows].long())
    return ak.Graph.from_coo(indices[entries].long(), dst, c.graph.num_src, len(rows)), rows, ids


def check(name: str, out: Tensor, c: Case, sample) -> None:
    """Compares with float64 on a sample of destinations; the kernels' float64 is held to plain torch by the tests.

    Raises:
        SystemExit: the result is wrong.
    """
    graph, rows, ids = sample
    x, y, w = c.x.double(), c.y[rows].double(), c.w[ids].double()
    wanted, got = {
        "copy_u sum": lambda: (ak.spmm(graph, x, op="copy_u"), out[rows]),
        "u_mul_e sum": lambda: (ak.spmm(graph, x, w, op="mul"), out[rows]),
        "u_dot_v": lambda: (ak.sddmm(graph, "dot", x, y), out[ids]),
        "edge_softmax": lambda: (ak.edge_softmax(graph, w), out[ids]),
        "max fwd+bwd": lambda: (ak.spmm(graph, x, op="copy_u", reduce="max"), out[rows]),
        "GAT fwd+bwd": lambda: (ak.gat_attention(graph, x, c.el.double(), c.er[rows].double()), out[rows]),
    }[name]()
    unit = torch.finfo(c.dtype).eps
    error = (got.detach().double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)
    if error > max(2 * unit, 1e-4):
        raise SystemExit(f"{name} in {c.dtype} is wrong: relative error {error:.2g}")


def run(nodes: int, edges: int, width: int, heads: int, peers: bool = True) -> dict:
    """Measures everything; progress on stderr. Returns rows and what they were measured on."""
    graph = power_law_graph(nodes, edges)
    _ = graph.csr
    g = _dgl_graph(graph) if peers else None
    bandwidth = stream_bandwidth()
    rows = []
    for kind, dtype in TYPES.items():
        c = Case(graph, width, heads, dtype)
        sample = sampled(c)
        for who, calls in (("ampgnn", ours(c)), ("dgl", dgl_peer(c, g) if g is not None and kind != "fp16" else {})):
            for name, call in calls.items():
                print(f"{who} {kind} {name}", file=sys.stderr)
                if who == "ampgnn":
                    check(name, call(), c, sample)
                rows.append({"operator": name, "who": who, "type": kind, "seconds": best_time(call)})
    return {
        "nodes": nodes,
        "edges": edges,
        "width": width,
        "heads": heads,
        "threads": torch.get_num_threads(),
        "isa": ak.isa(),
        "torch": torch.__version__,
        "cpu": _cpu(),
        "stream_gb_per_s": bandwidth,
        "missing": [] if g is not None else ["dgl"],
        "rows": rows,
    }


def _dgl_graph(graph: ak.Graph):
    try:
        import dgl
    except Exception:  # not installed, or not for this torch
        return None
    g = dgl.graph(graph.coo(), num_nodes=graph.num_src)
    g.create_formats_()
    return g


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def table(result: dict) -> str:
    """Markdown: seconds of each operator, ratios to DGL and to our own fp32, gather rate over streaming bandwidth."""
    seconds = {(r["operator"], r["who"], r["type"]): r["seconds"] for r in result["rows"]}
    head = "| operator | type | ms | DGL fp32 / ours | DGL bf16 / ours | own fp32 / ours | gather / stream |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for (name, who, kind), own in seconds.items():
        if who != "ampgnn":
            continue
        ratios = [seconds.get(key) for key in ((name, "dgl", "fp32"), (name, "dgl", "bf16"), (name, "ampgnn", "fp32"))]
        bytes_moved = result["edges"] * result["width"] * (4 if kind == "fp32" else 2)
        gathers = name in ("copy_u sum", "u_mul_e sum", "u_dot_v")
        rate = f"{bytes_moved / own / 1e9 / result['stream_gb_per_s']:.2f}" if gathers else "-"
        cells = [f"{r / own:.1f}" if r else "-" for r in ratios]
        lines.append(f"| {name} | {kind} | {own * 1000:,.1f} | {' | '.join(cells)} | {rate} |")
    return "\n".join(lines)


def describe(result: dict) -> str:
    missing = f" Missing peers: {', '.join(result['missing'])}." if result["missing"] else ""
    return (
        f"{result['nodes']:,} nodes, {result['edges']:,} edges, {result['width']} features, {result['heads']} heads; "
        f"{result['cpu']}, {result['threads']} threads, {result['isa']}, torch {result['torch']}; "
        f"streaming read {result['stream_gb_per_s']:.1f} GB/s.{missing}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ampgnn_kernels.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a graph a hundred times smaller")
    parser.add_argument("--nodes", type=int, default=232_965)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--no-peers", action="store_true", help="our own kernels alone")
    parser.add_argument("--json", type=Path, help="also write the measurements here")
    a = parser.parse_args()
    shrink = 100 if a.quick else 1
    result = run(a.nodes // shrink, a.edges // shrink, a.width, a.heads, peers=not a.no_peers)
    print(f"{describe(result)}\n\n{table(result)}")
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
