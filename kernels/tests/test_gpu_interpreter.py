"""The GPU's kernels against float64, run on the CPU by Triton's interpreter: values, not speed.

They stand in for the CPU's behind the same operators, so what is tested is what a CUDA tensor would meet: the public
functions, autograd, and the kernels. Rows are split at a few edges, so that small graphs reach every path.
"""

import warnings

import ampgnn_kernels as ak
import pytest
import reference as ref
import torch
from support import IDTYPES, assert_as_good_as_torch, assert_within, exact, features, gradients, random_graph

pytest.importorskip("triton", reason="the GPU kernels are written in Triton")
import triton.language as tl  # noqa: E402
from ampgnn_kernels import gpu  # noqa: E402
from ampgnn_kernels.gpu import schedule  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

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
