"""The walk by tiles, which many source nodes times wide features bring about: the same results as dense algebra."""

import ampgnn_kernels as ak
import pytest
import torch
from ampgnn_kernels import Graph
from support import DTYPES, assert_within, check_pair_attention, features, random_graph

NODES, EDGES = 300, 3600


def tiled_graph(seed=0, idtype=torch.int32, src_order=None):
    """Few nodes; `width` makes their rows more than fit one tile."""
    r = torch.Generator().manual_seed(seed)
    src = torch.randint(NODES, (EDGES,), generator=r, dtype=idtype)
    dst = torch.randint(NODES, (EDGES,), generator=r, dtype=idtype)
    src = src if src_order is None else src.sort(descending=src_order == "falls")[0]
    return Graph.from_coo(src, dst, NODES, NODES)


def width(dtype):
    return 9 * (1 << 20) // (NODES * dtype.itemsize) + 5  # two tiles and a tail


def dense(graph, weights):
    src, dst = graph.coo()
    return torch.zeros(NODES, NODES, dtype=torch.float64).index_put_(
        (dst.long(), src.long()), weights.double(), accumulate=True
    )


@pytest.mark.parametrize(
    ("dtype", "src_order"), [(d, None) for d in DTYPES] + [(DTYPES[-1], "rises"), (DTYPES[-1], "falls")]
)
def test_weighted_sum(dtype, src_order):
    graph = tiled_graph(src_order=src_order)
    x, w = features(NODES, width(dtype), dtype=dtype), features(EDGES, 1, dtype=dtype, seed=1)
    for op, weights in (("copy_u", torch.ones(EDGES)), ("mul", w.flatten())):
        out = ak.spmm(graph, x, None if op == "copy_u" else w, op=op)
        assert_within(out, dense(graph, weights) @ x.double(), 40, dense(graph, weights.abs()) @ x.double().abs())


@pytest.mark.parametrize("dtype", DTYPES)
def test_dot(dtype):
    graph = tiled_graph()
    x, y = features(NODES, width(dtype), dtype=dtype), features(NODES, width(dtype), dtype=dtype, seed=1)
    src, dst = (t.long() for t in graph.coo())
    want, magnitude = (x.double() @ y.double().T)[src, dst], (x.double().abs() @ y.double().abs().T)[src, dst]
    assert_within(ak.sddmm(graph, "dot", x, y).flatten(), want, width(dtype), magnitude)


@pytest.mark.parametrize("src_order", [None, "falls"])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extremes_and_their_first_edge(reduce, src_order):
    graph = tiled_graph(src_order=src_order)
    r = torch.Generator().manual_seed(3)
    x = torch.randint(3, (NODES, width(torch.float32)), generator=r).float().requires_grad_()  # ties everywhere
    out = ak.spmm(graph, x, op="copy_u", reduce=reduce)
    out.backward(torch.ones_like(out))
    src, dst = (t.long() for t in graph.coo())
    want, grad = torch.zeros_like(out), torch.zeros_like(x)
    for v in range(NODES):
        edges = (dst == v).nonzero().flatten()
        if len(edges):
            rows = x.detach()[src[edges]]
            want[v] = rows.amax(0) if reduce == "max" else rows.amin(0)
            first = (rows == want[v]).to(torch.int8).argmax(0)
            grad.index_put_((src[edges][first], torch.arange(x.shape[1])), torch.ones(()), accumulate=True)
    assert torch.equal(out, want) and torch.equal(x.grad, grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 2])
def test_attention_forward_and_backward(dtype, heads):
    graph, dim = tiled_graph(), width(dtype) // heads
    el, er = (features(NODES, heads, dtype=dtype, seed=s) for s in (1, 2))
    h, g = (features(NODES, heads, dim, dtype=dtype, seed=s).requires_grad_(s == 0) for s in (0, 3))
    out = ak.gat_attention(graph, h, el, er)
    out.backward(g)
    src, dst = (t.long() for t in graph.coo())
    e = torch.nn.functional.leaky_relu(el.double()[src] + er.double()[dst], 0.2).exp()
    total = torch.zeros(NODES, heads, dtype=torch.float64).index_add(0, dst, e)[dst]
    for head in range(heads):
        a = dense(graph, (e / total)[:, head])
        x, y = h.detach()[:, head].double(), g[:, head].double()
        # the weights rest on float32 logits: some units of 2^-24 each
        assert_within(out[:, head], a @ x, 80, a @ x.abs() if dtype != torch.float64 else 9 * (a @ x.abs()))
        assert_within(h.grad[:, head], a.T @ y, 80, a.T @ y.abs() if dtype != torch.float64 else 9 * (a.T @ y.abs()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gatv2_attention", "dot_attention"])
def test_attention_of_pairs(name, dtype):
    """Few rows that gather from many, at either end."""
    dim = 9 * (1 << 20) // (3000 * dtype.itemsize) + 5
    for num_src, num_dst in ((3000, 40), (40, 3000)):
        check_pair_attention(random_graph(num_src, num_dst, 2000), name, 1, dim, dtype)


def test_bits_do_not_depend_on_threads():
    graph, x = tiled_graph(), features(NODES, width(torch.bfloat16), dtype=torch.bfloat16)
    w, rows = features(EDGES, 1, dtype=torch.bfloat16, seed=1), x[:, None]
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 4):
            torch.set_num_threads(n)
            leaf = rows.clone().requires_grad_()
            pair = ak.gatv2_attention(graph, leaf, leaf, leaf[0])
            pair.sum().backward()
            results.append(
                (ak.spmm(graph, x, w, op="mul"), ak.gat_attention(graph, rows, x[:, :1], x[:, 1:2]), pair, leaf.grad)
            )
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_large_graphs_keep_their_edges_when_rows_are_sorted(idtype):
    from ampgnn_kernels.graph import MANY_EDGES

    r = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(5000, (MANY_EDGES,), generator=r, dtype=idtype) for _ in range(2))
    graph = Graph.from_coo(src, dst, 5000, 5000)
    for c, row, col in ((graph.csc, dst, src), (graph.csr, src, dst)):
        rows = torch.repeat_interleave(torch.arange(5000), c.indptr.diff())
        assert torch.equal(row[c.eids.long()].long(), rows) and torch.equal(col[c.eids.long()], c.indices)
        same_row = rows[1:] == rows[:-1]
        assert (c.indices.diff()[same_row] >= 0).all()
    assert all(torch.equal(a, b) for a, b in zip(graph.coo(), (src, dst), strict=True))
