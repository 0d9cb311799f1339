"""The GPU's kernels against float64, run on the CPU by Triton's interpreter: values, not speed.

They stand in for the CPU's behind the same operators, so what is tested is what a CUDA tensor would meet: the public
functions, autograd, and the kernels. Rows are split at a few edges, so that small graphs reach every path.
"""

import warnings
from functools import partial

import ampgnn_kernels as ak
import pytest
import reference as ref
import torch
from ampgnn_kernels import Graph
from support import (
    IDTYPES,
    assert_as_good_as_torch,
    assert_within,
    check_pair_attention,
    exact,
    features,
    gradients,
    random_graph,
    star,
)

pytest.importorskip("triton", reason="the GPU kernels are written in Triton")
import triton.language as tl
from ampgnn_kernels import gpu
from ampgnn_kernels.gpu import schedule
from triton.runtime import interpreter

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
OPERATORS = gpu.__all__


def convert_float(values, source, target, rounding):
    """float32 from and to bfloat16, rounded to nearest even as a GPU does; Triton's interpreter cuts off."""
    if target == tl.float32:
        return torch.from_numpy(values.view("int16")).view(torch.bfloat16).float().numpy()
    return torch.from_numpy(values.copy()).bfloat16().view(torch.int16).numpy()


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    """The operators of CPU tensors are the GPU's, rows are split at 8 edges."""
    monkeypatch.setattr(schedule, "CHUNK", 8)
    monkeypatch.setattr(interpreter, "_convert_float", convert_float)
    lib = torch.library.Library("ampgnn", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is overridden
        for name in OPERATORS:
            lib.impl(name, getattr(gpu, name), "CPU", allow_override=True)
    yield
    lib._destroy()


def operands(graph, op, shapes, dtype):
    x = None if op == "copy_e" else features(graph.num_src, *shapes[0], dtype=dtype, seed=1).requires_grad_()
    w = None if op == "copy_u" else features(graph.num_edges, *shapes[1], dtype=dtype, seed=2, low=0.5).requires_grad_()
    return x, w


SPMM = [
    ("copy_u", "sum", ((17,), (1,))), ("copy_e", "sum", ((17,), (3,))), ("mul", "sum", ((2, 16), (2, 1))),
    ("mul", "mean", ((300,), (1,))), ("add", "sum", ((1, 5), (3, 1))), ("sub", "mean", ((), ())),
    ("div", "sum", ((5,), (3, 1))), ("mul", "sum", ((4,), (4,))), ("copy_u", "max", ((33,), (1,))),
    ("copy_e", "min", ((1,), (1,))), ("mul", "max", ((2, 3), (2, 1))), ("sub", "min", ((3, 1, 4), (2, 1))),
    ("copy_u", "mean", ((0,), (1,))), ("div", "max", ((3,), (3,))),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, reduce, shapes", SPMM)
def test_spmm(op, reduce, shapes, dtype):
    graph = random_graph(9, 7, 61, IDTYPES[len(shapes[0]) % 2], seed=len(op))
    x, w = operands(graph, op, shapes, dtype)
    x64, w64 = (None if t is None else exact(t) for t in (x, w))
    out = ak.spmm(graph, x, w, op=op, reduce=reduce)
    want = ref.spmm(graph, x64, w64, op=op, reduce=reduce)
    assert out.dtype == dtype and out.shape == want.shape
    plain = ref.spmm(graph, x, w, op=op, reduce=reduce)
    if reduce in ("max", "min"):
        assert torch.equal(out, plain) or op == "div"
        assert_as_good_as_torch(out, plain, want)
    else:
        terms = ref.messages(graph, x64, w64, op).abs()
        degree = graph.in_degrees().reshape(-1, *[1] * (out.dim() - 1))
        assert_within(out, want, degree + 2, ref.reduce_rows(graph, terms, reduce, torch.float64))
    ours = gradients(lambda: ak.spmm(graph, x, w, op=op, reduce=reduce), (x, w), dtype)
    plain = gradients(lambda: plain, (x, w), dtype)
    want = gradients(lambda: want, (x64, w64), dtype)
    for a, b, c in zip(ours, plain, want, strict=True):
        assert_as_good_as_torch(a, b, c)


SDDMM = [
    ("dot", ((2, 16), (2, 16)), "uv"), ("dot", ((1, 5), (3, 5)), "vu"), ("dot", ((300,), (300,)), "ue"),
    ("dot", ((8, 3), (8, 3)), "ev"), ("add", ((17,), (1,)), "uv"), ("sub", ((4, 5), (4, 1)), "ve"),
    ("mul", ((), ()), "uv"), ("div", ((1, 5), (3, 5)), "eu"), ("copy_lhs", ((3,), (3,)), "uv"),
    ("copy_rhs", ((3,), (3,)), "uv"), ("mul", ((64,), (64,)), "vv"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, shapes, targets", SDDMM)
def test_sddmm(op, shapes, targets, dtype):
    graph = random_graph(9, 7, 61, IDTYPES[len(shapes[0]) % 2], seed=len(op))
    rows = {"u": graph.num_src, "v": graph.num_dst, "e": graph.num_edges}
    lhs, rhs = (
        features(rows[t], *s, dtype=dtype, seed=i, low=0.5).requires_grad_()
        for i, (t, s) in enumerate(zip(targets, shapes, strict=True))
    )
    lhs, rhs = None if op == "copy_rhs" else lhs, None if op == "copy_lhs" else rhs
    exacts = [None if t is None else exact(t) for t in (lhs, rhs)]
    out = ak.sddmm(graph, op, lhs, rhs, *targets)
    want = ref.sddmm(graph, op, *exacts, *targets)
    assert out.shape == want.shape and out.dtype == dtype
    magnitude = ref.sddmm(graph, op, *(t if t is None else t.abs() for t in exacts), *targets).abs()
    assert_within(out, want, shapes[0][-1] + 1 if op == "dot" else 2, magnitude)
    ours = gradients(lambda: out, (lhs, rhs), dtype)
    plain = gradients(lambda: ref.sddmm(graph, op, lhs, rhs, *targets), (lhs, rhs), dtype)
    want = gradients(lambda: want, exacts, dtype)
    for a, b, c in zip(ours, plain, want, strict=True):
        assert_as_good_as_torch(a, b, c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, norm_by", [((), "dst"), ((3,), "src"), ((2, 5), "dst"), ((70,), "dst")])
def test_edge_softmax(heads, norm_by, dtype):
    graph = random_graph(9, 7, 90, torch.int64)
    logits = (features(graph.num_edges, *heads, dtype=torch.float64) * 20).to(dtype).requires_grad_()
    logits64 = exact(logits)
    out, want = ak.edge_softmax(graph, logits, norm_by), ref.edge_softmax(graph, logits64, norm_by)
    assert_softmax(out, want.detach())
    ours, plain, want = (
        gradients(lambda: f, [x], dtype)[0]
        for f, x in ((out, logits), (ref.edge_softmax(graph, logits, norm_by), logits), (want, logits64))
    )
    assert_as_good_as_torch(ours, plain, want)


def assert_softmax(out, want):
    unit = {torch.float32: 0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[out.dtype] + 2.0**-20
    floor = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}.get(out.dtype, 2.0**-126)  # of subnormal results
    assert ((out.double() - want).abs() <= unit * want + floor).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, dim", [(1, 17), (2, 16), (3, 5), (1, 300)])
def test_gat_attention(heads, dim, dtype):
    graph = random_graph(9, 7, 90, torch.int32 if dim % 2 else torch.int64)
    h = features(graph.num_src, heads, dim, dtype=dtype, seed=1).requires_grad_()
    el, er = (features(n, heads, dtype=torch.float32, seed=n).requires_grad_() for n in (9, 7))
    exacts = [exact(t) for t in (h, el, er)]
    out, want = ak.gat_attention(graph, h, el, er), ref.gat_attention(graph, *exacts)
    magnitude = ref.gat_attention(graph, exacts[0].abs(), *exacts[1:])
    assert_within(out, want, graph.in_degrees().reshape(-1, 1, 1) + 16, magnitude)
    ours = gradients(lambda: out, (h, el, er), dtype)
    plain = gradients(lambda: ref.gat_attention(graph, h, el, er), (h, el, er), dtype)
    want = gradients(lambda: want, exacts, dtype)
    for a, b, c in zip(ours, plain, want, strict=True):
        assert_as_good_as_torch(a, b, c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, dim", [(1, 17), (2, 16)])
@pytest.mark.parametrize("name", ["gatv2_attention", "dot_attention"])
def test_pair_attention(name, heads, dim, dtype):
    check_pair_attention(random_graph(9, 7, 90, torch.int32 if dim % 2 else torch.int64), name, heads, dim, dtype)


# ---- what must hold beyond the error bounds (numerics.md)


def test_mean_of_large_float16_values_is_finite():
    x = torch.full((100, 3), 60_000.0, dtype=torch.float16)
    assert (ak.spmm(star(100), x, op="copy_u", reduce="mean") == 60_000).all()
    assert (ak.spmm(star(100), x, op="copy_u", dst_scale=torch.full((1,), 1e-2)) == 60_000).all()
    assert ak.spmm(star(100), x, op="copy_u").isinf().all()


def test_scales_are_applied_in_float32():
    graph = random_graph(9, 7, 40)
    x = features(9, 20, dtype=torch.float16)
    s, d = features(9, dtype=torch.float32, seed=1), features(7, dtype=torch.float32, seed=2)
    out = ak.spmm(graph, x, op="copy_u", src_scale=s, dst_scale=d)
    want = ref.spmm(graph, exact(x) * s.double()[:, None], op="copy_u") * d.double()[:, None]
    assert_within(out, want, 42, want.abs().max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_dots_and_softmax_do_not_stall(dtype, monkeypatch):
    monkeypatch.setattr(schedule, "CHUNK", 512)
    ones = torch.ones(4096, 1, dtype=dtype)
    assert ak.spmm(star(4096), ones, op="copy_u").item() == 4096
    assert ak.sddmm(star(1), "dot", ones.T, ones.T).item() == 4096
    assert abs(ak.edge_softmax(star(4096), ones).double().sum() - 1) <= 2 * (
        2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logit", [-200.0, 60_000.0, -60_000.0])
def test_softmax_does_not_care_about_a_constant(dtype, logit):
    assert torch.equal(
        ak.edge_softmax(star(10), torch.full((10, 2), logit, dtype=dtype)), torch.full((10, 2), 0.1, dtype=dtype)
    )
    h = torch.ones(10, 1, 3, dtype=dtype)
    out = ak.gat_attention(star(10), h, torch.full((10, 1), logit), torch.zeros(1, 1))
    assert torch.allclose(out, torch.ones_like(out))


def test_logits_of_minus_infinity_weigh_nothing_in_any_part_of_a_row():
    logits = torch.full((20, 1), -torch.inf)
    logits[9:12] = 1.0  # the first and the last part of the row hold nothing but -inf
    want = logits.double().softmax(0)
    assert torch.allclose(ak.edge_softmax(star(20), logits).double(), want)
    h = torch.arange(20.0)[:, None, None]
    out = ak.gat_attention(star(20), h, logits, torch.zeros(1, 1))
    assert torch.allclose(out.flatten().double(), (want * h[:, 0]).sum(0))
    assert ak.edge_softmax(star(20), torch.full((20, 1), -torch.inf)).isnan().all()
    out = ak.dot_attention(star(20), logits[:, None], torch.ones(1, 1, 1), 1.0)  # 0 times -inf is not a number
    assert out.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_inf_pass_through_and_stay_in_their_row(dtype):
    nan, inf = float("nan"), float("inf")
    src, dst = torch.tensor([0, 1, 2, 1, 3] + [1] * 20), torch.tensor([0, 0, 1, 2, 3] + [5] * 20)
    graph = Graph.from_coo(src, dst, 4, 6)
    x = torch.tensor([[nan], [1.0], [inf], [-inf]], dtype=dtype)
    for reduce in ("max", "min", "sum", "mean"):
        out = ak.spmm(graph, x, op="copy_u", reduce=reduce).flatten()
        assert out[0].isnan() and out[1] == inf and out[2] == 1 and out[3] == -inf and out[4] == 0
        assert out[5] == (20 if reduce == "sum" else 1)


def test_arg_is_the_first_extreme_edge_also_of_a_split_row():
    x = torch.zeros(30, 2).requires_grad_()
    with torch.no_grad():
        x[[13, 21, 28], 0] = 3.0
        x[[5, 29], 1] = float("nan")
    ak.spmm(star(30), x, op="copy_u", reduce="max").sum().backward()
    assert x.grad[:, 0].nonzero().flatten().tolist() == [13] and x.grad[:, 1].nonzero().flatten().tolist() == [5]


def test_of_equal_messages_the_first_edge_counts_in_any_order_of_the_entries():
    indptr = torch.tensor([0, 20, 23])
    graph = Graph.from_csc(indptr, torch.arange(23), torch.arange(23).flip(0), 23)
    x = torch.zeros(23, 2)
    x[[2, 11, 18], 0] = 3.0
    x[[4, 9], 1] = float("nan")
    leaf = x.requires_grad_()
    ak.spmm(graph, leaf, op="copy_u", reduce="max").sum().backward()
    # edge 22 - u leaves source u: the smallest id is the largest source
    assert leaf.grad[:, 0].nonzero().flatten().tolist() == [18, 22]
    assert leaf.grad[:, 1].nonzero().flatten().tolist() == [9, 22]


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("nodes, edges", [((0, 0), 0), ((3, 4), 0), ((4, 2), 9)])
def test_degenerate_graphs(idtype, nodes, edges):
    num_src, num_dst = nodes
    zeros = torch.zeros(edges, dtype=idtype)
    graph = Graph.from_coo(zeros, zeros, num_src, num_dst)
    for width in (0, 3):
        x = torch.ones(num_src, width, dtype=torch.float16, requires_grad=True)
        w = torch.ones(edges, 1, dtype=torch.float16, requires_grad=True)
        for reduce in ("sum", "mean", "max"):
            out = ak.spmm(graph, x, w, op="mul", reduce=reduce)
            assert out.shape == (num_dst, width)
            if num_dst and width:
                assert (out[0] == (0 if edges == 0 else edges if reduce == "sum" else 1)).all() and (out[1:] == 0).all()
            out.sum().backward()
    assert ak.edge_softmax(graph, torch.zeros(edges, 2, dtype=torch.bfloat16)).shape == (edges, 2)
    h = torch.ones(num_src, 2, 3, dtype=torch.bfloat16, requires_grad=True)
    out = ak.gat_attention(graph, h, torch.zeros(num_src, 2), torch.zeros(num_dst, 2))
    out.sum().backward()
    assert out.shape == (num_dst, 2, 3) and not out.isnan().any() and (out[1:] == 0).all()


def test_non_contiguous_and_expanded_features():
    graph = random_graph(10, 8, 40)
    x = features(20, 12, dtype=torch.float32)[::2, ::2]
    assert torch.equal(ak.spmm(graph, x, op="copy_u"), ak.spmm(graph, x.contiguous(), op="copy_u"))
    w = torch.ones(1, 1).expand(40, 1)
    assert torch.equal(ak.spmm(graph, x, w, op="mul"), ak.spmm(graph, x, op="copy_u"))


def test_gradcheck():
    graph = random_graph(4, 3, 13, torch.int64)
    x, w = features(4, 2, 2, dtype=torch.float64), features(13, 2, 1, dtype=torch.float64, seed=1)
    y, el, er = (features(n, *s, dtype=torch.float64, seed=n) for n, s in ((3, (2, 2)), (4, (2,)), (3, (2,))))
    x, w, y, el, er = (t.requires_grad_() for t in (x, w, y, el, er))
    check = partial(torch.autograd.gradcheck, fast_mode=True)
    assert check(lambda a, b: ak.spmm(graph, a, b, op="mul"), (x, w))
    assert check(lambda a: ak.spmm(graph, a, op="copy_u", reduce="max"), (x,))
    assert check(lambda a, b: ak.sddmm(graph, "dot", a, b), (x, y))
    assert check(lambda a: ak.edge_softmax(graph, a), (w,))
    assert check(lambda *t: ak.gat_attention(graph, *t, negative_slope=0.25), (x, el, er))
    assert check(
        lambda *t: ak.gatv2_attention(graph, *t, negative_slope=0.25), (x, y, x[0].detach().clone().requires_grad_())
    )
    assert check(lambda *t: ak.dot_attention(graph, *t, scale=0.5), (x, y))


# ---- the schedule


def test_pieces_cover_every_row_once_in_order():
    graph = random_graph(50, 40, 900)
    indptr, indices = graph.csc[:2]
    s = schedule.schedule_of(indptr, indices)
    assert s is schedule.schedule_of(indptr, indices)  # made once
    assert ((s.stop - s.start) <= 8).all() and (s.stop[: s.split] > s.start[: s.split]).all()
    spans = {}
    for row, start, stop in zip(s.row.tolist(), s.start.tolist(), s.stop.tolist(), strict=True):
        spans.setdefault(row, []).append((start, stop))
    for row in range(40):
        want = list(range(int(indptr[row]), int(indptr[row + 1])))
        assert [k for a, b in spans[row] for k in range(a, b)] == want
    for j, row in enumerate(s.split_row.tolist()):
        assert (s.row[s.split_first[j] : s.split_first[j + 1]] == row).all()
    lengths = (s.stop - s.start)[s.split :].float().frexp().exponent
    assert (lengths.diff() <= 0).all()  # the longest whole rows first


def test_a_schedule_lives_as_long_as_its_graph():
    before = len(schedule._kept)
    graph = random_graph(5, 5, 9)
    ak.spmm(graph, torch.ones(5, 2), op="copy_u")
    assert len(schedule._kept) == before + 1
    del graph
    assert len(schedule._kept) == before
