"""The user guide's chapter on mixed precision, on the CPU, in its own words; stock DGL fails most of it."""

import dgl
import dgl.function as fn
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from dgl.nn import GATConv, GraphConv
from torch.amp import GradScaler, autocast

import ampgnn

HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def kernels():
    with ampgnn.enabled():
        yield


@pytest.mark.parametrize("dtype", HALVES)
def test_message_passing(dtype):
    dev = torch.device("cpu")
    g = dgl.rand_graph(30, 100).to(dev)
    g.ndata["h"] = torch.rand(30, 16).to(dev).to(dtype)
    g.edata["w"] = torch.rand(100, 1).to(dev).to(dtype)
    # Use DGL's built-in functions for message passing
    g.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "x"))
    assert g.ndata["x"].dtype == dtype
    g.apply_edges(fn.u_dot_v("h", "x", "hx"))
    assert g.edata["hx"].dtype == dtype

    # Use UDFs for message passing
    def message(edges):
        return {"m": edges.src["h"] * edges.data["w"]}

    def reduce(nodes):
        return {"y": torch.sum(nodes.mailbox["m"], 1)}

    def dot(edges):
        return {"hy": (edges.src["h"] * edges.dst["y"]).sum(-1, keepdims=True)}

    g.update_all(message, reduce)
    assert g.ndata["y"].dtype == dtype
    g.apply_edges(dot)
    assert g.edata["hy"].dtype == dtype
    tolerance = 0.02 if dtype == torch.float16 else 0.1
    assert torch.allclose(g.ndata["x"].float(), g.ndata["y"].float(), rtol=tolerance, atol=tolerance)
    assert torch.allclose(g.edata["hx"].float(), g.edata["hy"].float(), rtol=tolerance, atol=1.0)


def forward(device_type, g, feat, label, mask, model, amp_dtype):
    amp_enabled = amp_dtype in (torch.float16, torch.bfloat16)
    with autocast(device_type, enabled=amp_enabled, dtype=amp_dtype):
        logit = model(g, feat)
        loss = F.cross_entropy(logit[mask], label[mask])
        return loss


def backward(scaler, loss, optimizer):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


class GAT(nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes, heads):
        super().__init__()
        self.layers = nn.ModuleList()
        self.layers.append(GATConv(in_feats, n_hidden, heads[0], activation=F.elu))
        self.layers.append(GATConv(n_hidden * heads[0], n_hidden, heads[1], activation=F.elu))
        self.layers.append(GATConv(n_hidden * heads[1], n_classes, heads[2], activation=F.elu))

    def forward(self, g, h):
        for l, layer in enumerate(self.layers):  # noqa: E741
            h = layer(g, h)
            h = h.flatten(1) if l != len(self.layers) - 1 else h.mean(1)
        return h


@pytest.fixture(scope="module")
def g(citeseer):
    g = citeseer.dgl_graph(add_self_loop=True)
    g.ndata["feat"], g.ndata["label"] = citeseer.features, citeseer.labels
    g.ndata["train_mask"] = citeseer.train_mask
    return g


@pytest.mark.parametrize("heads", [[1, 1, 1], [2, 2, 2]])
@pytest.mark.parametrize("amp_dtype", [torch.float32, *HALVES])
def test_gat(g, heads, amp_dtype):
    torch.manual_seed(0)
    train_mask, feat, label = g.ndata["train_mask"], g.ndata["feat"], g.ndata["label"]
    model = GAT(feat.shape[1], 16, 6, heads)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    scaler = GradScaler("cpu")
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = forward("cpu", g, feat, label, train_mask, model, amp_dtype)
        if amp_dtype == torch.float16:
            # Backprop w/ gradient scaling
            backward(scaler, loss, optimizer)
        else:
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert all(map(torch.isfinite, torch.tensor(losses))) and losses[-1] < 0.8 * losses[0]


class GCN(nn.Module):
    def __init__(self, in_size, hid_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList()
        # two-layer GCN
        self.layers.append(GraphConv(in_size, hid_size, activation=F.relu))
        self.layers.append(GraphConv(hid_size, out_size))
        self.dropout = nn.Dropout(0.5)

    def forward(self, g, features):
        h = features
        for i, layer in enumerate(self.layers):
            if i != 0:
                h = self.dropout(h)
            h = layer(g, h)
        return h


def test_bfloat16_gcn(g):
    torch.manual_seed(0)
    train_mask, feat, label = g.ndata["train_mask"], g.ndata["feat"], g.ndata["label"]
    model = GCN(feat.shape[1], 16, 6)
    # Convert model and graph to bfloat16
    g = dgl.to_bfloat16(g)
    feat = feat.to(dtype=torch.bfloat16)
    model = model.to(dtype=torch.bfloat16)
    model.train()
    # Create optimizer
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    loss_fcn = nn.CrossEntropyLoss()
    losses = []
    for _ in range(40):
        logits = model(g, feat)
        loss = loss_fcn(logits[train_mask], label[train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert logits.dtype == torch.bfloat16 and losses[-1] < 0.7 * losses[0]
