"""Graphs, features and the error bounds of half precision that the tests share."""

import importlib

import torch
from ampgnn_kernels import Graph

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
IDTYPES = [torch.int32, torch.int64]
LINEAR = importlib.import_module("ampgnn_kernels.linear")  # `ampgnn_kernels.linear` is the function
UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def random_graph(num_src, num_dst, edges, idtype=torch.int32, seed=0):
    r = torch.Generator().manual_seed(seed)
    src = torch.randint(num_src, (edges,), generator=r, dtype=idtype)
    # quadratic: a few destinations get most edges, some none
    dst = (torch.rand(edges, generator=r) ** 2 * num_dst).to(idtype)
    return Graph.from_coo(src, dst, num_src, num_dst)


def star(degree, idtype=torch.int32):
    """`degree` sources into one destination."""
    return Graph.from_coo(torch.arange(degree, dtype=idtype), torch.zeros(degree, dtype=idtype), degree, 1)


def with_hub(num_src, num_dst, edges, idtype=torch.int32, seed=0):
    """A random graph whose first destination and first source have 700 edges more, and whose last ones have none."""
    src, dst = random_graph(num_src, num_dst, edges, idtype, seed).coo()
    zeros, others = torch.zeros(700, dtype=idtype), torch.arange(700, dtype=idtype)
    src, dst = torch.cat((src, others % num_src, zeros)), torch.cat((dst, zeros, others % num_dst))
    return Graph.from_coo(src, dst, num_src + 3, num_dst + 3)


def features(*shape, dtype, seed=0, low=None):
    r = torch.Generator().manual_seed(seed)
    t = torch.randn(*shape, generator=r, dtype=torch.float64)
    if low is not None:  # away from zero, for quotients
        t = t.sign() * (t.abs() + low)
    return t.to(dtype)


def exact(t):
    return t.detach().double().requires_grad_(t.requires_grad)


def gradients(function, inputs, dtype, seed=9):
    """Of the inputs, for the same incoming gradient, rounded to `dtype`, in whatever type the function computes."""
    inputs = [t for t in inputs if t is not None]
    out = function()
    weight = features(*out.shape, dtype=dtype, seed=seed).to(out.dtype)
    return torch.autograd.grad(out, inputs, weight, allow_unused=True)


def assert_within(out, ref, terms, magnitude):
    """|out - ref| <= u |ref| + n 2^-24 sum |terms|, element by element (2^-53 for float64)."""
    dtype, out, ref = out.dtype, out.detach().double(), ref.detach()
    eps = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    tiny = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}.get(dtype, 0.0)  # half a subnormal step
    bound = UNIT[dtype] * ref.abs() + terms * eps * magnitude + tiny
    worst = ((out - ref).abs() - bound).max() if out.numel() else torch.tensor(0.0)
    assert worst <= 0, f"{dtype}: beyond the bound by {worst:.3g}"


def assert_as_good_as_torch(out, plain, ref, of_float64=64):
    """The largest error is at most twice that of plain torch in the same type (or a few roundings of the largest value,
    ``of_float64`` of them where that is the type and the reference errs too)."""
    dtype, ref = out.dtype, ref.detach()
    scale = ref.abs().max().clamp(min=1e-30) if ref.numel() else 1.0
    error, theirs = ((t.detach().double() - ref).abs().max() if ref.numel() else 0.0 for t in (out, plain))
    # Sums in another order: some roundings. (float64's plain torch is the reference itself.)
    slack = {torch.float64: of_float64, torch.float32: 8}.get(dtype, 2)
    assert error <= 2 * theirs + slack * UNIT[dtype] * scale, f"{dtype}: error {error:.3g}, plain torch {theirs:.3g}"


def check_pair_attention(graph, name, heads, dim, dtype):
    """GATv2 or dot-product attention and its gradients against float64 and beside plain torch."""
    import ampgnn_kernels as ak
    import reference as ref

    h, h_dst = (features(n, heads, dim, dtype=dtype, seed=n).requires_grad_() for n in (graph.num_src, graph.num_dst))
    leaves, factor = [h, h_dst], dim**-0.5
    if name == "gatv2_attention":
        leaves, factor = [h, h_dst, features(heads, dim, dtype=torch.float32, seed=5).requires_grad_()], 0.2
    exacts = [exact(t) for t in leaves]
    out, want = getattr(ak, name)(graph, *leaves, factor), getattr(ref, name)(graph, *exacts, factor)
    plain = getattr(ref, name)(graph, *leaves, factor)
    assert out.dtype == dtype
    # Beside long double, of a hub's gradients the kernels are off by up to 90 roundings, this reference by up to 110.
    assert_as_good_as_torch(out, plain, want, of_float64=256)
    results = [gradients(lambda: f, x, dtype) for f, x in ((out, leaves), (plain, leaves), (want, exacts))]
    for a, b, c in zip(*results, strict=True):
        assert_as_good_as_torch(a, b, c, of_float64=256)
