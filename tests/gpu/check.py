"""What ``run.sh`` runs: every kernel against float64, times beside the peers, Reddit's stand-in in three precisions.

Prints tables and writes them as JSON (``--out``, results/gpu.json). Exits with 1 if a value is wrong; a target that is
missed is reported, not an error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import ampgnn_kernels as ak
import reference
import torch
import torch.nn.functional as F
from ampgnn_kernels import Graph
from support import assert_as_good_as_torch, exact, features, gradients, random_graph
from torch import Tensor

from ampgnn import config as configs
from ampgnn import precision
from ampgnn.datasets import NodeDataset, standin
from ampgnn.training import loop
from ampgnn.training.capture import CapturedPasses
from ampgnn.training.optimizer import Optimizer

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
H200 = {"gather": 0.6, "epoch_seconds": 0.25, "peak_gb": {"1.1.1": 3.0, "8.8.8": 16.0}}  # issue: targets of an H200


@dataclass(frozen=True)
class Size:
    device: str
    nodes: int
    edges: int
    scale: float  # of Reddit's stand-in
    epochs: int
    seconds: float  # no new part is begun later than this


FULL = Size("cuda", 232_965, 100_000_000, 1.0, 10, 240.0)
DRY = Size("cpu", 300, 3_000, 0.001, 2, 240.0)


def moved(graph: Graph, size: Size) -> Graph:
    _ = graph.csr
    return graph.to(size.device)


# ---- values


def operators(graph: Graph, dtype: torch.dtype) -> dict[str, tuple[list[Tensor], Callable, Callable]]:
    """{name: (operands on the CPU, the operator, its formula in plain torch)}."""
    x = features(graph.num_src, 2, 24, dtype=dtype, seed=1)
    y = features(graph.num_dst, 2, 24, dtype=dtype, seed=2)
    w = features(graph.num_edges, 2, 1, dtype=dtype, seed=3)
    el, er = (features(n, 2, dtype=torch.float32, seed=n) for n in (graph.num_src, graph.num_dst))

    def spmm(op: str, reduce: str, *operands: Tensor):
        def run(of, g, *t):
            return of(g, *t, op=op, reduce=reduce)

        return list(operands), lambda g, *t: run(ak.spmm, g, *t), lambda g, *t: run(reference.spmm, g, *t)

    return {
        "copy_u sum": spmm("copy_u", "sum", x),
        "u_mul_e mean": spmm("mul", "mean", x, w),
        "copy_u max": spmm("copy_u", "max", x),
        "u_dot_v": ([x, y], lambda g, *t: ak.sddmm(g, "dot", *t), lambda g, *t: reference.sddmm(g, "dot", *t)),
        "edge softmax": ([w], ak.edge_softmax, reference.edge_softmax),
        "GAT attention": ([x, el, er], ak.gat_attention, reference.gat_attention),
    }


def check_values(size: Size) -> list[dict]:
    """A row for each operator, type and graph: results and gradients against float64, and twice for the same bits."""
    hub = 200_000 if size.device == "cuda" else 2_000
    star = Graph.from_coo(torch.arange(hub), torch.zeros(hub, dtype=torch.int64), hub, 2)
    graphs = {"power law": random_graph(2_000, 1_500, 60_000), "star": star}
    rows = []
    for name, graph in graphs.items():
        there = moved(graph, size)
        for kind, dtype in TYPES.items():
            for operator, (operands, ours, formula) in operators(graph, dtype).items():
                error = _check(graph, there, dtype, operands, ours, formula)
                rows.append({"operator": operator, "graph": name, "type": kind, "error": error})
    return rows


def _check(graph, there, dtype, operands, ours, formula) -> str | None:
    """What is wrong, or None."""

    def results(of: Graph, leaves: list[Tensor], function: Callable) -> list[Tensor]:
        out = function(of, *leaves)
        return [out.cpu(), *(g.cpu() for g in gradients(lambda: out, leaves, dtype))]

    leaves = [t.to(there.device).requires_grad_() for t in operands]
    plain = [t.clone().requires_grad_() for t in operands]
    got, again = results(there, leaves, ours), results(there, leaves, ours)
    try:
        for a, b, c in zip(
            got, results(graph, plain, formula), results(graph, [exact(t) for t in plain], formula), strict=True
        ):
            assert_as_good_as_torch(a, b, c)
        assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True)), "another run gave other bits"
    except AssertionError as error:
        return str(error).splitlines()[0]
    return None


# ---- times


def seconds_of(call: Callable, device: str, runs: int = 10) -> float:
    """Median time of a call."""
    call()
    times = []
    for _ in range(runs):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        else:
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def copy_bandwidth(size: Size) -> float:
    """Bytes read and written a second by a plain copy."""
    source = torch.empty(1 << 30 if size.device == "cuda" else 1 << 20, dtype=torch.uint8, device=size.device)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds_of(lambda: target.copy_(source), size.device)


def time_operators(size: Size, bandwidth: float) -> list[dict]:
    """A row for each operator and type, ours and the peers that are installed."""
    r = torch.Generator().manual_seed(0)
    src = (torch.rand(size.edges, generator=r) * size.nodes).int()
    dst = (torch.rand(size.edges, generator=r) ** 2 * size.nodes).int()
    graph = Graph.from_coo(src.to(size.device), dst.to(size.device), size.nodes, size.nodes)
    _ = graph.csr
    rows = []
    for kind, dtype in TYPES.items():
        x = torch.randn(size.nodes, 1, 256, dtype=torch.float32).to(size.device, dtype)
        w = torch.rand(size.edges, 1, 1, device=size.device).to(dtype)
        el = torch.randn(size.nodes, 1, device=size.device)
        calls = {
            ("copy_u sum", "ampgnn"): lambda: ak.spmm(graph, x, op="copy_u"),
            ("u_mul_e sum", "ampgnn"): lambda: ak.spmm(graph, x, w, op="mul"),
            ("copy_u max", "ampgnn"): lambda: ak.spmm(graph, x, op="copy_u", reduce="max"),
            ("u_dot_v", "ampgnn"): lambda: ak.sddmm(graph, "dot", x, x),
            ("edge softmax", "ampgnn"): lambda: ak.edge_softmax(graph, w),
            ("GAT forward", "ampgnn"): lambda: ak.gat_attention(graph, x, el, el),
            ("GAT forward, backward", "ampgnn"): lambda: _with_backward(graph, x, el),
            **torch_sparse(graph, x, w),
            **pyg(graph, x),
            **dgl_cuda(graph, x, w),
        }
        for (operator, who), call in calls.items():
            row = {"operator": operator, "who": who, "type": kind}
            try:
                seconds = seconds_of(call, size.device, runs=5)
            except Exception as error:  # a peer without this type, or out of memory
                if who == "ampgnn" and not isinstance(error, torch.cuda.OutOfMemoryError):
                    raise
                rows.append({**row, "reason": str(error).splitlines()[0]})
                continue
            gathered = size.edges * 256 * x.itemsize
            rate = gathered / seconds / bandwidth if operator in ("copy_u sum", "u_mul_e sum", "GAT forward") else None
            rows.append({**row, "seconds": seconds, "gather_over_copy": rate})
    return rows


def _with_backward(graph: Graph, x: Tensor, el: Tensor) -> None:
    leaves = [t.detach().requires_grad_() for t in (x, el, el)]
    ak.gat_attention(graph, *leaves).backward(x)


def torch_sparse(graph: Graph, x: Tensor, w: Tensor) -> dict:
    indptr, indices, eids = graph.csc
    values = w.flatten() if eids is None else w.flatten()[eids.long()]
    matrix = torch.sparse_csr_tensor(indptr, indices, values, (graph.num_dst, graph.num_src))
    return {("u_mul_e sum", "torch.sparse"): lambda: matrix @ x[:, 0]}


def pyg(graph: Graph, x: Tensor) -> dict:
    try:
        from torch_geometric.utils import scatter
    except ImportError:
        return {}
    src, dst = (t.long() for t in graph.coo())
    return {("copy_u sum", "PyG scatter"): lambda: scatter(x[src, 0], dst, 0, graph.num_dst, "sum")}


def dgl_cuda(graph: Graph, x: Tensor, w: Tensor) -> dict:
    """DGL's operators where it is a CUDA build."""
    if x.device.type == "cuda" and not _has_cuda_dgl():
        return {}
    try:
        import dgl
    except Exception:  # not installed, or not for this torch
        return {}
    g = dgl.graph(graph.coo(), num_nodes=graph.num_src)
    return {
        ("copy_u sum", "DGL"): lambda: dgl.ops.copy_u_sum(g, x),
        ("u_mul_e sum", "DGL"): lambda: dgl.ops.u_mul_e_sum(g, x, w),
        ("u_dot_v", "DGL"): lambda: dgl.ops.u_dot_v(g, x, x),
    }


def _has_cuda_dgl() -> bool:
    try:
        return precision.dgl_has_cuda()
    except Exception:  # dgl does not import
        return False


# ---- training


def train_all(size: Size, dataset: NodeDataset, begun: float) -> list[dict]:
    """A row for each number of heads and precision: time of an epoch, peak memory beyond what is loaded, losses."""
    plan = [(heads, kind, False) for heads in ((1, 1, 1), (2, 2, 2)) for kind in TYPES]
    plan += [((1, 1, 1), "bf16", True), ((8, 8, 8), "fp16", False)]
    rows = []
    for heads, kind, captured in plan:
        row = {"heads": ".".join(map(str, heads)), "type": kind, "cuda_graph": captured}
        if captured and size.device != "cuda":
            rows.append({**row, "reason": "CUDA graphs need a GPU"})
        elif time.perf_counter() - begun > size.seconds:
            rows.append({**row, "reason": "out of time"})
        else:
            rows.append({**row, **_train(size, dataset, heads, kind, captured)})
    return rows


def _train(size: Size, dataset: NodeDataset, heads: tuple[int, ...], kind: str, captured: bool) -> dict:
    setting = configs.parse(
        {"dataset": "reddit", "model": "gat", "precision": kind, "device": size.device, "heads": heads}
        | ({} if size.device == "cuda" else {"hidden": 8})
    )
    reason = precision.why_not(size.device, kind)
    if reason:
        return {"reason": reason}
    torch.manual_seed(0)
    data = loop.prepare(setting, dataset)
    model = loop.make_model(setting, data.features.shape[1], data.num_classes)
    optimizer = Optimizer(model, kind, size.device, setting.lr, setting.weight_decay)
    if size.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        loaded = torch.cuda.memory_allocated()

    def passes() -> Tensor:
        with precision.autocast(size.device, kind, setting.mode):
            logits = model(data.graph, data.features)
        ids = data.ids["train"]
        loss = F.cross_entropy(logits[ids].float(), data.labels[ids])
        optimizer.backward(loss)
        return loss.detach()

    try:
        run = CapturedPasses(passes, optimizer.weights) if captured else passes
        losses, times = [], []
        for _ in range(size.epochs):
            start = time.perf_counter()
            loss = run()
            optimizer.update()
            losses.append(loss.item())
            times.append(time.perf_counter() - start)
    except torch.cuda.OutOfMemoryError as error:
        return {"reason": str(error).splitlines()[0]}
    peak = torch.cuda.max_memory_allocated() - loaded if size.device == "cuda" else None
    return {
        "epoch_seconds": statistics.median(times[1:]),
        "peak_gb": None if peak is None else peak / 1e9,
        "losses": [losses[0], losses[-1]],
    }


# ---- report


def table(rows: list[dict]) -> str:
    """Markdown with a column for each key that occurs."""
    keys = list(dict.fromkeys(key for row in rows for key in row))

    def cell(value) -> str:
        if isinstance(value, list):
            return " to ".join(map(cell, value))
        return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [keys, ["---"] * len(keys), *([cell(row.get(key)) for key in keys] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def missed(times: list[dict], runs: list[dict]) -> list[str]:
    """The targets of an H200 that were not reached."""
    found = []
    for row in times:
        rate = row.get("gather_over_copy")
        if row["who"] == "ampgnn" and row["type"] == "bf16" and rate is not None and rate < H200["gather"]:
            found.append(f"{row['operator']} bf16: gathers at {rate:.2f} of copy bandwidth, target {H200['gather']}")
    for row in runs:
        name = f"heads {row['heads']} {row['type']}"
        if row["heads"] == "1.1.1" and row["type"] != "fp32" and row.get("epoch_seconds", 0) > H200["epoch_seconds"]:
            found.append(f"{name}: {row['epoch_seconds']:.3f} s an epoch, target {H200['epoch_seconds']}")
        most = H200["peak_gb"].get(row["heads"])
        if most and row["type"] == "fp16" and (row.get("peak_gb") or 0) > most:
            found.append(f"{name}: peak {row['peak_gb']:.1f} GB, target {most}")
    return found


def facts(size: Size) -> dict:
    gpu = torch.cuda.get_device_name() if size.device == "cuda" else "none: a dry run on the CPU"
    return {"gpu": gpu, "torch": torch.__version__, "cuda": torch.version.cuda, "date": time.strftime("%Y-%m-%d")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/gpu.json"))
    out = parser.parse_args().out
    size = DRY if os.environ.get("AMPGNN_GPU_SCRIPT_DRY") == "1" else FULL
    if size.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device: torch.cuda.is_available() is False (AMPGNN_GPU_SCRIPT_DRY=1 runs on the CPU)")
    begun = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        dataset: Future[NodeDataset] = pool.submit(standin.reddit, "reddit", size.scale)
        values = check_values(size)
        bandwidth = copy_bandwidth(size)
        times = time_operators(size, bandwidth)
        runs = train_all(size, dataset.result(), begun)
    wrong = [row for row in values if row["error"]]
    result = {
        "facts": facts(size),
        "copy_gb_per_s": bandwidth / 1e9,
        "values": values,
        "times": times,
        "training": runs,
    }
    result["missed_targets"] = missed(times, runs) if size.device == "cuda" else []
    result["seconds"] = time.perf_counter() - begun
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['facts']}, copy {bandwidth / 1e9:.0f} GB/s, {result['seconds']:.0f} s in all\n")
    print(f"Values against float64: {len(values) - len(wrong)} of {len(values)} right\n")
    print("\n\n".join(table(rows) for rows in (wrong, times, runs) if rows))
    print("\n".join(["", *result["missed_targets"]]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
