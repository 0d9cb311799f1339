"""fp32, fp16 and bf16: types, autocast, and what can run where."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import NamedTuple

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def autocast(device: str, precision: str, mode: str | None) -> AbstractContextManager:
    """torch's autocast for half precision in mode "amp", nothing otherwise."""
    if mode != "amp" or precision == "fp32":
        return nullcontext()
    return torch.amp.autocast(device, dtype=DTYPES[precision])


class Support(NamedTuple):
    """An answer that is true or false, and says why."""

    works: bool
    reason: str

    def __bool__(self) -> bool:
        return self.works


def supports(device: torch.device | str, dtype: torch.dtype | str) -> Support:
    """Whether the kernels run on a device in a type, and why not, or by which means.

    Args:
        device: "cpu" or "cuda". dtype: torch.float64, float32, float16 or bfloat16, or "fp32", "fp16" or "bf16".

    Returns:
        ``Support(works, reason)``, true where it works.
    """
    kind = torch.device(device).type
    dtype = DTYPES.get(dtype, dtype)
    if kind not in ("cpu", "cuda"):
        return Support(False, f"there are kernels for the CPU and for CUDA, none for {kind}")
    if dtype not in (torch.float64, *DTYPES.values()):
        return Support(False, f"the kernels take float64, float32, float16 and bfloat16, not {dtype}")
    name = next((name for name, each in DTYPES.items() if each == dtype), "fp64")
    against = why_not(kind, name)
    if against is not None:
        return Support(False, against)
    if kind == "cuda":
        return Support(True, f"compute capability {'.'.join(map(str, torch.cuda.get_device_capability(device)))}")
    from ampgnn_kernels import isa

    return Support(True, f"{isa()} kernels, stored in {dtype}, summed in float{64 if name == 'fp64' else 32}")


def why_not(device: str, precision: str, backend: str = "native", mode: str | None = "amp") -> str | None:
    """None if the combination can run here, else the reason why not.

    Args:
        device: "cpu" or "cuda". precision: "fp32", "fp16" or "bf16". backend: "native" or "dgl". mode: "amp" or "pure".
    """
    if device == "cuda":
        return _cuda_reason(precision, backend)
    if backend == "dgl" and precision == "fp16":
        return "DGL's CPU kernels take no float16: their feature data can only be bfloat16, float32 or float64"
    if backend == "dgl" and precision != "fp32" and mode == "amp":
        return "DGL ignores autocast on the CPU: half node features meet float32 edge features and are refused"
    return None


def _cuda_reason(precision: str, backend: str) -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device: torch.cuda.is_available() is False"
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        major, minor = torch.cuda.get_device_capability()
        return f"bfloat16 needs compute capability 8.0, this GPU has {major}.{minor}"
    if backend == "native":
        return (
            None if find_spec("triton") else "the native kernels on CUDA need triton, which CUDA builds of torch bring"
        )
    return None if dgl_has_cuda() else "this dgl is a CPU build"


def dgl_has_cuda() -> bool:
    """Whether DGL is a build for CUDA."""
    import dgl

    try:
        dgl.graph(([0], [0])).to("cuda")
    except Exception:  # DGLError, or whatever its C++ side throws
        return False
    return True
