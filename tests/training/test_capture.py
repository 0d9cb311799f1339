"""Captured passes on a stand-in for CUDA that replays by running the passes again into the recorded tensors."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from ampgnn import config
from ampgnn.training.capture import CapturedPasses
from ampgnn.training.optimizer import Optimizer


class Recorded:
    """What ``torch.cuda.CUDAGraph`` and ``torch.cuda.graph`` do to tensors, without a GPU."""

    def __init__(self):
        self.capturing = False
        self.passes = 0

    @contextmanager
    def capture(self):
        self.capturing = True
        yield
        self.capturing = False

    def replay(self):
        self.run_into_recorded()


@pytest.fixture
def cuda(monkeypatch):
    graph = Recorded()
    stream = type("Stream", (), {"wait_stream": lambda self, other: None})
    for name, value in {
        "Stream": stream,
        "current_stream": stream,
        "stream": lambda s: nullcontext(),
        "CUDAGraph": lambda: graph,
        "graph": lambda g: g.capture(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return graph


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_replayed_steps_train_as_eager_steps_do(cuda, precision):
    x, y = torch.randn(8, 4), torch.randn(8, 2)

    def setting():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        return model, Optimizer(model, precision, "cpu", lr=0.1, weight_decay=0.0)

    def passes(model, optimizer):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.backward(loss)
        return loss.detach()

    eager, its_optimizer = setting()
    model, optimizer = setting()
    captured = CapturedPasses(lambda: passes(model, optimizer), optimizer.weights)

    def run_into_recorded():
        for p in optimizer.weights:
            p.grad = None
        captured.loss.copy_(passes(model, optimizer))
        for p, recorded in zip(optimizer.weights, captured.gradients, strict=True):
            recorded.copy_(p.grad)
            p.grad = None

    cuda.run_into_recorded = run_into_recorded
    for _ in range(5):
        want = passes(eager, its_optimizer)
        its_optimizer.update()
        assert captured() == want
        optimizer.update()
    assert all(torch.equal(a, b) for a, b in zip(eager.parameters(), model.parameters(), strict=True))


def test_cuda_graph_is_for_the_gpu():
    with pytest.raises(config.ConfigError, match="cuda_graph: needs device cuda and backend native"):
        config.parse({"dataset": "digits", "model": "gat", "precision": "bf16", "cuda_graph": True})
    assert config.parse(
        {"dataset": "digits", "model": "gat", "precision": "bf16", "cuda_graph": True, "device": "cuda"}
    ).cuda_graph
