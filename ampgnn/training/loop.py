"""One loop for every model, precision, backend and device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampgnn import precision
from ampgnn.config import RunConfig
from ampgnn.datasets import NodeDataset
from ampgnn.models import MODELS

from .capture import CapturedPasses
from .meters import PeakMemory
from .optimizer import Optimizer


class NonFiniteLoss(Exception):
    """The loss became NaN or infinite."""


def prepare(config: RunConfig, dataset: NodeDataset) -> SimpleNamespace:
    """Graph, features, labels and masks on the device, in the types of the configuration; the seeds share them."""
    device = torch.device(config.device)
    graph = (dataset.graph() if config.backend == "native" else dataset.dgl_graph()).to(device)
    features = dataset.features.to(device)
    if config.mode == "pure":
        features = features.to(precision.DTYPES[config.precision])
    labels = dataset.labels.to(device)
    ids = {s: getattr(dataset, f"{s}_mask").to(device).nonzero().flatten() for s in ("train", "val", "test")}
    return SimpleNamespace(graph=graph, features=features, labels=labels, ids=ids, num_classes=dataset.num_classes)


def make_model(config: RunConfig, in_feats: int, num_classes: int) -> nn.Module:
    """The model with weights that depend on torch's seed alone, not on the backend."""
    if config.backend == "native":
        from ampgnn import nn as layers
    else:
        from ampgnn.dgl import stock_layers

        layers = stock_layers()
    model = MODELS[config.model](layers, in_feats, num_classes, config).to(config.device)
    return model.to(precision.DTYPES[config.precision]) if config.mode == "pure" else model


def train(config: RunConfig, data: SimpleNamespace, seed: int) -> Iterator[tuple[dict, nn.Module]]:
    """Trains and yields, after each epoch, its metrics and the model.

    The metrics: ``train/loss``, ``train/acc``, ``val/acc``, ``test/acc`` (of the epoch's weights, dropout off),
    ``epoch_seconds`` (the training step alone), ``loss_scale``, ``skipped_steps`` (so far), ``peak_rss_bytes``.

    Raises:
        NonFiniteLoss: the loss is NaN or infinite.
    """
    torch.manual_seed(seed)
    model = make_model(config, data.features.shape[1], data.num_classes)
    optimizer = Optimizer(model, config.precision, config.device, config.lr, config.weight_decay)
    captured = _capture(config, data, model, optimizer) if config.cuda_graph else None
    memory = PeakMemory(config.device)
    wait = torch.cuda.synchronize if config.device == "cuda" else (lambda: None)
    for epoch in range(config.epochs):
        seconds, loss = _timed(lambda: _step(config, data, model, optimizer, captured), wait)
        if not math.isfinite(loss):
            raise NonFiniteLoss(f"the loss is {loss} in epoch {epoch}")
        accuracy = evaluate(config, data, model)
        yield (
            {
                "step": epoch,
                "train/loss": loss,
                **{f"{split}/acc": value for split, value in accuracy.items()},
                "epoch_seconds": seconds,
                "loss_scale": optimizer.loss_scale,
                "skipped_steps": optimizer.skipped_steps,
                "peak_rss_bytes": memory.read(),
            },
            model,
        )


def _timed(function: Callable[[], float], wait: Callable[[], None]) -> tuple[float, float]:
    wait()
    start = time.perf_counter()
    value = function()
    wait()
    return time.perf_counter() - start, value


def _step(
    config: RunConfig, data: SimpleNamespace, model: nn.Module, optimizer: Optimizer, captured: CapturedPasses | None
) -> float:
    model.train()
    loss = captured() if captured else _passes(config, data, model, optimizer)
    optimizer.update()
    return loss.item()


def _passes(config: RunConfig, data: SimpleNamespace, model: nn.Module, optimizer: Optimizer) -> Tensor:
    """Forward and backward pass; leaves gradients and returns the loss."""
    ids = data.ids["train"]
    loss = F.cross_entropy(_logits(config, data, model)[ids].float(), data.labels[ids])
    optimizer.backward(loss)
    return loss.detach()


def _capture(config: RunConfig, data: SimpleNamespace, model: nn.Module, optimizer: Optimizer) -> CapturedPasses:
    model.train()
    return CapturedPasses(lambda: _passes(config, data, model, optimizer), optimizer.weights)


def _logits(config: RunConfig, data: SimpleNamespace, model: nn.Module) -> Tensor:
    with precision.autocast(config.device, config.precision, config.mode):
        return model(data.graph, data.features)


@torch.no_grad()
def evaluate(config: RunConfig, data: SimpleNamespace, model: nn.Module) -> dict[str, float]:
    """{"train", "val", "test"}: share of nodes whose class is right, 0 to 1."""
    model.eval()
    right = _logits(config, data, model).argmax(1) == data.labels
    return {split: right[ids].double().mean().item() for split, ids in data.ids.items()}
