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
from torch.nn.parallel import DistributedDataParallel

from ampgnn import precision
from ampgnn.config import RunConfig
from ampgnn.datasets import NodeDataset
from ampgnn.models import MODELS

from . import processes
from .capture import CapturedPasses
from .checkpoint import State
from .meters import PeakMemory, dgl_graph_bytes, tensors_of
from .optimizer import Optimizer
from .prefetch import prefetch

WATCHED = 2  # epochs in which tensors are counted
EPOCHS_APART = 1_000_003  # of the random numbers of one seed and the next


class NonFiniteLoss(Exception):
    """The loss became NaN or infinite."""


def prepare(config: RunConfig, dataset: NodeDataset) -> SimpleNamespace:
    """Graph, features, labels and masks on the device, in the types of the configuration; the seeds share them."""
    device = torch.device(config.device)
    graph = dataset.graph() if config.backend == "native" else dataset.dgl_graph()
    sampled = None
    if config.batch_size is not None:  # sampled on the CPU, whatever the device
        from ampgnn.dgl.sampling import as_dgl

        sampled = as_dgl(graph)
    elif config.backend == "native":
        _ = graph.csr  # made before tensors are counted, and on the CPU: to make it takes memory of its own
    graph = graph.to(device)
    features = dataset.features.to(device, feature_dtype(config))
    labels = dataset.labels.to(device)
    ids = {s: getattr(dataset, f"{s}_mask").to(device).nonzero().flatten() for s in ("train", "val", "test")}
    beside = 0 if config.backend == "native" else dgl_graph_bytes(graph.num_nodes(), graph.num_edges())
    return SimpleNamespace(
        graph=graph,
        sampled=sampled,
        features=features,
        labels=labels,
        ids=ids,
        num_classes=dataset.num_classes,
        beside=beside,
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
    return State(model, Optimizer(model, config.precision, config.device, config.lr, config.weight_decay), seed)


def train(config: RunConfig, data: SimpleNamespace, state: State) -> Iterator[dict]:
    """Trains the epochs that ``state`` lacks and yields each one's metrics; ``state`` is then that epoch's.

    The metrics: ``train/loss``, ``train/acc``, ``val/acc``, ``test/acc`` (of the epoch's weights, dropout off),
    ``epoch_seconds`` (the training steps alone), ``loss_scale``, ``skipped_steps`` (so far), and what
    ``PeakMemory.read`` gives; tensors are counted in the first two epochs, in which all that is ever held is made.

    Where several processes train, each yields the metrics of the first.

    Raises:
        NonFiniteLoss: the loss is NaN or infinite.
    """
    model, optimizer = state.model, state.optimizer
    captured = _capture(config, data, model, optimizer) if config.cuda_graph else None
    parallel = DistributedDataParallel(model) if processes.size() > 1 else model
    memory = PeakMemory(config.device, tensors_of(vars(data), model, optimizer.masters), data.beside)
    wait = torch.cuda.synchronize if config.device == "cuda" else (lambda: None)
    first = state.epoch
    for epoch in range(first, config.epochs):
        with memory.watch() if epoch < first + WATCHED else nullcontext():
            if config.batch_size is None:
                seconds, loss = _timed(lambda: _step(config, data, model, optimizer, captured), wait)
            else:
                seconds, loss = _timed(lambda: _batches(config, data, parallel, state), wait)
            if not math.isfinite(loss):
                raise NonFiniteLoss(f"the loss is {loss} in epoch {epoch}")
            accuracy = processes.told(evaluate(config, data, model) if processes.rank() == 0 else None)
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


def _step(
    config: RunConfig, data: SimpleNamespace, model: nn.Module, optimizer: Optimizer, captured: CapturedPasses | None
) -> float:
    model.train()
    loss = captured() if captured else _passes(config, data, model, optimizer)
    optimizer.update()
    return loss.item()


def training_step(config: RunConfig, data: SimpleNamespace, model: nn.Module, optimizer: Optimizer) -> None:
    """One step on the whole graph."""
    model.train()
    _passes(config, data, model, optimizer)
    optimizer.update()


def _batches(config: RunConfig, data: SimpleNamespace, model: nn.Module, state: State) -> float:
    """An epoch's steps on sampled neighbourhoods; returns the mean loss of the training nodes.

    The epoch's batches and samples depend on seed, epoch and process alone. A batch is dealt out to the processes;
    each weighs its share so that the mean of their gradients is the batch's.
    """
    from ampgnn.dgl import to_graph
    from ampgnn.dgl.sampling import batches

    rank, size = processes.rank(), processes.size()
    key = (state.seed * EPOCHS_APART + state.epoch) % 2**31
    ids = data.ids["train"].cpu()
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(key))
    whole = [b for b in ids[order].split(config.batch_size) if len(b) >= size]
    key = (key * size + rank) % 2**31
    torch.manual_seed(key)
    model.train()
    total = torch.zeros((), dtype=torch.float64)
    shares = [batch[rank::size] for batch in whole]
    samples = batches(data.sampled, torch.cat(shares), len(shares[0]), config.fanouts, key)
    view = to_graph if config.backend == "native" else (lambda block: block.to(config.device))
    samples = ((inputs, outputs, [view(b) for b in blocks]) for inputs, outputs, blocks in samples)
    for batch, (inputs, outputs, blocks) in zip(whole, prefetch(samples, config.device), strict=True):
        with precision.autocast(config.device, config.precision, config.mode):
            logits = model(blocks, data.features[inputs])
        loss = F.cross_entropy(logits.float(), data.labels[outputs], reduction="sum") / len(batch)
        state.optimizer.step(loss * size)
        total += loss.item() * len(batch)
    return processes.added(total).item() / sum(map(len, whole))


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
    """{"train", "val", "test"}: share of nodes whose class is right, 0 to 1.

    Inference is on the whole graph, a layer for all nodes before the next: nothing is sampled, and only two layers'
    features are held at once.
    """
    model.eval()
    right = _logits(config, data, model).argmax(1) == data.labels
    return {split: right[ids].double().mean().item() for split, ids in data.ids.items()}
