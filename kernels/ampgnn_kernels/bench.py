"""Each operator beside its peers and beside memory bandwidth, in one run: ``python -m ampgnn_kernels.bench``.

Every result of ours is compared with float64 before it is timed. A peer that is not installed is listed as missing.
Times are the smallest of several calls, or that of a single one where it takes more than 5 seconds; run it with nothing
else on the machine, and quote ratios.
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
SLOW = 5.0  # seconds of a call that is not repeated
SAMPLE = 200  # destinations that are compared with float64
WIDTHS, HEADS = (1, 16, 41, 64, 100, 128, 256, 602), (2, 4, 8)

Calls = dict[str, Callable[[], Tensor]]


# ---- graphs


def shuffled(nodes: int, edges: int, r: torch.Generator) -> ak.Graph:
    """Sources are uniform, destinations' degrees fall as a power law; edge ids in random order."""
    src = torch.randint(nodes, (edges,), generator=r, dtype=torch.int32)
    dst = (nodes * torch.rand(edges, generator=r) ** 1.5).to(torch.int32)
    return ak.Graph.from_coo(src, dst, nodes, nodes)


def power_law(nodes: int, edges: int, r: torch.Generator) -> ak.Graph:
    """The same, its edges numbered by destination, then source, as ``ampgnn.reorder`` leaves them."""
    by_dst = shuffled(nodes, edges, r).csc
    return ak.Graph.from_csc(by_dst.indptr, by_dst.indices, num_src=nodes, check=False)


def uniform(nodes: int, edges: int, r: torch.Generator) -> ak.Graph:
    src, dst = (torch.randint(nodes, (edges,), generator=r, dtype=torch.int32) for _ in range(2))
    return ak.Graph.from_coo(src, dst, nodes, nodes)


def grid(nodes: int, edges: int, r: torch.Generator) -> ak.Graph:
    """A road-like square grid, each crossing joined to its four neighbours: as many crossings as ``edges`` ask for."""
    side = max(2, int((edges / 4) ** 0.5))
    at = torch.arange(side * side, dtype=torch.int32).reshape(side, side)
    pairs = ((at[:, 1:], at[:, :-1]), (at[1:], at[:-1]))
    a, b = (torch.cat([pair[i].flatten() for pair in pairs]) for i in (0, 1))
    return ak.Graph.from_coo(torch.cat([a, b]), torch.cat([b, a]), side * side, side * side)


def star(nodes: int, edges: int, r: torch.Generator) -> ak.Graph:
    """One destination with every edge; the others have none."""
    src = torch.randint(nodes, (edges,), generator=r, dtype=torch.int32)
    return ak.Graph.from_coo(src, torch.zeros_like(src), nodes, nodes)


def block(nodes: int, edges: int, r: torch.Generator) -> ak.Graph:
    """A bipartite block of neighbour sampling: 25 sampled sources a destination."""
    rows = max(1, edges // 25)
    src = torch.randint(nodes, (rows * 25,), generator=r, dtype=torch.int32)
    return ak.Graph.from_coo(src, torch.arange(rows, dtype=torch.int32).repeat_interleave(25), nodes, rows)


GRAPHS = {f.__name__: f for f in (power_law, shuffled, uniform, grid, star, block)}


# ---- what is measured


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


def with_backward(c: Case, call: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Tensor]:
    def both():
        out = call(*(t.detach().requires_grad_() for t in inputs))
        out.backward(c.grad)
        return out

    return both


def ours(c: Case) -> Calls:
    g = c.graph
    return {
        "copy_u sum": lambda: ak.spmm(g, c.x, op="copy_u"),
        "u_mul_e sum": lambda: ak.spmm(g, c.x, c.w, op="mul"),
        "u_dot_v": lambda: ak.sddmm(g, "dot", c.x, c.y),
        "edge_softmax": lambda: ak.edge_softmax(g, c.w),
        "mean fwd+bwd": with_backward(c, lambda x: ak.spmm(g, x, op="copy_u", reduce="mean"), c.x),
        "max fwd+bwd": with_backward(c, lambda x: ak.spmm(g, x, op="copy_u", reduce="max"), c.x),
        "GAT fwd+bwd": with_backward(c, lambda *t: ak.gat_attention(g, *t), c.x, c.el, c.er),
    }


def dgl_calls(c: Case) -> Calls:
    import dgl
    import torch.nn.functional as F

    if c.dtype == torch.float16:
        return {}  # DGL's CPU operators refuse it
    if not hasattr(c.graph, "_dgl"):
        nodes = {"src": c.graph.num_src, "dst": c.graph.num_dst}
        c.graph._dgl = dgl.heterograph({("src", "e", "dst"): c.graph.coo()}, num_nodes_dict=nodes)
        c.graph._dgl.create_formats_()
    g = c.graph._dgl

    def gat(h, el, er):
        logits = F.leaky_relu(dgl.ops.u_add_v(g, el.unsqueeze(-1), er.unsqueeze(-1)), 0.2)
        return dgl.ops.u_mul_e_sum(g, h, dgl.ops.edge_softmax(g, logits))

    return {
        "copy_u sum": lambda: dgl.ops.copy_u_sum(g, c.x),
        "u_mul_e sum": lambda: dgl.ops.u_mul_e_sum(g, c.x, c.w),
        "u_dot_v": lambda: dgl.ops.u_dot_v(g, c.x, c.y),
        "edge_softmax": lambda: dgl.ops.edge_softmax(g, c.w),
        "mean fwd+bwd": with_backward(c, lambda x: dgl.ops.copy_u_mean(g, x), c.x),
        "max fwd+bwd": with_backward(c, lambda x: dgl.ops.copy_u_max(g, x), c.x),
        "GAT fwd+bwd": with_backward(c, gat, c.x, c.el, c.er),
    }


def torch_sparse_calls(c: Case) -> Calls:
    """PyTorch's own CSR times dense; its weights are already in CSR order."""
    if c.heads > 1:
        return {}
    indptr, indices, _ = c.graph.csc
    shape, x = (c.graph.num_dst, c.graph.num_src), c.x.flatten(1)
    weights = {"copy_u sum": torch.ones(c.graph.num_edges, dtype=c.dtype), "u_mul_e sum": c.w.flatten()}
    matrices = {name: torch.sparse_csr_tensor(indptr, indices, w, shape) for name, w in weights.items()}
    return {name: lambda m=m: torch.sparse.mm(m, x) for name, m in matrices.items()}


def pyg_calls(c: Case) -> Calls:
    """PyTorch Geometric's softmax over destinations; its sums are torch.sparse's."""
    from torch_geometric.utils import softmax

    dst = c.graph.coo()[1].long()
    return {"edge_softmax": lambda: softmax(c.w, dst, num_nodes=c.graph.num_dst)}


PEERS: dict[str, Callable[[Case], Calls]] = {"dgl": dgl_calls, "torch.sparse": torch_sparse_calls, "pyg": pyg_calls}


def timed(call: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Seconds of a call, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def best_time(call: Callable[[], Tensor], first: float | None = None) -> float:
    """Seconds of the fastest call after the ``first``, which warms up and is made here if it was not; one that took
    more than SLOW seconds stands alone."""
    if first is None:
        first, _ = timed(call)
    if first > SLOW:
        return first
    times: list[float] = []
    while len(times) < 2 or sum(times) < SECONDS:
        times.append(timed(call)[0])
    return min(times)


def stream_bandwidth(gigabytes: float = 1.0) -> float:
    """GB/s of a plain streaming read by all of torch's threads."""
    x = torch.ones(int(gigabytes * 2**30) // 4)
    return x.numel() * 4 / best_time(lambda: x.sum()) / 1e9


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
        "mean fwd+bwd": lambda: (ak.spmm(graph, x, op="copy_u", reduce="mean"), out[rows]),
        "max fwd+bwd": lambda: (ak.spmm(graph, x, op="copy_u", reduce="max"), out[rows]),
        "GAT fwd+bwd": lambda: (ak.gat_attention(graph, x, c.el.double(), c.er[rows].double()), out[rows]),
    }[name]()
    if not wanted.numel():
        return
    unit = torch.finfo(c.dtype).eps
    error = (got.detach().double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)
    if not error <= max(2 * unit, 1e-4):
        raise SystemExit(f"{name} in {c.dtype} is wrong: relative error {error:.2g}")


# ---- runs


def progress(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def measure(graph: ak.Graph, width: int, heads: int, peers: tuple[str, ...], only=None) -> list[dict]:
    """Rows of seconds: each operator (of ``only``) by us and by each peer, in each type."""
    rows = []
    for kind, dtype in TYPES.items():
        c = Case(graph, width, heads, dtype)
        sample = sampled(c)
        for who in ("ampgnn", *peers):
            for name, call in (ours if who == "ampgnn" else PEERS[who])(c).items():
                if only and name not in only:
                    continue
                progress(who, kind, name)
                try:
                    first, out = timed(call)
                except RuntimeError as e:  # a peer without this type or operator
                    if who == "ampgnn":
                        raise
                    progress(f"  {who} cannot: {str(e).splitlines()[0]}")
                    continue
                if who == "ampgnn":
                    check(name, out, c, sample)
                rows.append({"operator": name, "who": who, "type": kind, "seconds": best_time(call, first)})
    return rows


def installed(wanted: bool) -> tuple[str, ...]:
    """The peers that import here."""
    found = []
    for name, module in {"dgl": "dgl", "torch.sparse": "torch.sparse", "pyg": "torch_geometric"}.items():
        try:
            __import__(module)
            found.append(name)
        except Exception:  # not installed, or not for this torch
            progress(f"missing peer: {name}")
    return tuple(found) if wanted else ()


def run(nodes: int, edges: int, width: int, heads: int, peers: tuple[str, ...], kind: str = "power_law") -> dict:
    """Measures everything on one graph; progress on stderr. Returns rows and what they were measured on."""
    progress(f"making the {kind} graph")
    graph = GRAPHS[kind](nodes, edges, torch.Generator().manual_seed(0))
    _ = graph.csr
    return {
        "graph": kind,
        "nodes": graph.num_src,
        "edges": graph.num_edges,
        "width": width,
        "heads": heads,
        "stream_gb_per_s": stream_bandwidth(),
        "rows": measure(graph, width, heads, peers),
    }


def sweep(nodes: int, edges: int, peers: tuple[str, ...]) -> list[dict]:
    """Widths, heads and kinds of graph: seconds of ours and DGL's for one operator of each sort."""
    only = ("u_mul_e sum", "GAT fwd+bwd")
    peers = tuple(p for p in peers if p == "dgl")
    plain = power_law(nodes, edges, torch.Generator().manual_seed(0))
    shapes = [("power_law", w, 1) for w in WIDTHS] + [("power_law", 256, h) for h in HEADS]
    shapes += [(kind, 64, 1) for kind in GRAPHS if kind != "power_law"]
    cases = []
    for kind, width, heads in shapes:
        progress(f"sweep: {kind}, {width} features, {heads} heads")
        graph = plain if kind == "power_law" else GRAPHS[kind](nodes, edges, torch.Generator().manual_seed(0))
        rows = measure(graph, width, heads, peers, only)
        cases.append({"graph": kind, "edges": graph.num_edges, "width": width, "heads": heads, "rows": rows})
    return cases


def overhead(peers: tuple[str, ...]) -> list[dict]:
    """Microseconds a call on graphs so small that the call itself is what costs; 16 features, one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cases = []
    for nodes, edges in ((10, 10), (100, 100), (300, 1000), (3327, 9228)):
        c = Case(power_law(nodes, edges, torch.Generator().manual_seed(0)), 16, 1, torch.float32)
        for who in ("ampgnn", *(p for p in peers if p == "dgl")):
            calls = (ours if who == "ampgnn" else PEERS[who])(c)
            for name in ("copy_u sum", "u_mul_e sum", "edge_softmax", "mean fwd+bwd", "GAT fwd+bwd"):
                cases.append({"edges": edges, "operator": name, "who": who, "us": best_time(calls[name]) * 1e6})
    torch.set_num_threads(threads)
    return cases


# ---- tables


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def _seconds(rows: list[dict]) -> dict[tuple[str, str, str], float]:
    return {(r["operator"], r["who"], r["type"]): r["seconds"] for r in rows}


def _ratio(theirs: float | None, own: float) -> str:
    return f"{theirs / own:.1f}" if theirs else "-"


def table(result: dict, peers: tuple[str, ...]) -> str:
    """Seconds of each operator, ratios to each peer and to our own fp32, gather rate over streaming bandwidth."""
    seconds = _seconds(result["rows"])
    against = [("dgl", "fp32"), ("dgl", "bf16"), ("torch.sparse", "fp32"), ("pyg", "fp32")]
    against = [a for a in against if a[0] in peers]
    head = ["operator", "type", "ms", *(f"{who} {kind} / ours" for who, kind in against)]
    lines = []
    for (name, who, kind), own in seconds.items():
        if who != "ampgnn":
            continue
        bytes_gathered = result["edges"] * result["width"] * TYPES[kind].itemsize
        rate = f"{bytes_gathered / own / 1e9 / result['stream_gb_per_s']:.2f}"
        ratios = [_ratio(seconds.get((name, *peer)), own) for peer in against]
        own32 = _ratio(seconds[name, "ampgnn", "fp32"], own)
        gathers = name in ("copy_u sum", "u_mul_e sum", "u_dot_v")
        lines.append([name, kind, f"{own * 1000:,.1f}", *ratios, own32, rate if gathers else "-"])
    return markdown([*head, "own fp32 / ours", "gather / stream"], lines)


def sweep_table(cases: list[dict]) -> str:
    lines = []
    for case in cases:
        seconds = _seconds(case["rows"])
        for name in dict.fromkeys(r["operator"] for r in case["rows"]):
            own = {k: seconds[name, "ampgnn", k] for k in TYPES}
            ratios = [_ratio(seconds.get((name, "dgl", kind)), own[kind]) for kind in ("fp32", "bf16")]
            lines.append(
                [case["graph"], f"{case['edges']:,}", str(case["width"]), str(case["heads"]), name]
                + [f"{own[k] * 1000:,.1f}" for k in TYPES]
                + [*ratios, _ratio(own["fp32"], own["bf16"])]
            )
    head = ["graph", "edges", "features", "heads", "operator", *(f"{k} ms" for k in TYPES)]
    return markdown([*head, "dgl fp32 / own fp32", "dgl bf16 / own bf16", "own fp32 / own bf16"], lines)


def overhead_table(cases: list[dict]) -> str:
    us = {(c["edges"], c["operator"], c["who"]): c["us"] for c in cases}
    lines = [
        [f"{edges:,}", name, f"{own:.0f}", _ratio(us.get((edges, name, "dgl")), own)]
        for (edges, name, who), own in us.items()
        if who == "ampgnn"
    ]
    return markdown(["edges", "operator", "us a call", "dgl / ours"], lines)


def describe(result: dict) -> str:
    return (
        f"{result['graph']} graph, {result['nodes']:,} nodes, {result['edges']:,} edges, {result['width']} features, "
        f"{result['heads']} heads; {_cpu()}, {torch.get_num_threads()} threads, {ak.isa()}, torch {torch.__version__}; "
        f"streaming read {result['stream_gb_per_s']:.1f} GB/s."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ampgnn_kernels.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a graph a hundred times smaller")
    parser.add_argument("--graph", choices=GRAPHS, default="power_law")
    parser.add_argument("--nodes", type=int, default=232_965)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--sweep", action="store_true", help="also widths, heads and kinds of graph, a tenth as large")
    parser.add_argument("--overhead", action="store_true", help="also the cost of a call on small graphs")
    parser.add_argument("--no-peers", action="store_true", help="our own kernels alone")
    parser.add_argument("--json", type=Path, help="also write the measurements here")
    a = parser.parse_args()
    if a.width % a.heads:
        parser.error(f"--width {a.width} is not a multiple of --heads {a.heads}")
    nodes, edges = (n // (100 if a.quick else 1) for n in (a.nodes, a.edges))
    peers = installed(not a.no_peers)
    result = run(nodes, edges, a.width, a.heads, peers, a.graph)
    missing = [p for p in PEERS if p not in peers]
    text = f"{describe(result)}\n" + (f"Missing peers: {', '.join(missing)}.\n" if missing else "")
    text += f"\n{table(result, peers)}\n"
    if a.sweep:
        result["sweep"] = sweep(nodes // 10, edges // 10, peers)
        text += f"\n{sweep_table(result['sweep'])}\n"
    if a.overhead:
        result["overhead"] = overhead(peers)
        text += f"\n{overhead_table(result['overhead'])}\n"
    print(text, end="")
    if a.json:
        described = {"torch": torch.__version__, "isa": ak.isa(), "cpu": _cpu(), "threads": torch.get_num_threads()}
        a.json.write_text(json.dumps({**described, "missing": missing, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
