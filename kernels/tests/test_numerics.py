"""What must hold beyond the error bounds: no overflow inside, NaN and inf where they belong, any graph, any thread count."""

import ampgnn_kernels as ak
import pytest
import torch
from ampgnn_kernels import Graph
from support import DTYPES, IDTYPES, LINEAR, features, random_graph, star

HALVES = [torch.float16, torch.bfloat16]


def test_mean_of_large_float16_values_is_finite():
    graph = star(100_000)
    x = torch.full((100_000, 3), 60_000.0, dtype=torch.float16)
    assert (ak.spmm(graph, x, op="copy_u", reduce="mean") == 60_000).all()
    scale = torch.full((1,), 1e-5)
    assert (ak.spmm(graph, x, op="copy_u", dst_scale=scale) == 60_000).all()
    assert ak.spmm(graph, x, op="copy_u").isinf().all()  # not representable: inf, not clipped


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("degree", [256, 512, 1000, 5000, 20_000, 1_000_000])
def test_softmax_of_equal_logits_adds_up_to_one(dtype, degree):
    weights = ak.edge_softmax(star(degree), torch.ones(degree, 1, dtype=dtype))
    want = torch.tensor(1.0 / degree, dtype=torch.float64)
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert (weights.double() - want).abs().max() <= max(unit * want, 2.0**-25)
    if dtype == torch.bfloat16 or degree < 2**14:
        assert abs(weights.double().sum() - 1) <= 2 * unit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logit", [-200.0, -100.0, 0.0, 100.0, 60_000.0, -60_000.0])
def test_softmax_does_not_care_about_a_constant(dtype, logit):
    weights = ak.edge_softmax(star(10), torch.full((10, 2), logit, dtype=dtype))
    assert torch.equal(weights, torch.full((10, 2), 0.1, dtype=dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_and_dots_do_not_stall(dtype):
    ones = torch.ones(4096, 1, dtype=dtype)
    assert ak.spmm(star(4096), ones, op="copy_u").item() == 4096
    pair = Graph.from_coo(torch.tensor([0]), torch.tensor([0]), 1, 1)
    row = torch.ones(1, 4096, dtype=dtype)
    assert ak.sddmm(pair, "dot", row, row).item() == 4096


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_inf_pass_through_and_stay_in_their_row(dtype):
    nan, inf = float("nan"), float("inf")
    src, dst = torch.tensor([0, 1, 2, 1, 3]), torch.tensor([0, 0, 1, 2, 3])
    graph = Graph.from_coo(src, dst, 4, 5)
    x = torch.tensor([[nan], [1.0], [inf], [-inf]], dtype=dtype)
    for reduce in ("max", "min", "sum", "mean"):
        out = ak.spmm(graph, x, op="copy_u", reduce=reduce).flatten()
        assert out[0].isnan() and out[1] == inf and out[2] == 1 and out[3] == -inf and out[4] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_arg_is_the_first_extreme_edge(dtype):
    graph = Graph.from_coo(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 0, 0]), 4, 2)
    x = torch.tensor([[1.0, -1.0], [3.0, -5.0], [3.0, -5.0], [2.0, -5.0]], dtype=dtype).requires_grad_()
    ak.spmm(graph, x, op="copy_u", reduce="max")[0, 0].backward()
    assert x.grad[:, 0].tolist() == [0, 1, 0, 0]
    x.grad = None
    ak.spmm(graph, x, op="copy_u", reduce="min")[0, 1].backward()
    assert x.grad[:, 1].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_are_bit_equal_to_inputs(dtype):
    graph = random_graph(50, 20, 400)
    x = (features(50, 33, dtype=torch.float64) * 1e-40).to(dtype)  # subnormals too
    out = ak.spmm(graph, x, op="copy_u", reduce="max")
    want = torch.zeros_like(out)
    src, dst = (t.long() for t in graph.coo())
    want.scatter_reduce_(0, dst[:, None].expand(-1, 33), x[src], "amax", include_self=False)
    assert torch.equal(out.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("nodes, edges", [((0, 0), 0), ((3, 4), 0), ((0, 3), 0), ((1, 1), 5), ((4, 1), 9)])
def test_degenerate_graphs(idtype, nodes, edges):
    num_src, num_dst = nodes
    zeros = torch.zeros(edges, dtype=idtype)
    graph = Graph.from_coo(zeros, zeros, num_src, num_dst)
    for width in (0, 1, 3, 17):
        x = torch.ones(num_src, width, dtype=torch.float16, requires_grad=True)
        w = torch.ones(edges, 1, dtype=torch.float16, requires_grad=True)
        for reduce in ("sum", "mean", "max", "min"):
            out = ak.spmm(graph, x, w, op="mul", reduce=reduce)
            assert out.shape == (num_dst, width)
            if num_dst and width:
                assert (out[0] == (0 if edges == 0 else edges if reduce == "sum" else 1)).all() and (out[1:] == 0).all()
            out.sum().backward()
    logits = torch.zeros(edges, 2, dtype=torch.bfloat16)
    assert ak.edge_softmax(graph, logits).shape == (edges, 2)
    h = torch.ones(num_src, 2, 3, dtype=torch.bfloat16, requires_grad=True)
    out = ak.gat_attention(graph, h, torch.zeros(num_src, 2), torch.zeros(num_dst, 2))
    out.sum().backward()
    assert out.shape == (num_dst, 2, 3) and not out.isnan().any()
    h_dst = torch.ones(num_dst, 2, 3, dtype=torch.bfloat16, requires_grad=True)
    attn = torch.ones(2, 3, requires_grad=True)
    for out in (ak.gatv2_attention(graph, h, h_dst, attn), ak.dot_attention(graph, h, h_dst, 1.0)):
        h.grad = None
        out.sum().backward()
        assert torch.equal(out, torch.where(graph.in_degrees()[:, None, None] > 0, torch.ones_like(out), 0))
        assert h.grad.float().sum() == 6 * (graph.in_degrees() > 0).sum() and not h_dst.grad.any()
    assert not attn.grad.any()


def test_a_hub_of_a_million_edges():
    degree = 1_000_000
    r = torch.Generator().manual_seed(0)
    x = torch.rand(degree, 3, generator=r).bfloat16()
    out = ak.spmm(star(degree), x, op="copy_u", reduce="mean")
    assert torch.allclose(out.double(), x.double().mean(0, keepdim=True), rtol=2.0**-8)
    logits = torch.randn(degree, 1, generator=r).float()
    got, want = ak.edge_softmax(star(degree), logits).double(), logits.double().softmax(0)
    assert ((got - want).abs() <= want * 2.0**-19).all()


@pytest.mark.parametrize("order", ["any", "rises", "falls"])
def test_attention_of_a_hub_of_a_million_edges(order):
    """Logits that rise move the base of a softmax that is made in one pass at every step."""
    degree = 1_000_000
    h = features(degree, 1, 2, dtype=torch.float32)
    if order != "any":
        h[..., 0] = h[..., 0].sort(0, descending=order == "falls").values
    y = torch.tensor([[[4.0, 0.0]]]).requires_grad_()
    out = ak.dot_attention(star(degree), h, y, 1.0)
    out[0, 0, 1].backward()
    wide, y64 = h.double()[:, 0], y.detach().double().requires_grad_()
    want = (wide @ y64.view(2)).softmax(0) @ wide
    want[1].backward()
    assert torch.allclose(out.view(2).double(), want, rtol=1e-4, atol=1e-4)
    assert torch.allclose(y.grad.double(), y64.grad, rtol=1e-3, atol=1e-4)


def pair_attentions(graph, h, h_dst, attn):
    """GATv2's and that of dot products, of the same rows."""
    return ak.gatv2_attention(graph, h, h_dst, attn), ak.dot_attention(graph, h, h_dst, 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_attention_keeps_nan_and_inf_in_their_row_and_head(dtype, value):
    graph = Graph.from_coo(torch.tensor([0, 1, 2, 1, 3]), torch.tensor([0, 0, 1, 1, 2]), 4, 4)
    for dim in (1, 5, 19):
        h, h_dst = (features(4, 3, dim, dtype=dtype, seed=s).abs().requires_grad_() for s in (0, 1))
        attn = torch.rand(3, dim).requires_grad_()
        with torch.no_grad():
            h[0, 1, -1] = value
        for out in pair_attentions(graph, h, h_dst, attn):
            bad = torch.zeros(4, 3, 1, dtype=torch.bool)
            bad[0, 1] = True  # where a row's largest logit is inf no weight is a number
            assert torch.equal(out.isnan(), bad.expand_as(out)) and not out[3].any()
            grads = torch.autograd.grad(out.sum(), (h, h_dst), retain_graph=True)
            assert torch.equal(grads[1].isnan(), bad.expand_as(out))
            bad[:2, 1] = True  # sources of that destination
            assert torch.equal(grads[0].isnan(), bad.expand_as(out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, 19, 72, 128])
def test_gat_attention_keeps_a_nan_logit_in_its_head(dim, dtype):
    graph = Graph.from_coo(torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 2]), 3, 3)
    h = features(3, 2, dim, dtype=dtype).requires_grad_()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    el, er = (features(3, 2, dtype=wide, seed=s).requires_grad_() for s in (1, 2))
    with torch.no_grad():
        el[1, 0] = torch.nan
    out = ak.gat_attention(graph, h, el, er)
    grads = torch.autograd.grad(out.sum(), (h, el, er))
    assert all(x[:2, 0].isnan().any() for x in (out, *grads))
    assert not any(x[:, 1].isnan().any() for x in (out, *grads))


def test_attention_with_logits_of_minus_infinity():
    """They weigh nothing, in the first of a row's blocks too; a row of nothing else has no softmax."""
    h = torch.full((600, 1, 1), -torch.inf)
    h[400:403, 0, 0] = torch.tensor([0.0, 0.1, 0.5])
    h = torch.cat((h.clamp(min=-1e38), torch.arange(600.0)[:, None, None]), -1)  # a weight of 0 times inf is NaN
    out = ak.dot_attention(star(600), h, torch.tensor([[[3e38, 0.0]]]), 1.0)
    assert out[0, 0, 1] == 402
    alone = Graph.from_coo(torch.tensor([0, 1]), torch.tensor([0, 0]), 2, 1)
    assert ak.dot_attention(alone, torch.full((2, 1, 1), -torch.inf), torch.ones(1, 1, 1), 1.0).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_beyond_float16_give_finite_weights(dtype):
    h = torch.full((10, 1, 2), 600.0, dtype=dtype)
    for out in pair_attentions(star(10), h, h[:1], torch.full((1, 2), 600.0)):
        assert torch.equal(out, h[:1])


def test_non_contiguous_and_expanded_features():
    graph = random_graph(20, 20, 100)
    x = features(40, 12, dtype=torch.float32)[::2, ::2]
    assert torch.equal(ak.spmm(graph, x, op="copy_u"), ak.spmm(graph, x.contiguous(), op="copy_u"))
    w = torch.ones(1, 1).expand(100, 1)
    assert torch.equal(ak.spmm(graph, x, w, op="mul"), ak.spmm(graph, x, op="copy_u"))
    h = features(20, 5, 6, dtype=torch.float32).transpose(1, 2).requires_grad_()
    for a, b in zip(*(pair_attentions(graph, t, t, t[0]) for t in (h, h.contiguous())), strict=True):
        expanded = torch.ones(1, 1, 1).expand_as(a)
        grads = [torch.autograd.grad(out, h, g)[0] for out, g in ((a, expanded), (b, expanded.clone()))]
        assert torch.equal(a, b) and torch.equal(*grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_for_any_number_of_threads(dtype):
    graph = random_graph(3000, 2000, 200_000)
    x = features(3000, 2, 40, dtype=dtype)
    w = features(200_000, 2, 1, dtype=dtype, seed=1)
    el, er = features(3000, 2, dtype=torch.float32), features(2000, 2, dtype=torch.float32)

    def run(threads):
        torch.set_num_threads(threads)
        leaves = [t.clone().requires_grad_() for t in (x, w, el, er)]
        outs = [
            ak.spmm(graph, *leaves[:2], op="mul"),
            ak.spmm(graph, leaves[0], op="copy_u", reduce="max"),
            ak.edge_softmax(graph, leaves[1]),
            ak.gat_attention(graph, leaves[0], *leaves[2:]),
            *pair_attentions(graph, leaves[0], leaves[0][:2000], leaves[0][0]),
        ]
        torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])
        return outs + [t.grad for t in leaves]

    before = torch.get_num_threads()
    try:
        one, two, four, again = run(1), run(2), run(4), run(4)
    finally:
        torch.set_num_threads(before)
    for results in zip(one, two, four, again, strict=True):
        assert all(torch.equal(results[0], r) for r in results[1:])


def test_bad_input_is_named():
    graph = random_graph(5, 4, 10)
    x = torch.ones(5, 3)
    for call, error, words in [
        (lambda: ak.spmm(graph, x, op="copy"), ValueError, "op must be one of copy_u"),
        (lambda: ak.spmm(graph, x, op="copy_u", reduce="prod"), ValueError, "reduce must be one of sum"),
        (lambda: ak.spmm(graph, torch.ones(4, 3), op="copy_u"), ValueError, r"x must have 5 rows, got shape \(4, 3\)"),
        (lambda: ak.spmm(graph, x.int(), op="copy_u"), TypeError, "x must be float64"),
        (lambda: ak.spmm(graph, x, torch.ones(10, 2), op="mul"), ValueError, "do not broadcast"),
        (lambda: ak.spmm(graph, x, op="mul"), ValueError, "w is needed"),
        (lambda: ak.spmm(graph, x.to("meta"), op="copy_u"), ValueError, "x is on meta, the graph on cpu"),
        (lambda: ak.sddmm(graph, "dot", x, torch.ones(4, 2)), ValueError, "dot needs an equal last dimension"),
        (lambda: ak.gat_attention(graph, x, x, x), ValueError, "h must have shape"),
        (lambda: ak.dot_attention(graph, x, x[:4], 1.0), ValueError, "h and h_dst must have shape"),
        (lambda: ak.dot_attention(graph, x[None], x, 1.0), ValueError, "h must have 5 rows"),
        (lambda: pair_attentions(graph, x[:, None], x[:4, None], x), ValueError, r"attn must have shape \(1, 3\)"),
        (lambda: ak.dot_attention(graph, x[:, None], x[:4, None].half(), 1.0), ValueError, "and one type"),
        (lambda: Graph.from_coo(torch.tensor([0, 9]), torch.tensor([0, 0]), 3, 3), ValueError, "edge 1: src is 9, allowed are 0 to 2"),
        (lambda: Graph.from_coo(torch.tensor([0.0]), torch.tensor([0.0])), TypeError, "int32 or int64"),
        (lambda: Graph.from_csc(torch.tensor([0, 2]), torch.tensor([0])), ValueError, "indptr must rise"),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16, torch.float32])
def test_linear_promotes_mixed_types(narrow):
    wide = torch.float64 if narrow == torch.float32 else torch.float32
    x, weight, bias = (torch.randn(*shape, dtype=wide) for shape in ((5, 4), (3, 4), (3,)))
    for a, w in ((x.to(narrow), weight), (x, weight.to(narrow))):
        out = ak.linear(a, w, bias.to(w.dtype))
        assert out.dtype == wide
        assert torch.allclose(out, torch.nn.functional.linear(a.to(wide), w.to(wide), bias.to(w.dtype).to(wide)))
    with pytest.raises(RuntimeError, match="dtype"):
        ak.linear(x.long(), weight)


@pytest.mark.parametrize("native", sorted({False, LINEAR._CPU_MULTIPLIES_HALF}))
def test_linear_in_float16_matches_float32_rounded_once(native, monkeypatch):
    monkeypatch.setattr(LINEAR, "_CPU_MULTIPLIES_HALF", native)
    for rows in (0, 5, 9000):
        x, weight, bias = (features(*s, dtype=torch.float16, seed=i) for i, s in enumerate(((rows, 30), (7, 30), (7,))))
        leaves = [t.requires_grad_() for t in (x, weight, bias)]
        out = ak.linear(*leaves)
        exact = torch.nn.functional.linear(*(t.double() for t in leaves))
        assert out.dtype == torch.float16 and torch.allclose(out.double(), exact, rtol=2**-10, atol=1e-5)
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
        wants = torch.autograd.grad(exact, leaves, torch.ones_like(exact))
        for got, want in zip(grads, wants, strict=True):
            assert torch.allclose(got, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ids", [True, None], ids=["rising ids", "no ids"])
def test_extremes_of_every_value_and_their_edge(dtype, reduce, ids):
    """Zeros of both signs, infinities, subnormals and NaNs of both signs, in rows of 1 to 60 entries."""
    r = torch.Generator().manual_seed(3)
    values = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-40, -1e-7, 6e-8, 1.0, -1.0, 3.0], dtype=dtype)
    x = values[torch.randint(len(values), (40, 70), generator=r)]
    nan = torch.rand(x.shape, generator=r) < 0.02
    x[nan] = torch.where(
        torch.rand(x.shape, generator=r) < 0.5, torch.tensor(float("nan")), -torch.tensor(float("nan"))
    ).to(dtype)[nan]
    dst = torch.arange(60).repeat_interleave(torch.arange(1, 61))
    src = (torch.randint(40, dst.shape, generator=r) + 40 * dst).sort().values % 40
    graph = ak.Graph.from_csc(ak.Graph.from_coo(src, dst, 40, 60).csc.indptr, src, ids and torch.arange(len(src)), 40)
    x.requires_grad_()
    out = ak.spmm(graph, x, op="copy_u", reduce=reduce)
    out.backward(torch.ones_like(out))
    rows, want = x.detach().double()[src], torch.zeros(40, 70)
    for v in range(60):
        mine = (dst == v).nonzero().flatten()
        m = rows[mine]
        top = m.amax(0) if reduce == "max" else m.amin(0)
        first = torch.where(top.isnan(), m.isnan(), m == top).to(torch.uint8).argmax(0)
        torch.testing.assert_close(out[v].double(), m.gather(0, first[None])[0], rtol=0, atol=0, equal_nan=True)
        want[src[mine[first]], torch.arange(70)] += 1
    assert torch.equal(x.grad.float(), want)
