"""One loop for every model, precision, backend and device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampgnn import precision
from ampgnn.config import RunConfig
from ampgnn.datasets import NodeDataset
from ampgnn.models import MODELS

from .checkpoint import State
from .meters import PeakMemory, dgl_graph_bytes, tensors_of
from .optimizer import Optimizer

WATCHED = 2  # epochs in which tensors are counted


class NonFiniteLoss(Exception):
    """The loss became NaN or infinite."""


def prepare(config: RunConfig, dataset: NodeDataset) -> SimpleNamespace:
    """Graph, features, labels and masks on the device, in the types of the configuration; the seeds share them."""
    device = torch.device(config.device)
    graph = (dataset.graph() if config.backend == "native" else dataset.dgl_graph()).to(device)
    features = dataset.features.to(device, feature_dtype(config))
    labels = dataset.labels.to(device)
    ids = {s: getattr(dataset, f"{s}_mask").to(device).nonzero().flatten() for s in ("train", "val", "test")}
    beside = 0 if config.backend == "native" else dgl_graph_bytes(graph.num_nodes(), graph.num_edges())
    return SimpleNamespace(
        graph=graph, features=features, labels=labels, ids=ids, num_classes=dataset.num_classes, beside=beside
    )


def feature_dtype(config: RunConfig) -> torch.dtype:
    """Half where the first thing done to the features is to round them: they are kept so, with the same results."""
    rounded = config.mode == "pure" or config.backend == "native"
    return precision.DTYPES[config.precision] if rounded else torch.float32


def make_model(config: RunConfig, in_feats: int, num_classes: int) -> nn.Module:
    """The model with weights that depend on torch's seed alone, not on the backend."""
    if config.backend == "native":
        from ampgnn import nn as layers
    else:
        from ampgnn.dgl import stock_layers

        layers = stock_layers()
    model = MODELS[config.model](layers, in_feats, num_classes, config).to(config.device)
    return model.to(precision.DTYPES[config.precision]) if config.mode == "pure" else model


def start(config: RunConfig, data: SimpleNamespace, seed: int) -> State:
    """A seed's state before its first epoch; seeds torch's random generators."""
    torch.manual_seed(seed)
    model = make_model(config, data.features.shape[1], data.num_classes)
    return State(model, Optimizer(model, config.precision, config.device, config.lr, config.weight_decay))


def train(config: RunConfig, data: SimpleNamespace, state: State) -> Iterator[dict]:
    """Trains the epochs that ``state`` lacks and yields each one's metrics; ``state`` is then that epoch's.

    The metrics: ``train/loss``, ``train/acc``, ``val/acc``, ``test/acc`` (of the epoch's weights, dropout off),
    ``epoch_seconds`` (the training step alone), ``loss_scale``, ``skipped_steps`` (so far), and what
    ``PeakMemory.read`` gives; tensors are counted in the first two epochs, in which all that is ever held is made.

    Raises:
        NonFiniteLoss: the loss is NaN or infinite.
    """
    model, optimizer = state.model, state.optimizer
    memory = PeakMemory(config.device, tensors_of(vars(data), model, optimizer.masters), data.beside)
    wait = torch.cuda.synchronize if config.device == "cuda" else (lambda: None)
    first = state.epoch
    for epoch in range(first, config.epochs):
        with memory.watch() if epoch < first + WATCHED else nullcontext():
            seconds, loss = _timed(lambda: _step(config, data, model, optimizer), wait)
            if not math.isfinite(loss):
                raise NonFiniteLoss(f"the loss is {loss} in epoch {epoch}")
            accuracy = evaluate(config, data, model)
        state.epoch = epoch + 1
        yield {
            "step": epoch,
            "train/loss": loss,
            **{f"{split}/acc": value for split, value in accuracy.items()},
            "epoch_seconds": seconds,
            "loss_scale": optimizer.loss_scale,
            "skipped_steps": optimizer.skipped_steps,
            **memory.read(),
        }


def _timed(function: Callable[[], float], wait: Callable[[], None]) -> tuple[float, float]:
    wait()
    start = time.perf_counter()
    value = function()
    wait()
    return time.perf_counter() - start, value


def _step(config: RunConfig, data: SimpleNamespace, model: nn.Module, optimizer: Optimizer) -> float:
    return training_step(config, data, model, optimizer).item()


def training_step(config: RunConfig, data: SimpleNamespace, model: nn.Module, optimizer: Optimizer) -> Tensor:
    """One step on the whole graph; returns the loss, a scalar."""
    model.train()
    loss = F.cross_entropy(_logits(config, data, model)[data.ids["train"]].float(), data.labels[data.ids["train"]])
    optimizer.step(loss)
    return loss.detach()


def _logits(config: RunConfig, data: SimpleNamespace, model: nn.Module) -> Tensor:
    with precision.autocast(config.device, config.precision, config.mode):
        return model(data.graph, data.features)


@torch.no_grad()
def evaluate(config: RunConfig, data: SimpleNamespace, model: nn.Module) -> dict[str, float]:
    """{"train", "val", "test"}: share of nodes whose class is right, 0 to 1."""
    model.eval()
    right = _logits(config, data, model).argmax(1) == data.labels
    return {split: right[ids].double().mean().item() for split, ids in data.ids.items()}
