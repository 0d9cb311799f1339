"""Public reports of DGL, PyTorch Geometric and torch, each as a test of its whole kind on the kernels. Those that are
tested elsewhere: dgl#3448 in test_user_guide, dgl#4262 and #5960 in test_every_layer and the kernels' tests (each
instruction set), dgl#7822 in test_graphbolt, pytorch#55585 in tests/training, ipex#637 in tests/test_cli (doctor)."""

import copy

import dgl
import dgl.function as fn
import dgl.nn as dglnn
import pytest
import torch

import ampgnn

HALVES = [torch.float16, torch.bfloat16]
DTYPES = [torch.float32, *HALVES]
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.fixture(autouse=True)
def kernels():
    with ampgnn.enabled():
        yield


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("degree", [3000, 13_000, 60_000])
def test_dgl_4674_a_sum_over_a_hub_does_not_stop_growing(dtype, degree):
    g = dgl.graph((torch.arange(degree), torch.zeros(degree, dtype=torch.int64)), num_nodes=degree)
    torch.manual_seed(0)
    x, w = torch.rand(degree, 3).to(dtype), torch.rand(degree, 1).to(dtype)
    for out, terms in (
        (dgl.ops.copy_u_sum(g, x)[0], x.double()),
        (dgl.ops.u_mul_e_sum(g, x, w)[0], x.double() * w.double()),
        (dgl.ops.copy_e_mean(g, w)[0], w.double() / degree),
        (dgl.ops.segment_reduce(torch.tensor([degree]), x)[0], x.double()),
    ):
        want = terms.sum(0)
        assert ((out.double() - want).abs() <= (UNIT[dtype] + degree * 2.0**-24) * want).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_bases, kind", [(None, None), (2, "basis"), (2, "bdd")])
def test_dgl_3988_relational_layers_in_half(dtype, num_bases, kind):
    g = dgl.rand_graph(20, 90)
    layer = dglnn.RelGraphConv(6, 4, 3, kind, num_bases)
    x, types = torch.randn(20, 6), torch.randint(3, (90,))
    want = copy.deepcopy(layer).double()(g, x.double(), types)
    out = layer.to(dtype)(g, x.to(dtype), types)
    assert out.dtype == dtype and (out.double() - want).abs().max() <= 8 * UNIT[dtype] * want.abs().max()
    out.float().sum().backward()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["copy_u", "copy_e", "u_mul_e", "u_add_v"])
def test_dgl_761_and_2777_nodes_and_graphs_without_edges(dtype, op):
    for g in (dgl.graph(([0], [1]), num_nodes=3), dgl.graph(([], []), num_nodes=3)):
        g.ndata["x"], g.edata["x"] = (
            torch.full((n, 2), -3.0, dtype=dtype, requires_grad=True) for n in (3, g.num_edges())
        )
        for reduce in ("sum", "mean", "max", "min"):
            message = getattr(fn, op)("x", *[] if op.startswith("copy") else ["x"], "m")
            g.update_all(message, getattr(fn, reduce)("m", "y"))
            lonely = g.in_degrees() == 0
            assert not g.ndata["y"][lonely].any()
            grads = torch.autograd.grad(g.ndata["y"].sum(), [g.ndata["x"], g.edata["x"]], allow_unused=True)
            assert all(grad is None or grad.isfinite().all() for grad in grads)
            assert grads[0] is None or not grads[0][2].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [dglnn.GATConv, dglnn.GATv2Conv, dglnn.DotGatConv])
def test_dgl_1598_and_2076_attention_without_edges(layer, dtype):
    g = dgl.graph(([], []), num_nodes=4)
    made = layer(5, 3, 2, allow_zero_in_degree=True).to(dtype)
    x = torch.randn(4, 5, dtype=dtype, requires_grad=True)
    out = made(g, x)
    assert out.shape == (4, 2, 3) and not out.any()  # biases start at 0
    out.sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("aggregator", ["mean", "gcn", "pool"])
def test_dgl_7887_sampled_blocks_of_32_and_64_bit_ids_agree(dtype, aggregator):
    torch.manual_seed(0)
    g = dgl.add_self_loop(dgl.rand_graph(60, 400))
    layer, some, x = dglnn.SAGEConv(5, 3, aggregator).to(dtype), torch.arange(12), torch.randn(60, 5).to(dtype)
    results = []
    for graph in (g.long(), g.int()):
        block = dgl.to_block(dgl.in_subgraph(graph, some.to(graph.idtype)), some.to(graph.idtype))
        layer.zero_grad()
        out = layer(block, x[block.srcdata[dgl.NID].long()])
        out.float().square().sum().backward()
        results.append([out, *(p.grad for p in layer.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_dgl_7850_more_edges_than_32_bits_count():
    """Refused in a line, before anything is allocated."""
    from ampgnn_kernels import Graph

    huge = torch.zeros(1, dtype=torch.int32).expand(2**31)
    with pytest.raises(ValueError, match="2147483648 edges are more than int32 ids can count: use int64"):
        Graph.from_coo(huge, huge, 1, 1)


@pytest.mark.parametrize("wide, narrow", [(torch.float64, torch.float32), (torch.float32, torch.float16)])
def test_dgl_4630_and_1312_mixed_types_are_promoted(wide, narrow):
    g = dgl.rand_graph(8, 20)
    x, w = torch.rand(8, 3, dtype=narrow, requires_grad=True), torch.rand(20, 1, dtype=wide, requires_grad=True)
    for out in (dgl.ops.u_mul_e_sum(g, x, w), dgl.ops.u_mul_v(g, x, w[:8]), dgl.ops.u_add_e_max(g, x, w)):
        assert out.dtype == wide
        for leaf, grad in zip((x, w), torch.autograd.grad(out.sum(), (x, w)), strict=True):
            assert grad.dtype == leaf.dtype
    assert dgl.ops.u_mul_e_sum(g, x.bfloat16(), w.half()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.complex64])
def test_dgl_4039_values_that_are_no_floats_are_named(dtype):
    g = dgl.rand_graph(8, 20)
    with pytest.raises(dgl.DGLError, match=f"must be float64, float32, float16 or bfloat16, got {dtype}"):
        dgl.ops.copy_e_sum(g, torch.ones(20, 1).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pyg_527_attention_on_a_dense_graph_holds_no_message(dtype):
    """90 000 edges of 2 x 64 numbers would be 23 MB in half; what is alive after a forward pass is a few rows' worth."""
    g = dgl.graph((torch.arange(90_000) // 300, torch.arange(90_000) % 300))
    layer, x = dglnn.GATConv(64, 64, 2).to(dtype), torch.randn(300, 64).to(dtype)
    layer(g, x)  # the graph's view

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            out = function(*arguments, **(options or {}))
            for t in out if isinstance(out, tuple) else [out]:
                if torch.is_tensor(t) and t.is_floating_point():
                    Largest.elements = max(Largest.elements, t.numel())
            return out

    with Largest():
        layer(g, x).float().sum().backward()
    assert 0 < Largest.elements < 90_000  # not one number an edge


@pytest.mark.parametrize("dtype", HALVES)
def test_scatter_97_and_238_types_under_autocast(dtype):
    g = dgl.rand_graph(8, 20)
    x, w = torch.rand(8, 3), torch.rand(20, 1)
    with torch.amp.autocast("cpu", dtype=dtype):
        assert dgl.ops.copy_u_sum(g, x).dtype == dtype
        assert dgl.ops.edge_softmax(g, w).dtype == dtype  # as DGL casts on CUDA; its sums are wider
        assert dgl.ops.u_dot_v(g, x, x).dtype == dtype
        assert dgl.ops.segment_reduce(torch.tensor([3, 5]), x).dtype == dtype
        assert dgl.ops.copy_u_sum(g, x.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", HALVES)
def test_pyg_2866_half_features_meet_float32_parameters(dtype):
    """Under autocast in its type, and without it in float32: torch's promotion."""
    g = dgl.add_self_loop(dgl.rand_graph(8, 20))
    x, types = torch.randn(8, 4).to(dtype), torch.randint(3, (g.num_edges(),))
    layers = {
        dglnn.GATConv(4, 3, 2, residual=True): (),
        dglnn.GATv2Conv(4, 3, 2, residual=True): (),
        dglnn.DotGatConv(4, 3, 2): (),
        dglnn.GraphConv(4, 3): (),
        dglnn.GraphConv(4, 5): (),
        **{dglnn.SAGEConv(4, 3, kind): () for kind in ("mean", "gcn", "pool", "lstm")},
        dglnn.GraphConv(4, 4, weight=False): (),
        dglnn.RelGraphConv(4, 3, 3, "basis", 2): (types,),
        dglnn.GINConv(torch.nn.Linear(4, 3), "mean"): (),
        dglnn.GINConv(None, "max", learn_eps=True): (),
    }
    for layer, more in layers.items():
        want = layer(g, x.float(), *more)
        for out, want_dtype in (
            (layer(g, x, *more), torch.float32),
            (under_autocast(dtype, layer, g, x, *more), dtype),
        ):
            assert out.dtype == want_dtype
            assert torch.allclose(out.float(), want, rtol=16 * UNIT[dtype], atol=16 * UNIT[dtype])
            layer.zero_grad()
            out.float().sum().backward()
            assert all(p.grad.dtype == torch.float32 for p in layer.parameters() if p.grad is not None)


def under_autocast(dtype, layer, *inputs):
    with torch.amp.autocast("cpu", dtype=dtype):
        return layer(*inputs)


@pytest.mark.parametrize("dtype", HALVES)
def test_pyg_lib_271_products_of_segments_under_autocast(dtype):
    a, b = torch.randn(7, 4), torch.randn(2, 4, 3)
    want = dgl.ops.segment_mm(a, b, torch.tensor([3, 4]))
    for left, right in ((a, b), (a.to(dtype), b), (a, b.to(dtype))):
        with torch.amp.autocast("cpu", dtype=dtype):
            out = dgl.ops.segment_mm(left, right, torch.tensor([3, 4]))
        assert out.dtype == dtype and torch.allclose(out.float(), want, rtol=0.05, atol=0.05)
    assert dgl.ops.segment_mm(a.to(dtype), b, torch.tensor([3, 4])).dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_pytorch_73145_sparse_times_dense_in_half(dtype):
    g = dgl.rand_graph(30, 200)
    x, w = torch.randn(30, 5).to(dtype), torch.rand(200).to(dtype)
    src, dst = g.edges()
    dense = torch.zeros(30, 30, dtype=torch.float64).index_put((dst, src), w.double(), accumulate=True)
    want = dense @ x.double()
    assert torch.allclose(dgl.ops.u_mul_e_sum(g, x, w.unsqueeze(-1)).double(), want, rtol=4 * UNIT[dtype], atol=1e-3)
