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
