"""Every layer of ``dgl.nn`` in every precision on the CPU, forward and backward, against stock DGL in float64.

``python tests/dgl/test_every_layer.py`` writes the table of errors to docs/layers.md.
"""

import copy
from pathlib import Path

import ampgnn  # isort: skip  (before dgl: DGL 2.1 would not import beside a torch newer than its own)
import dgl
import dgl.nn as dglnn
import pytest
import torch
from torch import nn

N, E, IN, OUT = 24, 120, 6, 4
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# Stock DGL refuses these in float64: they make float32 edge weights. Their reference is the kernels in float64.
FLOAT32_WEIGHTS = ("APPNPConv", "TWIRLSConv", "TWIRLSUnfoldingAndAttention")


def make_graph():
    torch.manual_seed(0)
    return dgl.add_self_loop(dgl.graph((torch.randint(N, (E,)), torch.randint(N, (E,))), num_nodes=N))


@pytest.fixture(scope="module")
def graph():
    return make_graph()


def x(width=IN, rows=N):
    return torch.randn(rows, width)


def edges(g, *shape):
    return torch.rand(g.num_edges(), *shape)


def types(g, many=3):
    return torch.arange(g.num_edges()) % many


LAYERS = {
    "GraphConv": lambda g: (dglnn.GraphConv(IN, OUT), [x()]),
    "EdgeWeightNorm": lambda g: (dglnn.EdgeWeightNorm("both"), [edges(g) + 0.1]),
    "RelGraphConv": lambda g: (dglnn.RelGraphConv(IN, OUT, 3, "basis", 2), [x(), types(g)]),
    "GATConv": lambda g: (dglnn.GATConv(IN, OUT, 2, residual=True), [x()]),
    "GATv2Conv": lambda g: (dglnn.GATv2Conv(IN, OUT, 2), [x()]),
    "EGATConv": lambda g: (dglnn.EGATConv(IN, 5, OUT, 3, 2), [x(), edges(g, 5)]),
    "EdgeGATConv": lambda g: (dglnn.EdgeGATConv(IN, 5, OUT, 2), [x(), edges(g, 5)]),
    "TAGConv": lambda g: (dglnn.TAGConv(IN, OUT), [x()]),
    "SAGEConv-mean": lambda g: (dglnn.SAGEConv(IN, OUT, "mean"), [x()]),
    "SAGEConv-gcn": lambda g: (dglnn.SAGEConv(IN, OUT, "gcn"), [x()]),
    "SAGEConv-pool": lambda g: (dglnn.SAGEConv(IN, OUT, "pool"), [x()]),
    "SAGEConv-lstm": lambda g: (dglnn.SAGEConv(IN, OUT, "lstm"), [x()]),
    "SGConv": lambda g: (dglnn.SGConv(IN, OUT, k=2), [x()]),
    "APPNPConv": lambda g: (dglnn.APPNPConv(3, 0.5), [x()]),
    "GINConv-sum": lambda g: (dglnn.GINConv(nn.Linear(IN, OUT), "sum"), [x()]),
    "GINConv-mean": lambda g: (dglnn.GINConv(nn.Linear(IN, OUT), "mean"), [x()]),
    "GINConv-max": lambda g: (dglnn.GINConv(nn.Linear(IN, OUT), "max"), [x()]),
    "GINEConv": lambda g: (dglnn.GINEConv(nn.Linear(IN, OUT)), [x(), edges(g, IN)]),
    "GatedGraphConv": lambda g: (dglnn.GatedGraphConv(IN, IN, 2, 3), [x(), types(g)]),
    "GMMConv": lambda g: (dglnn.GMMConv(IN, OUT, 3, 2), [x(), edges(g, 3)]),
    "ChebConv": lambda g: (dglnn.ChebConv(IN, OUT, 2), [x()]),
    "AGNNConv": lambda g: (dglnn.AGNNConv(), [x()]),
    "NNConv": lambda g: (dglnn.NNConv(IN, OUT, nn.Linear(5, IN * OUT), "mean"), [x(), edges(g, 5)]),
    "AtomicConv": lambda g: (
        dglnn.AtomicConv(torch.tensor([2.0]), torch.tensor([1.0, 1.5]), torch.tensor([1.0, 0.5]), torch.tensor([0.0])),
        [torch.zeros(N, 1), edges(g, 1)],
    ),
    "CFConv": lambda g: (dglnn.CFConv(IN, 5, 7, OUT), [x(), edges(g, 5)]),
    "DotGatConv": lambda g: (dglnn.DotGatConv(IN, OUT, 2), [x()]),
    "TWIRLSConv": lambda g: (
        dglnn.TWIRLSConv(
            IN,
            OUT,
            8,
            prop_step=4,
            num_mlp_before=1,
            num_mlp_after=1,
            norm="none",
            dropout=0.0,
            inp_dropout=0.0,
            attn_dropout=0.0,
        ),
        [x()],
    ),
    "TWIRLSUnfoldingAndAttention": lambda g: (dglnn.TWIRLSUnfoldingAndAttention(IN, 0.5, 1, prop_step=4), [x()]),
    "GCN2Conv": lambda g: (dglnn.GCN2Conv(IN, layer=1), [x(), x()]),
    "HGTConv": lambda g: (dglnn.HGTConv(IN, 3, 2, 2, 3), [x(), torch.arange(N) % 2, types(g)]),
    "GroupRevRes": lambda g: (dglnn.GroupRevRes(dglnn.GraphConv(3, 3), 2), [x()]),
    "EGNNConv": lambda g: (dglnn.EGNNConv(IN, 5, OUT, 2), [x(), x(3), edges(g, 2)]),
    "PNAConv": lambda g: (
        dglnn.PNAConv(IN, OUT, ["mean", "max", "min", "sum", "std", "var"], ["identity", "amplification"], 2.5),
        [x()],
    ),
    "DGNConv": lambda g: (
        dglnn.DGNConv(IN, OUT, ["dir1-av", "dir1-dx", "sum"], ["identity", "amplification"], 2.5),
        [x(), None, torch.randn(N, 3)],
    ),
    "DenseGraphConv": lambda g: (dglnn.DenseGraphConv(IN, OUT), [x()]),
    "DenseSAGEConv": lambda g: (dglnn.DenseSAGEConv(IN, OUT), [x()]),
    "DenseChebConv": lambda g: (dglnn.DenseChebConv(IN, OUT, 2), [x(), 2.0]),
    "EdgeConv": lambda g: (dglnn.EdgeConv(IN, OUT), [x()]),
}
if hasattr(dglnn, "GatedGCNConv"):  # DGL 2.1; tanh, as a ReLU that rounding turns off has another gradient
    LAYERS["GatedGCNConv"] = lambda g: (dglnn.GatedGCNConv(IN, 5, OUT, activation=torch.tanh), [x(), edges(g, 5)])


def test_the_table_has_every_layer():
    from dgl.nn.pytorch import conv

    layers = {name for name in conv.__all__ if not name.startswith("CuGraph")}  # those need cuGraph and a GPU
    assert layers <= {name.split("-")[0] for name in LAYERS}


def run(layer, g, inputs, dtype):
    """The outputs, and the gradients of the parameters, of a sum of the outputs with fixed factors."""
    if type(layer).__name__.startswith("Dense"):
        g = g.adj_external().to_dense().to(dtype)
    floats = [torch.is_tensor(i) and i.is_floating_point() for i in inputs]
    inputs = [i.detach().to(dtype, copy=True).requires_grad_() if f else i for i, f in zip(inputs, floats, strict=True)]
    layer.zero_grad()
    outs = layer(g, *inputs)
    outs = outs if isinstance(outs, tuple) else (outs,)
    found = [o.detach().clone() for o in outs]
    torch.manual_seed(1)
    sum((o.double() * torch.rand(o.shape, dtype=torch.float64)).sum() for o in outs).backward()
    return found, [p.grad for p in layer.parameters() if p.grad is not None]


def reference(name, layer, g, inputs):
    layer = copy.deepcopy(layer).double()
    if name not in FLOAT32_WEIGHTS:
        return run(layer, g, inputs, torch.float64)
    with pytest.raises(dgl.DGLError, match="data type"):
        run(layer, g, inputs, torch.float64)
    with ampgnn.enabled():
        return run(layer, g, inputs, torch.float64)


# heading of the table, type, under autocast
KINDS = [
    ("float32", torch.float32, False),
    ("float16", torch.float16, False),
    ("bfloat16", torch.bfloat16, False),
    ("autocast to float16", torch.float16, True),
    ("autocast to bfloat16", torch.bfloat16, True),
]
DOCS = Path(__file__).parents[2] / "docs" / "layers.md"


def errors(name, graph):
    """{kind: (error of the outputs, of the gradients)}, the largest over the largest value, in roundings of the type."""
    torch.manual_seed(0)
    if name == "EGNNConv":  # it divides by the distance of an edge's ends plus 1e-30, which is 0 in fp16
        graph = dgl.remove_self_loop(graph)
    layer, inputs = LAYERS[name](graph)
    layer.eval()
    outs, grads = reference(name, layer, graph, inputs)
    largest = max((grad.abs().max() for grad in grads), default=0)
    found = {}
    for kind, dtype, amp in KINDS:
        own = torch.float32 if amp else dtype
        with ampgnn.enabled(), torch.amp.autocast("cpu", dtype=dtype if amp else torch.bfloat16, enabled=amp):
            ours, our_grads = run(copy.deepcopy(layer).to(own), graph, inputs, own)
        assert all(out.dtype in ((dtype, torch.float32) if amp else (dtype,)) for out in ours)
        assert all(grad.dtype == own for grad in our_grads)
        out = max(
            ((out.double() - want).abs().max() / want.abs().max()).item() for out, want in zip(ours, outs, strict=True)
        )
        grad = max(
            ((grad.double() - want).abs().max() / largest).item() for grad, want in zip(our_grads, grads, strict=True)
        ) if grads else None  # fmt: skip
        found[kind] = out / UNIT[dtype], grad if grad is None else grad / UNIT[dtype]
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_layer(graph, name):
    documented = read_table().get(name)
    for kind, (out, grad) in errors(name, graph).items():
        assert out <= 8 and (grad is None or grad <= 32)
        if documented is not None:  # else a layer of the other DGL alone
            # on another machine a rounding may turn another way, and with it the winner of a maximum
            assert out <= 2 * documented[kind][0] + 2 and (grad is None or grad <= 2 * documented[kind][1] + 14)


def test_the_docs_list_every_layer():
    assert {name for name in LAYERS if name != "GatedGCNConv"} <= set(read_table())


# ---- the table


def table():
    rows = [
        "# Every layer of dgl.nn, in every precision, on the CPU",
        "",
        "Written by `python tests/dgl/test_every_layer.py`; a test holds each layer to it. Errors of the outputs and of "
        "the parameters' gradients under `ampgnn.enable()`, against float64 from the same parameters and inputs "
        "(before rounding): the largest error over the largest value, in units of the type's rounding (2^-24, 2^-11 "
        "for float16, 2^-8 for bfloat16). A few units are what rounding inputs and parameters alone costs.",
        "",
        "| layer | " + " | ".join(kind for kind, *_ in KINDS) + " |",
        "| --- |" + " --- |" * len(KINDS),
    ]
    graph = make_graph()
    for name in LAYERS:
        cells = (f"{out:.1f}" + ("" if grad is None else f", {grad:.1f}") for out, grad in errors(name, graph).values())
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def read_table():
    """{layer: {kind: [error of the outputs, of the gradients]}}"""
    rows = [line.strip("| \n").split(" | ") for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    kinds, found = rows[0][1:], {}
    for name, *cells in rows[2:]:
        found[name] = {kind: [float(x) for x in cell.split(", ")] for kind, cell in zip(kinds, cells, strict=True)}
    return found


if __name__ == "__main__":
    DOCS.write_text(table())
