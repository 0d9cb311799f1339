"""What runs where."""

import pytest
import torch

import ampgnn


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, "fp32", "fp16", "bf16"])
def test_the_cpu_takes_every_precision(dtype):
    answer = ampgnn.supports("cpu", dtype)
    assert answer and answer.works
    assert "kernels, stored in torch.float" in answer.reason or "stored in torch.bfloat16" in answer.reason


def test_what_does_not_work_says_why(monkeypatch):
    assert not ampgnn.supports("cpu", torch.int64) and "not torch.int64" in ampgnn.supports("cpu", torch.int64).reason
    assert "none for mps" in ampgnn.supports("mps", torch.float16).reason
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in ampgnn.supports("cuda", "fp16").reason
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 0))
    answer = ampgnn.supports("cuda", torch.bfloat16)
    assert not answer and "compute capability 8.0, this GPU has 7.0" in answer.reason
