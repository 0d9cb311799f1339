"""Where a run was made: the machine, the versions, the commit, the image."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
from importlib import metadata
from pathlib import Path

import torch

from .git import commit_and_dirty

PACKAGES = ("ampgnn", "ampgnn-kernels", "torch", "dgl", "numpy", "scipy", "snakemake", "mlflow")


def describe() -> dict:
    """{"machine", "versions", "git_commit", "git_dirty", "image"} of this process; no image: the host's environment."""
    commit, dirty = commit_and_dirty()
    about = {"machine": machine(), "versions": versions(), "git_commit": commit, "git_dirty": dirty}
    return {**about, "image": os.environ.get("AMPGNN_IMAGE")}


def machine() -> dict:
    """CPU model, cores, instruction set of the kernels, memory in GiB, system, GPU."""
    import ampgnn_kernels

    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "isa": ampgnn_kernels.isa(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def versions() -> dict:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found["torch"] = torch.__version__
    return found


def sources_digest(*modules: str) -> str:
    """Digest of the files of modules and packages, so that a pipeline notices changed code."""
    digest = hashlib.sha256()
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"no module {name}: install ampgnn and ampgnn-kernels first")
        folders = spec.submodule_search_locations
        files = sorted(f for d in folders for f in Path(d).rglob("*")) if folders else [Path(spec.origin)]
        for file in files:
            if file.suffix in (".py", ".so", ".j2", ".css"):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
