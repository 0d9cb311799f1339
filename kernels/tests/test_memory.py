"""What attention holds: nothing that grows with the edges times heads, not for a moment."""

import resource
import subprocess
import sys

import ampgnn_kernels as ak
import pytest
import torch

EDGES, NODES, HEADS, DIM = 1 << 20, 256, 16, 4


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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attend(name, many)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.parametrize("name", ["gat_attention", "gatv2_attention", "dot_attention"])
def test_attention_holds_nothing_for_each_edge_and_head(name):
    """In a process of its own, whose peak so far is small."""
    command = [sys.executable, __file__, name]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    assert int(out) < EDGES * HEADS * 4 // 4


if __name__ == "__main__":
    print(growth(sys.argv[1]))
