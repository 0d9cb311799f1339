"""``ampgnn plan``: the peak memory of a configuration, by tracing one epoch with tensors that have shapes alone.

What DGL would need is traced with its data flow: the same layers, with the tensors that its operators make and keep
on every edge.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import torch
from ampgnn_kernels import sddmm, spmm
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ampgnn import nn
from ampgnn.config import RunConfig
from ampgnn.errors import UserError
from ampgnn.graph import Compressed, Graph
from ampgnn.models import MODELS
from ampgnn.precision import DTYPES
from ampgnn.training import loop
from ampgnn.training.meters import TensorBytes, dgl_graph_bytes, tensors_of
from ampgnn.training.optimizer import Optimizer

SIZES = (8, 16, 24, 80)  # GiB
OVERHEAD = 2**29  # the interpreter and its libraries, or a CUDA context
TRACED = 1 << 14  # nodes


@dataclass(frozen=True)
class Shape:
    """A dataset's size. ``edges``: with both directions, without the self loop that training adds at each node."""

    nodes: int
    edges: int
    features: int
    classes: int
    train: int

    def with_nodes(self, nodes: int) -> Shape:
        """The same in proportion."""
        edges, train = (round(n * nodes / self.nodes) for n in (self.edges, self.train))
        return replace(self, nodes=nodes, edges=edges, train=train)

    @classmethod
    def of_record(cls, record: dict) -> Shape:
        """Of a record that ``ampgnn data`` wrote.

        Raises:
            UserError: the dataset could not be had.
        """
        if record["status"] != "ready":
            raise UserError(f"{record['key']} has no shape: {record['reason']}")
        sizes = (record[k] for k in ("nodes", "edges", "features", "classes"))
        return cls(*sizes, train=record["split"][0])


REDDIT = Shape(nodes=232_965, edges=114_615_892, features=602, classes=41, train=153_431)


@dataclass(frozen=True)
class Plan:
    """Bytes: the graph, the input features, the peak of all else (weights, optimizer, activations, gradients)."""

    graph: int
    features: int
    rest: int

    @property
    def total(self) -> int:
        return self.graph + self.features + self.rest

    def fits(self, gib: int) -> bool:
        """Whether it runs in that much memory, libraries included."""
        return self.total + OVERHEAD <= gib * 2**30


@cache
def plan(config: RunConfig, shape: Shape, id_bytes: int = 4) -> Plan:
    """Peak memory of full-graph training.

    A large dataset is traced at two small sizes and extrapolated: every tensor grows with the nodes, the edges or not
    at all.

    Args:
        id_bytes: of a node id in a DGLGraph; ours are 4.

    Raises:
        UserError: a configuration of mini-batches, whose sizes depend on what is sampled.
    """
    if config.batch_size is not None:
        raise UserError("the memory of mini-batches depends on what is sampled: it cannot be planned")
    if shape.nodes > 2 * TRACED:
        one, two = (_trace(config, shape.with_nodes(n)) for n in (TRACED, 2 * TRACED))
        rest = round(two + (two - one) * (shape.nodes - 2 * TRACED) / TRACED)
    else:
        rest = _trace(config, shape)
    with FakeTensorMode():
        data = _data(config, shape)
        graph, features = (sum(map(_bytes, tensors_of(held))) for held in (data.graph, data.features))
    if config.backend == "dgl":
        graph = dgl_graph_bytes(shape.nodes, data.graph.num_edges, id_bytes)
    return Plan(graph, features, rest)


def _trace(config: RunConfig, shape: Shape) -> int:
    """Peak bytes of two steps, less graph and features."""
    layers = nn if config.backend == "native" else _dgl_layers(config.device)
    config = config.model_copy(update={"device": "cpu"})  # where autocast needs no GPU
    with FakeTensorMode():
        data = _data(config, shape)
        with _made_as(DTYPES[config.precision] if config.mode == "pure" else torch.float32):
            model = MODELS[config.model](layers, shape.features, shape.classes, config)
        optimizer = Optimizer(model, "fp32", "cpu", config.lr, config.weight_decay)  # no scaling: it asks for values
        with TensorBytes(tensors_of(vars(data), model, optimizer.masters)) as count:
            for _ in range(loop.WATCHED):
                loop.training_step(config, data, model, optimizer)
        return count.peak - sum(map(_bytes, tensors_of(data.graph, data.features)))


def table(rows: list[tuple[str, Plan]]) -> list[list[str]]:
    """Header and cells: name, GiB of each part, and whether it fits into each of ``SIZES``."""
    header = ["configuration", "graph", "features", "rest", "total, GiB", *(f"{size} GB" for size in SIZES)]
    gib = [[f"{b / 2**30:.2f}" for b in (p.graph, p.features, p.rest, p.total)] for _, p in rows]
    return [
        header,
        *(
            [name, *parts, *("yes" if p.fits(s) else "no" for s in SIZES)]
            for (name, p), parts in zip(rows, gib, strict=True)
        ),
    ]


def variants(config: RunConfig, shape: Shape) -> list[tuple[str, Plan]]:
    """The configuration first, then the same with each other precision and backend."""
    found = {config.id: config}
    for backend in ("native", "dgl"):
        for precision in DTYPES:
            values = config.model_dump() | {"backend": backend, "precision": precision, "mode": config.mode or "amp"}
            twin = RunConfig(**values)
            found.setdefault(twin.id, twin)
    return [(id, plan(c, shape)) for id, c in found.items()]


def chapter(shape: Shape) -> list[tuple[str, Plan]]:
    """The user guide's GAT on a GPU, in fp32 and fp16, ours beside DGL."""
    rows = []
    for heads in ((1, 1, 1), (2, 2, 2), (8, 8, 8)):
        for backend in ("dgl", "native"):
            for precision in ("fp32", "fp16"):
                config = RunConfig(
                    dataset="", model="gat", heads=heads, precision=precision, backend=backend, device="cuda"
                )
                name = f"{backend}, heads {' '.join(map(str, heads))}, {precision}{' amp' if config.mode else ''}"
                rows.append((name, plan(config, shape, id_bytes=8)))
    return rows


@contextmanager
def _made_as(dtype: torch.dtype):
    """New weights have that type: a module of fake tensors cannot be converted."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _data(config: RunConfig, shape: Shape) -> SimpleNamespace:
    """What ``loop.prepare`` makes, without values."""
    nodes, edges = shape.nodes, shape.edges + shape.nodes

    def ids(count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32)

    by_dst = Compressed(ids(nodes + 1), ids(edges), None)
    graph = Graph(nodes, nodes, csc=by_dst, csr=Compressed(ids(nodes + 1), ids(edges), ids(edges)))
    graph._zero_in_degree = False
    return SimpleNamespace(
        graph=graph,
        features=torch.empty(nodes, shape.features, dtype=loop.feature_dtype(config)),
        labels=torch.empty(nodes, dtype=torch.int64),
        ids={"train": torch.empty(shape.train, dtype=torch.int64)},
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


# ---- DGL's data flow


def _dgl_layers(device: str) -> SimpleNamespace:
    gat = type("GATConv", (_GATConv,), {"cuda": device == "cuda"})
    return SimpleNamespace(GATConv=gat, GraphConv=_GraphConv)


class _EdgeSoftmax(torch.autograd.Function):
    """Keeps its result; on the CPU one kernel each way, on CUDA a tensor on the edges for each step."""

    @staticmethod
    def forward(ctx, graph, logits, cuda):
        score = torch.exp(sddmm(graph, "copy_lhs", logits, lhs_target="e")) if cuda else logits
        out = torch.empty_like(score)
        ctx.save_for_backward(out)
        ctx.graph, ctx.cuda = graph, cuda
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        product = out * grad
        return None, (product - torch.empty_like(out)) if ctx.cuda else torch.empty_like(product), None


class _GATConv(nn.GATConv):
    """``dgl.nn.GATConv.forward``."""

    cuda = False

    def forward(self, graph, feat):
        h = self.fc(feat).view(-1, self._num_heads, self._out_feats)
        el, er = ((h * a).sum(-1).unsqueeze(-1) for a in (self.attn_l, self.attn_r))
        if torch.is_autocast_enabled("cpu"):  # DGL's operators cast under autocast on CUDA
            el, er = (t.to(torch.get_autocast_dtype("cpu")) for t in (el, er))
        weights = _EdgeSoftmax.apply(graph, self.leaky_relu(sddmm(graph, "add", el, er)), self.cuda)
        out = spmm(graph, h, weights, op="mul") + self.bias.view(1, self._num_heads, self._out_feats)
        return self.activation(out) if self.activation else out


class _GraphConv(nn.GraphConv):
    """``dgl.nn.GraphConv.forward`` with the norm of both degrees."""

    def forward(self, graph, feat):
        norm = feat.new_empty(graph.num_src, 1)
        h = feat * norm
        if self._in_feats > self._out_feats:
            h = spmm(graph, h @ self.weight, op="copy_u")
        else:
            h = spmm(graph, h, op="copy_u") @ self.weight
        h = h * norm + self.bias
        return self._activation(h) if self._activation else h
