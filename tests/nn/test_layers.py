"""The layers against their twins in DGL: parameters, state dict, results, gradients."""

import dgl
import pytest
import torch
import torch.nn.functional as F
from ampgnn_kernels import Graph

import ampgnn
from ampgnn import nn
from ampgnn.dgl import to_graph
from ampgnn.nn import rgcn

GAT = [
    {},
    {"residual": True},
    {"residual": True, "bias": False},
    {"bias": False, "negative_slope": 0.4, "activation": F.elu},
    {"attn_drop": 0.3},
]
GCN = [{"norm": n} for n in ("both", "right", "left", "none")] + [{"bias": False, "activation": F.relu}]


def graph(nodes=50, edges=400):
    torch.manual_seed(1)
    return dgl.add_self_loop(dgl.graph((torch.randint(nodes, (edges,)), torch.randint(nodes, (edges,)))).int())


def with_zero_degrees(nodes=50, edges=100):
    torch.manual_seed(2)
    return dgl.graph((torch.randint(nodes, (edges,)), torch.randint(nodes - 9, (edges,))), num_nodes=nodes).int()


def between():
    torch.manual_seed(4)
    edges = torch.randint(9, (40,)), torch.arange(40) % 6
    return dgl.heterograph({("a", "to", "b"): edges}, num_nodes_dict={"a": 9, "b": 6})


def twins(ours, theirs, arguments, options):
    torch.manual_seed(3)
    a = ours(*arguments, **options)
    torch.manual_seed(3)
    b = theirs(*arguments, **options)
    assert list(a.state_dict()) == list(b.state_dict())
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    a.load_state_dict(b.state_dict())
    b.load_state_dict(a.state_dict())
    return a.eval(), b.eval()


def compare(a, b, g, inputs, **extra):
    view = to_graph(g)
    outs = []
    for layer, where in ((a, view), (a, g), (b, g)):
        layer.zero_grad()
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = layer(where, leaves[0] if len(leaves) == 1 else tuple(leaves), **extra)
        out.square().sum().backward()
        outs.append([out, *(x.grad for x in leaves), *(p.grad for p in layer.parameters())])
    for one, two, theirs in zip(*outs, strict=True):
        assert torch.equal(one, two)
        assert (one - theirs).abs().max() <= 5e-5 * theirs.abs().max()  # an element may be what cancellation leaves


@pytest.mark.parametrize("options", GAT)
@pytest.mark.parametrize("heads", [1, 3])
def test_gat(options, heads):
    a, b = twins(nn.GATConv, dgl.nn.GATConv, (12, 8, heads), options)
    compare(a, b, graph(), [torch.randn(50, 12)])
    a, b = twins(nn.GATConv, dgl.nn.GATConv, (8 * heads, 8, heads), options)
    compare(a, b, graph(), [torch.randn(50, 8 * heads)])


def test_gat_extras():
    g = graph()
    a, b = twins(nn.GATConv, dgl.nn.GATConv, (12, 8, 2), {})
    x, w = torch.randn(50, 12), torch.rand(g.num_edges())
    for out, want in zip(a(g, x, get_attention=True), b(g, x, get_attention=True), strict=True):
        assert out.shape == want.shape and torch.allclose(out, want, atol=1e-5)
    assert torch.allclose(a(g, x, edge_weight=w), b(g, x, edge_weight=w), atol=1e-5)
    a.train()
    a.attn_drop.p = 0.5
    assert not torch.equal(a(g, x), a(g, x))
    deep = torch.randn(50, 3, 12)
    a.eval()
    assert torch.allclose(a(g, deep), torch.stack([a(g, deep[:, i]) for i in range(3)], 1), atol=1e-5)


@pytest.mark.parametrize("options", GCN)
@pytest.mark.parametrize("widths", [(12, 5), (5, 12)])
def test_gcn(options, widths):
    a, b = twins(nn.GraphConv, dgl.nn.GraphConv, widths, options)
    g = graph()
    compare(a, b, g, [torch.randn(50, widths[0])])
    compare(a, b, g, [torch.randn(50, widths[0])], edge_weight=torch.rand(g.num_edges()))


SAGE = [{"aggregator_type": kind} for kind in ("mean", "gcn", "pool", "lstm")]
SAGE += [
    {"aggregator_type": "gcn", "bias": False, "activation": F.relu},
    {"aggregator_type": "mean", "bias": False, "norm": torch.tanh},
]


@pytest.mark.parametrize("options", SAGE)
@pytest.mark.parametrize("widths", [(12, 5), (5, 12)])
def test_sage(options, widths):
    g = with_zero_degrees()
    a, b = twins(nn.SAGEConv, dgl.nn.SAGEConv, widths, options)
    compare(a, b, g, [torch.randn(50, widths[0])])
    compare(a, b, g, [torch.randn(50, widths[0])], edge_weight=torch.rand(g.num_edges()))
    a, b = twins(nn.SAGEConv, dgl.nn.SAGEConv, ((4, 4), widths[1]), options)
    compare(a, b, between(), [torch.randn(9, 4), torch.randn(6, 4)])


@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"init_eps": 0.5, "learn_eps": True, "activation": F.relu}])
def test_gin(kind, options):
    g = with_zero_degrees()
    a, b = twins(nn.GINConv, dgl.nn.GINConv, (torch.nn.Linear(12, 5), kind), options)
    compare(a, b, g, [torch.randn(50, 12)])
    compare(a, b, g, [torch.randn(50, 12)], edge_weight=torch.rand(g.num_edges(), 1))
    a, b = twins(nn.GINConv, dgl.nn.GINConv, (None, kind), options)
    compare(a, b, between(), [torch.randn(9, 4), torch.randn(6, 4)])
    with pytest.raises(KeyError, match="must be one of sum, max, mean, got 'min'"):
        nn.GINConv(None, "min")


GATV2 = [{}, {"residual": True}, {"residual": True, "bias": False}, {"share_weights": True, "negative_slope": 0.4}]


@pytest.mark.parametrize("options", [*GATV2, {"activation": F.elu, "attn_drop": 0.3}])
@pytest.mark.parametrize("heads", [1, 3])
def test_gatv2(options, heads):
    a, b = twins(nn.GATv2Conv, dgl.nn.GATv2Conv, (12, 8, heads), options)
    compare(a, b, graph(), [torch.randn(50, 12)])
    a, b = twins(nn.GATv2Conv, dgl.nn.GATv2Conv, (8 * heads, 8, heads), options)
    compare(a, b, graph(), [torch.randn(50, 8 * heads)])


@pytest.mark.parametrize("ours, theirs", [(nn.GATv2Conv, dgl.nn.GATv2Conv), (nn.DotGatConv, dgl.nn.DotGatConv)])
def test_attention_of_pairs_and_its_weights(ours, theirs):
    a, b = twins(ours, theirs, ((4, 3), 5, 2), {"allow_zero_in_degree": True})
    compare(a, b, between(), [torch.randn(9, 4), torch.randn(6, 3)])
    a, b = twins(ours, theirs, (12, 8, 2), {})
    compare(a, b, graph(), [torch.randn(50, 12)])
    g, x = graph(), torch.randn(50, 12)
    for out, want in zip(a(g, x, get_attention=True), b(g, x, get_attention=True), strict=True):
        assert out.shape == want.shape and torch.allclose(out, want, atol=1e-5)


ATTENTION = [nn.GATConv, nn.GATv2Conv, nn.DotGatConv]


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_keeps_nothing_for_each_edge(kind):
    """Unless the weights are asked for, which then are those of the same sum."""
    g, x, layer = to_graph(graph()), torch.randn(50, 12), kind(12, 8, 2)
    rows = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: rows.append(t) or t, lambda t: t):
        out = layer(g, x)
    floats = [len(t) for t in rows if t.is_floating_point() and t.dim()]
    assert floats and max(floats) < g.num_edges
    same, weights = layer(g, x, get_attention=True)
    assert torch.allclose(out, same, atol=1e-5) and weights.shape == (g.num_edges, 2, 1)


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_on_a_graph_without_nodes(kind):
    none = torch.zeros(0, dtype=torch.int64)
    options = {} if kind is nn.DotGatConv else {"residual": True}
    assert kind(12, 8, 2, **options)(Graph.from_coo(none, none, 0, 0), torch.zeros(0, 12)).shape == (0, 2, 8)


@pytest.mark.parametrize("norm", ["none", "both", "right"])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_edge_weight_norm(norm, eps):
    a, b = nn.EdgeWeightNorm(norm, eps), dgl.nn.EdgeWeightNorm(norm, eps)
    for g in (graph(), between()):
        results = []
        for layer, where in ((a, to_graph(g)), (a, g), (b, g)):
            w = (torch.arange(g.num_edges()) % 7 + 0.5).requires_grad_()
            out = layer(where, w)
            results.append([out, *torch.autograd.grad(out.square().sum(), w)])
        for one, two, theirs in zip(*results, strict=True):
            assert torch.equal(one, two) and torch.allclose(one, theirs, rtol=1e-4)
    g = dgl.rand_graph(4, 9)
    for bad, message in ((torch.ones(9, 2), "scalar edge weights"), (torch.zeros(9), "non-positive")):
        if bad.dim() == 2 or norm == "both":
            for where, error in ((g, dgl.DGLError), (to_graph(g), ValueError)):
                with pytest.raises(error, match=message):
                    a(where, bad)


RELATIONAL = [{}, {"regularizer": "basis", "num_bases": 2}, {"regularizer": "bdd", "num_bases": 2}]
RELATIONAL += [{"regularizer": "basis", "layer_norm": True}, {"bias": False, "self_loop": False, "activation": F.relu}]


@pytest.mark.parametrize("options", RELATIONAL)
def test_rel_graph(options):
    g = graph()
    types = torch.arange(g.num_edges()) * 7 % 4  # of five one is without an edge
    a, b = twins(nn.RelGraphConv, dgl.nn.RelGraphConv, (12, 8, 5), options)
    x = [torch.randn(50, 12)]
    compare(a, b, g, x, etypes=types)
    compare(a, b, g, x, etypes=types, norm=torch.rand(g.num_edges(), 1))
    compare(a, b, g, x, etypes=types.sort().values, presorted=True)
    block = dgl.to_block(dgl.in_subgraph(g, [0, 1, 2]), [0, 1, 2])
    compare(a, b, block, [torch.randn(block.num_src_nodes(), 12)], etypes=types[: block.num_edges()])
    rows = torch.randn(len(types), 12)
    assert torch.allclose(a.linear_r(rows, types), b.linear_r(rows, types), atol=1e-5)
    with pytest.raises(dgl.DGLError, match="50 source nodes and"):
        a(g, x[0], types[:3])


def test_a_projection_is_made_once_a_node_and_type(monkeypatch):
    """No message is held: a hundred times the edges between the same nodes, and as many rows to multiply."""
    layer, x, rows = nn.RelGraphConv(4, 4, 3, self_loop=False), torch.randn(10, 4), []
    original = rgcn.segment_linear
    monkeypatch.setattr(rgcn, "segment_linear", lambda x, *rest: rows.append(len(x)) or original(x, *rest))
    for edges in (300, 30_000):
        g = Graph.from_coo(torch.arange(edges) % 10, torch.arange(edges) // 10 % 10)
        layer(g, x, torch.arange(edges) % 3)
    assert rows == [30, 30]


def test_subclasses_with_another_message_keep_it():
    class Doubled(dgl.nn.RelGraphConv):
        def message(self, edges):
            return {"m": 2 * super().message(edges)["m"]}

    g, x, types = graph(), torch.randn(50, 12), torch.zeros(graph().num_edges(), dtype=torch.int64)
    layer = Doubled(12, 8, 2)
    want = layer(g, x, types)
    with ampgnn.enabled():
        assert torch.allclose(layer(g, x, types), want, atol=1e-5)


@pytest.mark.parametrize("layer", ["SAGEConv mean", "SAGEConv gcn", "GINConv", "EdgeWeightNorm"])
def test_means_of_a_hub_do_not_overflow_in_fp16(layer):
    g = Graph.from_coo(torch.arange(70_000), torch.zeros(70_000, dtype=torch.int64), 70_000, 70_000)
    x = torch.full((70_000, 1), 30_000.0, dtype=torch.float16)
    if layer == "EdgeWeightNorm":
        out = nn.EdgeWeightNorm("right")(g, torch.full((70_000,), 100.0, dtype=torch.float16))
        assert abs(out[0].item() - 1 / 70_000) <= 2.0**-25
        return
    name, *kind = layer.split()
    made = nn.GINConv(None, "mean") if name == "GINConv" else nn.SAGEConv(1, 1, *kind, bias=False)
    for parameter in made.parameters():
        parameter.data.fill_(1.0)
    out = made.half()(g, x)
    assert out[0].item() == (30_000 if kind == ["gcn"] else 60_000)


def test_dot_products_beyond_fp16_are_ordinary_logits():
    layer = nn.DotGatConv(2, 2, 1).half()
    layer.fc.weight.data = torch.eye(2).half()
    g = Graph.from_coo(torch.tensor([0, 1]), torch.tensor([0, 0]), 2, 2)
    layer._allow_zero_in_degree = True
    out = layer(g, torch.tensor([[600.0, 0], [600, 1]]).half())  # dot products of 360 000
    assert torch.equal(out[0, 0], torch.tensor([600, 0.5]).half())


def compiled_layers():
    x, types = torch.randn(50, 12), torch.arange(graph().num_edges()) % 3
    layers = [nn.GATConv(12, 8, 2, residual=True), nn.GATConv(12, 8, 2, attn_drop=0.5), nn.GraphConv(12, 5)]
    layers += [nn.SAGEConv(12, 5, kind) for kind in ("mean", "gcn", "pool")] + [
        nn.GINConv(torch.nn.Linear(12, 5), "max")
    ]
    layers += [nn.GATv2Conv(12, 8, 2), nn.DotGatConv(12, 8, 2)]
    yield from ((layer.eval(), [x]) for layer in layers)
    for options in RELATIONAL[:3]:
        yield nn.RelGraphConv(12, 8, 3, **options), [x, types]
    yield nn.EdgeWeightNorm(), [torch.rand(graph().num_edges()) + 0.1]


def compare_compiled(layer, inputs, dtype, **options):
    torch._dynamo.reset()
    results = []
    for function in (layer, torch.compile(layer, fullgraph=True, **options)):
        layer.zero_grad()
        with torch.amp.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            out = function(to_graph(graph()), *inputs)  # a new graph, whose edges are not grouped by source yet
        if out.requires_grad:
            out.float().square().sum().backward()
        results.append([out, *(p.grad for p in layer.parameters())])
    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize("index", range(13))
def test_layers_compile_into_one_graph(index):
    layer, inputs = list(compiled_layers())[index]
    compare_compiled(layer, inputs, torch.float32, backend="aot_eager")


def test_layers_compile_to_code():
    """With torch's own compiler, for which it needs g++."""
    (layer, inputs), *_ = compiled_layers()
    for dtype in (torch.float32, torch.bfloat16):
        compare_compiled(layer, inputs, dtype)


def test_compiled_layers_refuse_what_they_refuse():
    torch._dynamo.reset()
    lonely = Graph.from_coo(torch.tensor([0]), torch.tensor([1]), 2, 2)
    with pytest.raises(RuntimeError, match="0-in-degree"):
        torch.compile(nn.GraphConv(3, 4), fullgraph=True, backend="aot_eager")(lonely, torch.randn(2, 3))
    with pytest.raises(RuntimeError, match="non-positive edge weight"):
        torch.compile(nn.EdgeWeightNorm(), fullgraph=True, backend="aot_eager")(lonely, torch.zeros(1))


def test_bipartite_and_blocks():
    g, pair = between(), [torch.randn(9, 4), torch.randn(6, 3)]
    compare(*twins(nn.GATConv, dgl.nn.GATConv, ((4, 3), 5, 2), {}), g, pair)
    some = torch.arange(10, dtype=torch.int32)
    block = dgl.to_block(dgl.in_subgraph(graph(), some), some)
    x = [torch.randn(block.num_src_nodes(), 4)]
    compare(*twins(nn.GATConv, dgl.nn.GATConv, (4, 5, 2), {"residual": True}), block, x)
    compare(*twins(nn.GraphConv, dgl.nn.GraphConv, (4, 5), {}), block, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_pure_half_give_half(dtype):
    g, x = to_graph(graph()), torch.randn(50, 12)
    for layer in (nn.GATConv(12, 8, 2), nn.GraphConv(12, 8), nn.GraphConv(12, 20)):
        want = layer(g, x)
        with torch.amp.autocast("cpu", dtype=dtype):
            out = layer(g, x)
        assert out.dtype == dtype and torch.allclose(out.float(), want, rtol=0.05, atol=0.05)
        out.float().sum().backward()
        assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
        out = layer.to(dtype)(g, x.to(dtype))
        assert out.dtype == dtype and torch.allclose(out.float(), want, rtol=0.05, atol=0.05)


def test_nodes_without_in_edges():
    lonely = Graph.from_coo(torch.tensor([0]), torch.tensor([1]), 2, 2)
    for layer in (nn.GATConv(3, 4, 1), nn.GraphConv(3, 4)):
        with pytest.raises(ValueError, match="0-in-degree"):
            layer(lonely, torch.randn(2, 3))
        with pytest.raises(dgl.DGLError, match="0-in-degree"):
            layer(dgl.graph(([0], [1])), torch.randn(2, 3))
        layer.set_allow_zero_in_degree(True)
        assert not layer(lonely, torch.randn(2, 3))[0].any()
    with pytest.raises(ValueError, match="norm must be one of none, both"):
        nn.GraphConv(3, 4, norm="all")
    with pytest.raises(ValueError, match="external weight"):
        nn.GraphConv(3, 4, allow_zero_in_degree=True)(lonely, torch.randn(2, 3), weight=torch.randn(3, 4))


def test_a_layer_that_was_changed_keeps_its_changes():
    """Hooks, pruning and other modules in the place of the layer's own."""
    g, x = graph(), torch.randn(50, 12)
    for changed in (nn.GATConv(12, 8, 2), dgl.nn.GATConv(12, 8, 2)):
        with ampgnn.enabled():
            plain = changed(g, x)
            hook = changed.fc.register_forward_hook(lambda module, inputs, out: 2 * out)
            doubled = changed(g, x)
            hook.remove()
            assert not torch.allclose(plain, doubled) and torch.equal(plain, changed(g, x))
            changed.leaky_relu = torch.nn.ELU()
            assert not torch.allclose(plain, changed(g, x))


def test_subclasses_of_dgl_keep_their_forward():
    class Loud(dgl.nn.GraphConv):
        def forward(self, graph, feat):
            return super().forward(graph, feat) + 1

    g, x, layer = graph(), torch.randn(50, 12), Loud(12, 5)
    want = layer(g, x)
    with ampgnn.enabled():
        assert torch.allclose(layer(g, x), want, atol=1e-5)


def test_features_that_do_not_fit():
    g = dgl.heterograph({("a", "to", "b"): ([0, 1, 2], [0, 1, 0])}, num_nodes_dict={"a": 3, "b": 2})
    with pytest.raises(dgl.DGLError, match="3 source and 2 destination nodes, the features 3 and 3 rows"):
        nn.GATConv(4, 2, 1)(g, torch.randn(3, 4))


@pytest.mark.parametrize("norm", ["both", "right"])
def test_degree_norms_of_a_hub_do_not_overflow_in_fp16(norm):
    g = Graph.from_coo(torch.arange(70_000), torch.zeros(70_000, dtype=torch.int64), 70_000, 1)
    layer = nn.GraphConv(1, 1, norm=norm, weight=False, bias=False)
    out = layer(g, torch.full((70_000, 1), 60.0, dtype=torch.float16))
    want = 60 * 70_000 / (70_000**0.5 if norm == "both" else 70_000)  # 70 000 itself is no fp16 number
    assert abs(out.item() - want) <= 2.0**-11 * want
