"""What operators hold beside their results: 5 % of them, and nothing that grows with the edges times heads, not for a moment."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import ampgnn_kernels as ak
import pytest
import torch
from ampgnn_kernels.cpu import MAX_PARTS

EDGES, NODES, HEADS, DIM = 1 << 20, 256, 16, 4


# Wide enough for tiles, whose running results are what an operator holds.
ROWS, DEGREE, WIDTH = 30_000, 80, 2048
SLACK = 1 << 20  # what the interpreter and the threads' first steps may take


def operator(name, rows, width):
    """A function without arguments that returns what the operator of that name makes on a graph of `rows` nodes."""
    graph = ak.Graph.from_csc(
        torch.arange(0, rows * DEGREE + 1, DEGREE, dtype=torch.int32),
        torch.randint(rows, (rows * DEGREE,), dtype=torch.int32),
        None,
        rows,
    )
    assert len(graph.csc[1]) == len(graph.csr[1])  # both made before anything is measured
    x, w = torch.ones(rows, 1, width).bfloat16(), torch.ones(graph.num_edges, 16).bfloat16()
    one = w[:, :1, None].contiguous()
    ends = torch.ones(rows, 1).requires_grad_(), torch.ones(rows, 1).requires_grad_()
    if name == "gat_attention backward":
        out = ak.gat_attention(graph, x.requires_grad_(), *ends)
        return lambda: torch.autograd.grad(out, (x, *ends), out.detach())
    return {
        "copy_u": lambda: ak.spmm(graph, x, op="copy_u"),
        "u_mul_e mean": lambda: ak.spmm(graph, x, one, op="mul", reduce="mean"),
        "max": lambda: ak.spmm(graph, x, op="copy_u", reduce="max"),
        "u_dot_v": lambda: ak.sddmm(graph, "dot", x, x),
        "edge_softmax": lambda: ak.edge_softmax(graph, w),
        "gat_attention": lambda: ak.gat_attention(graph, x, *(end.detach() for end in ends)),
    }[name]


def peak():
    """This process's largest resident set so far, in bytes. (ru_maxrss would start with that of the process it came from.)"""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def held(name):
    """Bytes that the operator holds beside its result at its peak, and those of the result."""
    operator(name, 256, 64)()
    run = operator(name, ROWS, WIDTH)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    results = run()
    most = peak()
    result = sum(t.nbytes for t in (results if isinstance(results, tuple) else (results,)))
    return most - before - result, result


def attend(name, graph):
    h, h_dst, attn = (
        torch.randn(*s).requires_grad_() for s in ((NODES, HEADS, DIM), (NODES, HEADS, DIM), (HEADS, DIM))
    )
    rest = {
        "gat_attention": (h.sum(-1), h_dst.sum(-1)),
        "gatv2_attention": (h_dst, attn),
        "dot_attention": (h_dst, 0.5),
    }[name]
    getattr(ak, name)(graph, h, *rest).sum().backward()


def growth(name):
    """Bytes by which the process's peak grows in a forward and a backward pass, after one on a small graph."""
    indptr = torch.arange(0, EDGES + 1, EDGES // NODES, dtype=torch.int32)
    few, many = (
        ak.Graph.from_csc(p, torch.randint(NODES, (int(p[-1]),), dtype=torch.int32), None, NODES)
        for p in (indptr * NODES // EDGES, indptr)
    )
    attend(name, few)
    assert len(many.csr.indices) == EDGES  # grouped by source
    before = peak()
    attend(name, many)
    return peak() - before


def measured(*arguments):
    """What this file prints in a process of its own, whose peak so far is small and which gives freed memory back."""
    command, env = [sys.executable, __file__, *arguments], os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=env).stdout
    return [int(word) for word in out.split()]


@pytest.mark.parametrize("name", ["gat_attention", "gatv2_attention", "dot_attention"])
def test_attention_holds_nothing_for_each_edge_and_head(name):
    (grown,) = measured("growth", name)
    assert grown < EDGES * HEADS * 4 // 4


@pytest.mark.parametrize(
    "name",
    ["copy_u", "u_mul_e mean", "max", "u_dot_v", "edge_softmax", "gat_attention", "gat_attention backward"],
)
def test_an_operator_holds_its_result_and_five_percent(name):
    beside, result = measured("held", name)
    sums = (MAX_PARTS * 3 + 4) * 4 * ROWS if name == "gat_attention backward" else 0  # a destination's, see attention.h
    assert beside < 0.05 * result + sums + SLACK


if __name__ == "__main__":
    print(*(held(sys.argv[2]) if sys.argv[1] == "held" else (growth(sys.argv[2]),)))
