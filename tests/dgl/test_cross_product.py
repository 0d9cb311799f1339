"""The full product: every message function, reducer, type, kind of graph and way of broadcasting, forward and backward,
against float64, within the bound of float32 sums; double backward by finite differences."""

from itertools import product

import dgl
import dgl.function as fn
import pytest
import reference as ref
import torch
from support import UNIT, assert_within

import ampgnn
from ampgnn.dgl import to_graph

PAIRS = [a + b for a, b in product("uve", "uve") if a != b]
MESSAGES = ["copy_u", "copy_e", *(f"{a}_{op}_{b}" for op in ("add", "sub", "mul", "div", "dot") for a, b in PAIRS)]
REDUCERS = ["sum", "mean", "max", "min"]
HALVES = [torch.float16, torch.bfloat16]
DTYPES = [torch.float64, torch.float32, *HALVES]
# feature dimensions of the two operands; dot needs an equal last one
SHAPES = [((), ()), ((3,), (3,)), ((2, 5), (2, 1)), ((1,), (4,)), ((1, 2, 1, 3), (4, 1)), ((0,), (1,))]
DOT_SHAPES = [((3,), (3,)), ((2, 5), (2, 5)), ((1, 5), (3, 5)), ((2, 1, 3), (4, 3))]


def coo(src, dst, *counts):
    return dgl.heterograph({("a", "to", "b"): (src, dst)}, dict(zip("ab", counts, strict=True)))


def hub():
    return dgl.graph(
        (torch.arange(70) % 12, torch.where(torch.arange(70) < 60, 0, torch.arange(70) % 12)), num_nodes=12
    )


GRAPHS = {
    "homogeneous": lambda: dgl.graph((torch.randint(9, (40,)), torch.randint(7, (40,))), num_nodes=9),
    "bipartite": lambda: coo(torch.randint(6, (30,)), torch.randint(9, (30,)), 6, 11),
    "block": lambda: dgl.to_block(dgl.in_subgraph(dgl.rand_graph(20, 60), torch.arange(6)), torch.arange(6)),
    "batched": lambda: dgl.batch([dgl.rand_graph(4, 9), dgl.graph(([], []), num_nodes=2), dgl.rand_graph(3, 7)]),
    "parallel edges, self loops": lambda: dgl.graph(([0, 0, 0, 1, 1, 2], [1, 1, 1, 1, 0, 2])),
    "hub": hub,
    "no edges": lambda: coo([], [], 3, 2),
    "no nodes": lambda: coo([], [], 0, 0),
}


@pytest.fixture(autouse=True)
def kernels():
    with ampgnn.enabled():
        yield


def values(g, target, shape, dtype):
    rows = {"u": g.num_src_nodes(), "v": g.num_dst_nodes(), "e": g.num_edges()}[target]
    t = torch.randn(rows, *shape, dtype=torch.float64)
    return (t.sign() * (t.abs() + 0.5)).to(dtype).requires_grad_()  # away from 0, for quotients


def frame(g, target):
    return {"u": g.srcdata, "v": g.dstdata, "e": g.edata}[target]


def operands(g, name, shapes, dtype):
    """(op, [(target, values)]) of a message function."""
    if name.startswith("copy"):
        return "copy_lhs", [(name[-1], values(g, name[-1], shapes[0], dtype))]
    a, op, b = name.split("_")
    return op, [(a, values(g, a, shapes[0], dtype)), (b, values(g, b, shapes[1], dtype))]


def messages(view, op, sides):
    """(E, *) messages in the type of the values, float64 for the reference."""
    (a, x), (b, y) = sides if len(sides) == 2 else (sides[0], ("e", None))
    x, y = ref.per_edge(view, x, a), None if y is None else ref.per_edge(view, y, b)
    if op == "dot":
        n = max(x.dim(), y.dim())
        x, y = (t.reshape(t.shape[0], *[1] * (n - t.dim()), *t.shape[1:]) for t in (x, y))
    return ref.combine(op, x, y)


def cases(name, dtype):
    """(label, graph, function, [(target, values)], float64 twins of the values, float64 messages)"""
    for (kind, make), (i, shape) in product(GRAPHS.items(), enumerate(DOT_SHAPES if "dot" in name else SHAPES)):
        torch.manual_seed(i)
        g = make().astype((torch.int32, torch.int64)[(i + len(kind)) % 2])
        op, sides = operands(g, name, shape, dtype)
        for key, (target, value) in zip("xy", sides, strict=False):
            frame(g, target)[key] = value
        exact = [(target, value.detach().double().requires_grad_()) for target, value in sides]
        call = getattr(fn, name)(*"xy"[: len(sides)], "m")
        yield f"{name} on {kind} with {shape}", g, call, sides, exact, messages(to_graph(g), op, exact)


def bound(g, name, exact):
    """The messages' terms, all positive, and how many a message has."""
    op = "copy_lhs" if name.startswith("copy") else name.split("_")[1]
    size = messages(
        to_graph(g), "add" if op == "sub" else op, [(target, value.detach().abs()) for target, value in exact]
    ).abs()
    return size, exact[0][1].shape[-1] if op == "dot" else 0


def assert_gradients(label, out, want, sides, exact):
    """Within some roundings of the largest element, and those of a sum of up to 70 terms that cancel."""
    slack = 8 * UNIT[out.dtype] + 70 * (2.0**-53 if out.dtype == torch.float64 else 2.0**-24)
    weight = torch.randn(out.shape, dtype=torch.float64).to(out.dtype)
    grads = torch.autograd.grad(out, [t for _, t in sides], weight)
    wants = torch.autograd.grad(want, [t for _, t in exact], weight.double(), retain_graph=True)
    for grad, want in zip(grads, wants, strict=True):
        assert grad.dtype == out.dtype and grad.shape == want.shape, label
        if grad.numel():
            assert (grad.double() - want).abs().max() <= slack * want.abs().max() + 1e-12, label


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MESSAGES)
def test_update_all(name, dtype):
    fused = name in ("copy_u", "copy_e") or (name[0] + name[-1] == "ue" and "dot" not in name)
    for label, g, call, sides, exact, m in cases(name, dtype):
        view, (size, length) = to_graph(g), bound(g, name, exact)
        for reduce in REDUCERS:
            g.update_all(call, getattr(fn, reduce)("m", "out"))
            out, want = g.dstdata["out"], ref.reduce_rows(view, m, reduce, torch.float64)
            assert out.dtype == dtype and out.shape == want.shape, f"{label}, {reduce}"
            magnitude = ref.reduce_rows(view, size, reduce if reduce in ("sum", "mean") else "max", torch.float64)
            terms = view.in_degrees().reshape(-1, *[1] * (out.dim() - 1)) + 2.0 + length
            if not fused:  # the messages are stored, in the type, before they are reduced
                terms = terms + 2 * UNIT[dtype] / (2.0**-53 if dtype == torch.float64 else 2.0**-24)
            assert_within(out, want, terms, magnitude)
            if (
                reduce in ("sum", "mean") or dtype not in HALVES
            ):  # rounding may make two messages equal, and the first win
                assert_gradients(f"{label}, {reduce}", out, want, sides, exact)


@pytest.mark.parametrize("name", MESSAGES)
def test_apply_edges(name):
    for dtype in DTYPES:
        for label, g, call, sides, exact, want in cases(name, dtype):
            g.apply_edges(call)
            out = g.edata["m"]
            assert out.shape == want.shape and out.dtype == dtype, label
            size, length = bound(g, name, exact)
            assert_within(out, want, length + 2, size)
            assert_gradients(label, out, want, sides, exact)


@pytest.mark.parametrize("name", MESSAGES)
def test_double_backward(name):
    torch.manual_seed(0)
    g = dgl.graph((torch.randint(5, (9,)), torch.randint(4, (9,))), num_nodes=5)
    shapes = ((2, 3), (2, 3) if "dot" in name else (2, 1))
    _, sides = operands(g, name, shapes, torch.float64)
    call = getattr(fn, name)(*"xy"[: len(sides)], "m")

    def passed(*leaves):
        h = g.local_var()
        for key, (target, _), leaf in zip("xy", sides, leaves, strict=False):
            frame(h, target)[key] = leaf
        h.update_all(call, fn.mean("m", "out"))
        h.update_all(call, fn.sum("m", "total"))
        return h.ndata["out"] * h.ndata["total"]

    assert torch.autograd.gradgradcheck(passed, [t for _, t in sides], fast_mode=True)


def test_double_backward_of_softmax_and_segments():
    torch.manual_seed(0)
    g = dgl.graph((torch.randint(5, (12,)), torch.randint(4, (12,))), num_nodes=5)
    logits, rows = torch.randn(12, 2).double().requires_grad_(), torch.randn(6, 3).double().requires_grad_()
    weight, lengths = torch.randn(3, 3, 2).double().requires_grad_(), torch.tensor([2, 0, 4])
    for norm_by in ("src", "dst"):
        assert torch.autograd.gradgradcheck(lambda t: dgl.ops.edge_softmax(g, t, norm_by=norm_by), logits)
    assert torch.autograd.gradgradcheck(lambda *t: dgl.ops.segment_mm(*t, lengths), (rows, weight))
    assert torch.autograd.gradgradcheck(
        lambda *t: dgl.ops.gather_mm(*t, idx_b=torch.tensor([0, 2, 2, 0, 1, 2])), (rows, weight)
    )
    for reducer in ("sum", "mean"):
        assert torch.autograd.gradgradcheck(lambda t: dgl.ops.segment_reduce(lengths, t, reducer), rows)
