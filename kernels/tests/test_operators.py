"""Every operator against float64 and beside plain torch, forward and backward, on every instruction set."""

import ampgnn_kernels as ak
import pytest
import reference as ref
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    DTYPES,
    IDTYPES,
    LINEAR,
    assert_as_good_as_torch,
    assert_within,
    check_pair_attention,
    exact,
    features,
    gradients,
    random_graph,
    with_hub,
)

OPS = ["copy_u", "copy_e", "add", "sub", "mul", "div"]
SHAPES = [((), ()), ((1,), (1,)), ((17,), (1,)), ((64,), (64,)), ((2, 16), (2, 1)), ((4, 5), (4, 1)), ((1, 5), (3, 1)),
          ((5,), (3, 1)), ((3, 1, 4), (2, 1)), ((0,), (1,)), ((300,), (1,))]  # fmt: skip


@pytest.fixture(params=ak.supported_isas())
def isa(request):
    before = ak.isa()
    ak.set_isa(request.param)
    yield request.param
    ak.set_isa(before)


def operands(graph, op, shapes, dtype):
    x = None if op in ("copy_e", "copy_rhs") else features(graph.num_src, *shapes[0], dtype=dtype, seed=1)
    w = None if op in ("copy_u", "copy_lhs") else features(graph.num_edges, *shapes[1], dtype=dtype, seed=2, low=0.5)
    return [t if t is None else t.requires_grad_() for t in (x, w)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("op", OPS)
def test_spmm(isa, op, reduce, dtype):
    for i, shapes in enumerate(SHAPES):
        graph = random_graph(23, 19, 211, IDTYPES[i % 2], seed=i)
        x, w = operands(graph, op, shapes, dtype)
        x64, w64 = (None if t is None else exact(t) for t in (x, w))
        out = ak.spmm(graph, x, w, op=op, reduce=reduce)
        want = ref.spmm(graph, x64, w64, op=op, reduce=reduce)
        assert out.dtype == dtype and out.shape == want.shape
        if reduce in ("max", "min"):
            plain = ref.spmm(graph, x, w, op=op, reduce=reduce)
            assert torch.equal(out, plain) or dtype == torch.float64 or op == "div"
            assert_as_good_as_torch(out, plain, want)
        else:
            terms = ref.messages(graph, x64, w64, op).abs()
            degree = graph.in_degrees().reshape(-1, *[1] * (out.dim() - 1))
            assert_within(out, want, degree + 2, ref.reduce_rows(graph, terms, reduce, torch.float64))
        ours = gradients(lambda: ak.spmm(graph, x, w, op=op, reduce=reduce), (x, w), dtype)
        plain = gradients(lambda: ref.spmm(graph, x, w, op=op, reduce=reduce), (x, w), dtype)
        want = gradients(lambda: ref.spmm(graph, x64, w64, op=op, reduce=reduce), (x64, w64), dtype)
        for a, b, c in zip(ours, plain, want, strict=True):
            assert a.dtype == dtype
            assert_as_good_as_torch(a, b, c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["copy_lhs", "copy_rhs", "add", "sub", "mul", "div", "dot"])
def test_sddmm(isa, op, dtype):
    shapes = [
        ((), ()),
        ((17,), (1,)),
        ((64,), (64,)),
        ((2, 16), (2, 16)),
        ((4, 5), (4, 1)),
        ((1, 5), (3, 5)),
        ((300,), (300,)),
    ]
    if op == "dot":
        shapes = [((17,), (17,)), ((2, 16), (2, 16)), ((1, 5), (3, 5)), ((300,), (300,)), ((8, 33), (8, 33))]
    for lhs_target in "uve":
        for rhs_target in "uve":
            for i, (a, b) in enumerate(shapes):
                graph = random_graph(13, 11, 97, IDTYPES[i % 2], seed=i)
                rows = {"u": graph.num_src, "v": graph.num_dst, "e": graph.num_edges}
                lhs = None if op == "copy_rhs" else features(rows[lhs_target], *a, dtype=dtype, seed=1).requires_grad_()
                rhs = (
                    None
                    if op == "copy_lhs"
                    else features(rows[rhs_target], *b, dtype=dtype, seed=2, low=0.5).requires_grad_()
                )
                exacts = [None if t is None else exact(t) for t in (lhs, rhs)]
                args = (lhs_target, rhs_target)
                out = ak.sddmm(graph, op, lhs, rhs, *args)
                want = ref.sddmm(graph, op, *exacts, *args)
                assert out.shape == want.shape and out.dtype == dtype
                magnitude = ref.sddmm(graph, op, *(t if t is None else t.abs() for t in exacts), *args)
                assert_within(out, want, a[-1] + 1 if op == "dot" else 2, magnitude.abs())
                ours = gradients(lambda: ak.sddmm(graph, op, lhs, rhs, *args), (lhs, rhs), dtype)
                plain = gradients(lambda: ref.sddmm(graph, op, lhs, rhs, *args), (lhs, rhs), dtype)
                wanted = gradients(lambda: ref.sddmm(graph, op, *exacts, *args), exacts, dtype)
                for x, y, z in zip(ours, plain, wanted, strict=True):
                    assert_as_good_as_torch(x, y, z)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(), (1,), (3,), (8,), (2, 5)])
@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax(isa, dtype, heads, norm_by):
    graph = random_graph(30, 20, 900, torch.int64)
    logits = (features(graph.num_edges, *heads, dtype=torch.float64) * 20).to(dtype).requires_grad_()
    out = ak.edge_softmax(graph, logits, norm_by)
    want = ref.edge_softmax(graph, exact(logits), norm_by).detach()
    unit = {torch.float64: 2.0**-40, torch.float32: 0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[
        dtype
    ] + 2.0**-20
    floor = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}.get(dtype, 2.0**-149)
    assert ((out.double() - want).abs() <= unit * want + floor).all()
    ours = gradients(lambda: ak.edge_softmax(graph, logits, norm_by), [logits], dtype)[0]
    plain = gradients(lambda: ref.edge_softmax(graph, logits, norm_by), [logits], dtype)[0]
    exact_logits = exact(logits)
    want = gradients(lambda: ref.edge_softmax(graph, exact_logits, norm_by), [exact_logits], dtype)[0]
    assert_as_good_as_torch(ours, plain, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, dim", [(1, 1), (1, 17), (1, 64), (2, 16), (3, 5), (8, 32), (1, 300), (2, 41)])
def test_gat_attention(isa, dtype, heads, dim):
    graph = random_graph(40, 30, 1500, torch.int32 if dim % 2 else torch.int64)
    h = features(graph.num_src, heads, dim, dtype=dtype, seed=1).requires_grad_()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    el, er = (features(n, heads, dtype=wide, seed=n).requires_grad_() for n in (graph.num_src, graph.num_dst))
    exacts = [exact(t) for t in (h, el, er)]
    out = ak.gat_attention(graph, h, el, er)
    want = ref.gat_attention(graph, *exacts)
    magnitude = ref.gat_attention(graph, exacts[0].abs(), *exacts[1:])
    degree = graph.in_degrees().reshape(-1, 1, 1)
    assert_within(out, want, degree + 16, magnitude)
    ours = gradients(lambda: ak.gat_attention(graph, h, el, er), (h, el, er), dtype)
    plain = gradients(lambda: ref.gat_attention(graph, h, el, er), (h, el, er), dtype)
    want = gradients(lambda: ref.gat_attention(graph, *exacts), exacts, dtype)
    for a, b, c in zip(ours, plain, want, strict=True):
        assert_as_good_as_torch(a, b, c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rows, heads, dim", [(0, 2, 3), (3, 2, 0), (5, 1, 1), (300, 1, 256), (301, 8, 41), (5000, 2, 16)]
)
def test_head_dot(isa, dtype, rows, heads, dim):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    h = features(rows, heads, dim, dtype=dtype).requires_grad_()
    a = features(2, heads, dim, dtype=wide, seed=1).requires_grad_()
    formula = lambda h, a: (h.to(a.dtype) * a[:, None]).sum(-1)  # noqa: E731
    runs = [(ak.head_dot, h, a), (formula, h, a), (formula, exact(h), exact(a))]
    assert_as_good_as_torch(*(function(*leaves) for function, *leaves in runs))
    results = [gradients(lambda: function(*leaves), leaves, wide) for function, *leaves in runs]
    for ours, plain, want in zip(*results, strict=True):
        assert_as_good_as_torch(ours, plain, want)
    assert torch.equal(ak.head_dot(h, a[1]), ak.head_dot(h, a)[1])
    with pytest.raises(ValueError, match="head_dot needs h"):
        ak.head_dot(h, a[:, :0])


def test_head_dot_in_blocks_of_rows_as_on_a_gpu(monkeypatch):
    h, a, grad = (
        features(300, 2, 5, dtype=torch.bfloat16),
        features(2, 2, 5, dtype=torch.float32),
        torch.rand(2, 300, 2),
    )
    ops = torch.ops.ampgnn
    monkeypatch.setattr(LINEAR, "_rows", lambda x: 64)
    torch.testing.assert_close(LINEAR._head_dot(h, a), ops.head_dot(h, a))
    torch.testing.assert_close(LINEAR._head_dot_backward(h, a, grad), ops.head_dot_backward(h, a, grad))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, dim", [(1, 1), (1, 64), (1, 300), (2, 17), (3, 5), (4, 16), (5, 41), (6, 2), (7, 8), (8, 32), (40, 3)])  # fmt: skip
@pytest.mark.parametrize("name", ["gatv2_attention", "dot_attention"])
def test_pair_attention(isa, name, heads, dim, dtype):
    check_pair_attention(with_hub(40, 30, 900, IDTYPES[dim % 2]), name, heads, dim, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_where_the_leaky_relu_has_its_corner(dtype):
    """Zeros, as padded or dead features are: torch's derivative there is the slope."""
    graph = random_graph(9, 9, 60)
    h, x = torch.zeros(9, 2, 3, dtype=dtype, requires_grad=True), features(9, 2, 3, dtype=dtype)
    attn, logits = features(2, 3, dtype=torch.float32), torch.zeros(9, 2, requires_grad=True)
    for leaf, attention in (
        (h, lambda ops, graph, h: ops.gatv2_attention(graph, x * (h + 1) - x, h, attn)),
        (logits, lambda ops, graph, el: ops.gat_attention(graph, x, el, torch.zeros(9, 2))),
    ):
        grads = [torch.autograd.grad((attention(ops, graph, leaf) * x).sum(), leaf)[0] for ops in (ak, ref)]
        assert torch.allclose(*grads, rtol=0.02, atol=1e-5)


@given(
    num_src=st.integers(1, 40),
    num_dst=st.integers(0, 40),
    edges=st.integers(0, 300),
    heads=st.integers(1, 5),
    dim=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    idtype=st.sampled_from(IDTYPES),
    reduce=st.sampled_from(["sum", "mean"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_weighted_sum_of_any_shape(num_src, num_dst, edges, heads, dim, dtype, idtype, reduce, seed):
    edges = edges if num_dst else 0
    graph = random_graph(num_src, num_dst, edges, idtype, seed)
    x = features(num_src, heads, dim, dtype=dtype, seed=seed)
    w = features(edges, heads, 1, dtype=dtype, seed=seed + 1)
    out = ak.spmm(graph, x, w, op="mul", reduce=reduce)
    want = ref.spmm(graph, exact(x), exact(w), op="mul", reduce=reduce)
    terms = ref.reduce_rows(graph, ref.messages(graph, exact(x), exact(w), "mul").abs(), reduce, torch.float64)
    assert_within(out, want, graph.in_degrees().reshape(-1, 1, 1) + 2, terms)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_gradcheck_spmm(op, reduce):
    graph = random_graph(6, 5, 17, torch.int64)
    for shapes in (((3,), (1,)), ((2, 3), (2, 1)), ((1, 3), (2, 1))):
        x, w = operands(graph, op, shapes, torch.float64)
        inputs = [t for t in (x, w) if t is not None]

        def f(*args, op=op):
            args = (None, *args) if op == "copy_e" else args
            return ak.spmm(graph, *args, op=op, reduce=reduce)

        assert torch.autograd.gradcheck(f, inputs)
        if reduce != "max":
            assert torch.autograd.gradgradcheck(f, inputs)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "dot"])
def test_gradcheck_sddmm(op):
    graph = random_graph(6, 5, 17, torch.int64)
    x, y = features(6, 2, 3, dtype=torch.float64), features(5, 2, 3, dtype=torch.float64, seed=3, low=0.5)
    inputs = [x.requires_grad_(), y.requires_grad_()]
    assert torch.autograd.gradcheck(lambda a, b: ak.sddmm(graph, op, a, b), inputs)
    assert torch.autograd.gradgradcheck(lambda a, b: ak.sddmm(graph, op, a, b), inputs)


def test_gradcheck_softmax_and_attention():
    graph = random_graph(6, 5, 17, torch.int64)
    logits = features(17, 2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ak.edge_softmax(graph, t), logits)
    assert torch.autograd.gradgradcheck(lambda t: ak.edge_softmax(graph, t), logits)
    h, el, er = (
        features(n, *s, dtype=torch.float64, seed=n).requires_grad_() for n, s in ((6, (2, 3)), (6, (2,)), (5, (2,)))
    )
    assert torch.autograd.gradcheck(lambda *t: ak.gat_attention(graph, *t), (h, el, er))
    h_dst, attn = (features(*s, dtype=torch.float64, seed=s[0]).requires_grad_() for s in ((5, 2, 3), (2, 3)))
    assert torch.autograd.gradcheck(lambda *t: ak.gatv2_attention(graph, *t), (h, h_dst, attn))
    assert torch.autograd.gradcheck(lambda *t: ak.dot_attention(graph, *t, 0.5), (h, h_dst))


def test_scales_are_applied_in_float32():
    graph = random_graph(9, 7, 40)
    x = features(9, 20, dtype=torch.float16)
    s, d = features(9, dtype=torch.float32, seed=1), features(7, dtype=torch.float32, seed=2)
    out = ak.spmm(graph, x, op="copy_u", src_scale=s, dst_scale=d)
    want = ref.spmm(graph, exact(x) * s.double()[:, None], op="copy_u") * d.double()[:, None]
    assert_within(out, want, 42, want.abs().max())
