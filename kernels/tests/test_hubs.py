"""Rows that hold most of the entries, which are cut into pieces: the same results, whatever the number of threads."""

import ampgnn_kernels as ak
import pytest
import reference as ref
import torch
from ampgnn_kernels import Graph
from support import DTYPES, assert_as_good_as_torch, assert_within, exact, features, gradients

NODES, LONG, OTHERS, HUB = 3000, 70_000, 20_000, 1234


def hub_graph(idtype=torch.int32, in_order=False):
    """One destination and one source with LONG edges each, neither first nor last, among nodes with a few."""
    r = torch.Generator().manual_seed(0)
    src, dst = torch.randint(NODES, (2, 2 * LONG + OTHERS), generator=r, dtype=idtype)
    dst[:LONG], src[LONG : 2 * LONG] = HUB, HUB + 1
    mixed = torch.arange(len(dst)) if in_order else torch.randperm(len(dst), generator=r)
    graph = Graph.from_coo(src[mixed], dst[mixed], NODES, NODES)
    if not in_order:
        return graph
    indptr, indices, _ = graph.csc
    return Graph.from_csc(indptr, indices, None, NODES)


@pytest.fixture(scope="module", params=[(torch.int32, False), (torch.int64, False), (torch.int32, True)], ids=str)
def graph(request):
    return hub_graph(*request.param)


def by_threads(function):
    """What a function returns on one thread; on more it is the same to the bit."""
    results, threads = [], torch.get_num_threads()
    for n in (1, 2, 5):
        torch.set_num_threads(n)
        results.append(function())
    torch.set_num_threads(threads)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)
    return results[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["copy_u", "mul", "add"])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_sums_between_scales(graph, op, reduce, dtype):
    x, w = features(NODES, 20, dtype=dtype) / 16, features(graph.num_edges, 1, dtype=dtype, seed=1) / 16
    leaves = [t.requires_grad_() for t in ((x,) if op == "copy_u" else (x, w))]
    exacts, scale = [exact(t) for t in leaves], (torch.rand(NODES) + 0.5).to(ref.acc(x).dtype)

    def plainly(x, w=None, f=lambda t: t):
        m = f(ref.messages(graph, x, w, op)) * ref.per_edge(graph, scale, "u")[:, None]
        return (ref.reduce_rows(graph, m, reduce, m.dtype) * scale[:, None]).to(x.dtype)

    def run(function, inputs):
        out = function(*inputs)
        return out.detach(), *gradients(lambda: out, inputs, dtype)

    def ours(*inputs):
        return ak.spmm(graph, *inputs, op=op, reduce=reduce, src_scale=scale, dst_scale=scale)

    out, *grads = by_threads(lambda: run(ours, leaves))
    plain, want = run(plainly, leaves), run(plainly, exacts)
    assert_within(out, want[0], 600, plainly(*exacts, f=torch.abs).detach())
    for a, b, c in zip(grads, plain[1:], want[1:], strict=True):
        assert_as_good_as_torch(a, b, c, of_float64=4096)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("op", ["copy_u", "mul"])
def test_extremes_and_their_first_edge(graph, op, reduce, dtype):
    r = torch.Generator().manual_seed(3)
    x = torch.randint(-40, 40, (NODES, 20), generator=r).to(dtype).requires_grad_()  # ties everywhere
    w = torch.randint(1, 3, (graph.num_edges, 1), generator=r).to(dtype) if op == "mul" else None
    x64 = exact(x)

    def both():
        out = ak.spmm(graph, x, w, op=op, reduce=reduce)
        return out, *torch.autograd.grad(out, x, torch.ones_like(out))

    out, grad = by_threads(both)
    want = ref.spmm(graph, x64, None if w is None else w.double(), op=op, reduce=reduce)
    (want_grad,) = torch.autograd.grad(want, x64, torch.ones_like(want))
    assert torch.equal(out.double(), want) and torch.equal(grad, want_grad.to(dtype))


def test_extremes_of_nan_and_infinity(graph):
    x = torch.full((NODES, 3), -torch.inf)
    x[int(graph.csc[1][graph.csc[0][HUB] + LONG // 2]), 0] = torch.nan
    out = ak.spmm(graph, x, op="copy_u", reduce="max")[HUB]
    assert out[0].isnan() and (out[1:] == -torch.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("op", "lhs", "rhs"),
    [("dot", "u", "v"), ("dot", "v", "u"), ("dot", "v", "e"), ("add", "u", "v"), ("mul", "v", "e")],
)
def test_edges(graph, op, lhs, rhs, dtype):
    rows = {"u": NODES, "v": NODES, "e": graph.num_edges}
    a, b = (features(rows[t], 2, 9, dtype=dtype, seed=i) for i, t in enumerate((lhs, rhs)))
    (out,) = by_threads(lambda: (ak.sddmm(graph, op, a, b, lhs, rhs),))
    want, magnitude = (ref.sddmm(graph, op, f(a.double()), f(b.double()), lhs, rhs) for f in (lambda t: t, torch.abs))
    assert_within(out, want, 12, magnitude)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_edge_softmax(graph, heads, dtype):
    logits = features(graph.num_edges, heads, dtype=dtype).requires_grad_()
    logits64 = exact(logits)
    out, grad = by_threads(
        lambda: ((s := ak.edge_softmax(graph, logits)).detach(), *gradients(lambda: s, [logits], dtype))
    )
    plain, want = ref.edge_softmax(graph, logits), ref.edge_softmax(graph, logits64)
    assert_as_good_as_torch(out, plain, want)
    assert_as_good_as_torch(
        grad, *gradients(lambda: plain, [logits], dtype), *gradients(lambda: want, [logits64], dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", ["gat_attention", "gatv2_attention", "dot_attention"])
def test_attention(graph, name, heads, dtype):
    h, h_dst = (features(NODES, heads, 20, dtype=dtype, seed=s).requires_grad_() for s in (1, 2))
    wide = ref.acc(h).dtype
    leaves, factor = {
        "gat_attention": ([h, *(features(NODES, heads, dtype=wide, seed=s) for s in (3, 4))], 0.2),
        "gatv2_attention": ([h, h_dst, features(heads, 20, dtype=wide, seed=3)], 0.2),
        "dot_attention": ([h, h_dst], 20**-0.5),
    }[name]
    leaves = [t.requires_grad_() for t in leaves]
    exacts = [exact(t) for t in leaves]

    def run(module, inputs):
        out = getattr(module, name)(graph, *inputs, factor)
        return out.detach(), *gradients(lambda: out, inputs, dtype)

    ours = by_threads(lambda: run(ak, leaves))
    # float64's sums of 70,000 terms in another order
    for out, plain, want in zip(ours, run(ref, leaves), run(ref, exacts), strict=True):
        assert_as_good_as_torch(out, plain, want, of_float64=170_000)


def test_attention_to_nothing_but_minus_infinity_in_a_piece():
    """Pieces whose logits are all -inf weigh nothing; where all pieces' are, there is no answer."""
    degree = 1 << 17
    graph = Graph.from_coo(torch.arange(degree, dtype=torch.int32), torch.zeros(degree, dtype=torch.int32), degree, 1)
    h, el = torch.arange(degree).reshape(-1, 1, 1).float(), torch.full((degree, 1), -torch.inf)
    el[5], el[degree - 7] = 0.0, 0.0
    assert ak.gat_attention(graph, h, el, torch.zeros(1, 1)).item() == (5 + degree - 7) / 2
    assert ak.gat_attention(graph, h, torch.full_like(el, -torch.inf), torch.zeros(1, 1)).isnan().all()
