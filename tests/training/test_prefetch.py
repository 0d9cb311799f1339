import contextlib

import pytest
import torch

from ampgnn.graph import Graph
from ampgnn.training.prefetch import prefetch


def batches(count=3):
    for i in range(count):
        graph = Graph.from_coo(torch.tensor([0, 1]), torch.tensor([1, 0]), 2, 2)
        yield {"x": torch.full((2,), float(i)), "blocks": [graph], "id": i}


def test_batches_come_in_order_with_their_values():
    got = list(prefetch(batches(), "cpu"))
    assert [b["id"] for b in got] == [0, 1, 2] and [b["x"][0].item() for b in got] == [0.0, 1.0, 2.0]
    assert all(b["blocks"][0].coo()[0].tolist() == [0, 1] for b in got)
    moved = next(prefetch(batches(), "meta"))
    assert moved["x"].device.type == moved["blocks"][0].device.type == "meta"


@pytest.fixture
def cuda(monkeypatch):
    """A stand-in for CUDA on the CPU that notes what happens on which stream."""
    notes = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def record_event(self):
            notes.append(("recorded", self.name))
            return len(notes)

        def wait_event(self, event):
            notes.append((self.name, "waits for", event))

    main = Stream("main")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: notes.append(("used by", stream.name)))
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking=False: self)
    return notes


def test_the_next_batch_is_copied_before_this_one_is_worked_on(cuda):
    taken = []

    def source():
        for batch in batches():
            taken.append(batch["id"])
            yield batch

    for i, batch in enumerate(prefetch(source(), "cuda")):
        assert batch["id"] == i and taken[-1] == min(i + 1, 2)
    waits = [note[2] for note in cuda if note[0] == "main"]
    recorded = [n for n, note in enumerate(cuda, start=1) if note[0] == "recorded"]
    assert waits == recorded  # each batch waits for its own copy
    assert cuda.count(("used by", "main")) == 3 * 4  # x and the graph's three arrays of each
