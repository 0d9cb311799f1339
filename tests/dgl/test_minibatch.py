"""Neighbour sampling with the kernels: blocks in every precision, with and without worker processes."""

import copy
import pickle

import dgl
import pytest
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler

import ampgnn


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = dgl.nn.SAGEConv(16, 16, "mean"), dgl.nn.GATConv(16, 3, 1)

    def forward(self, blocks, h):
        return self.second(blocks[1], F.relu(self.first(blocks[0], h))).mean(1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_neighbour_sampling(dtype, workers):
    torch.manual_seed(0)
    g = dgl.add_self_loop(dgl.rand_graph(300, 2000))
    x, model = torch.randn(300, 16), Net()
    half = copy.deepcopy(model).to(dtype)
    loader = DataLoader(g, torch.arange(300), NeighborSampler([4, 4]), batch_size=64, num_workers=workers)
    for inputs, _, blocks in loader:
        want = model(blocks, x[inputs])  # stock DGL
        with ampgnn.enabled():
            out = half(blocks, x[inputs].to(dtype))
        assert out.dtype == dtype and torch.allclose(out.float(), want, rtol=0.05, atol=0.05)
        out.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in half.parameters())


def test_a_graph_is_copied_without_its_view():
    g, x = dgl.rand_graph(30, 100), torch.randn(30, 2)
    with ampgnn.enabled():
        want = dgl.ops.copy_u_sum(g, x)
        for twin in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g)):
            assert torch.equal(dgl.ops.copy_u_sum(twin, x), want)
