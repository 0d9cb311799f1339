"""GATv2Conv and DotGatConv where the device has fused attention: the same results as where it has not."""

import pytest
import torch
from ampgnn_kernels import Graph

from ampgnn import nn as layers
from ampgnn.nn import dotgat, gatv2


@pytest.mark.parametrize("name, module", [("GATv2Conv", gatv2), ("DotGatConv", dotgat)])
def test_layers_take_the_fused_operator_where_there_is_one(name, module, monkeypatch):
    torch.manual_seed(0)
    src, dst = torch.randint(20, (2, 200))
    graph, x = Graph.from_coo(src, dst, 20, 20), torch.randn(20, 6)
    layer = getattr(layers, name)(6, 4, 2, allow_zero_in_degree=True)
    composed = layer(graph, x)
    composed.sum().backward()
    wanted = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    operator = "gatv2_attention" if name == "GATv2Conv" else "dot_attention"
    called = []
    original = getattr(module, operator)
    monkeypatch.setattr(module, operator, lambda *args: called.append(operator) or original(*args))
    monkeypatch.setattr(module, "is_fused", lambda asked, device: asked == operator)
    fused = layer(graph, x)
    fused.sum().backward()
    assert called == [operator] and torch.allclose(fused, composed, atol=1e-6)
    assert all(torch.allclose(p.grad, w, atol=1e-5) for p, w in zip(layer.parameters(), wanted, strict=True))
    layer(graph, x, get_attention=True)
    assert called == [operator]  # weights that are asked for are made
