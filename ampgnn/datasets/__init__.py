"""Datasets by name: fetched or made, verified, and kept in a cache that later runs map into memory.

A dataset is a function ``load(name, cache, **options) -> NodeDataset`` in ``REGISTRY``.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ampgnn.files import write_json

from . import digits, ogb, planetoid, reddit
from .base import DatasetError, DatasetUnavailable, NodeDataset, Provenance

__all__ = [
    "REGISTRY",
    "DatasetError",
    "DatasetUnavailable",
    "NodeDataset",
    "Provenance",
    "load",
    "open_record",
    "prepare",
]

REGISTRY = {
    "digits": digits.load,
    **dict.fromkeys(("cora", "citeseer", "pubmed"), planetoid.load),
    "reddit": reddit.load,
    **dict.fromkeys(("ogbn-arxiv", "ogbn-products"), ogb.load),
}
_TENSORS = ("src", "dst", "features", "labels", "train_mask", "val_mask", "test_mask")


def default_cache() -> Path:
    """``AMPGNN_CACHE``, else the user's cache directory."""
    import pooch

    return Path(os.environ.get("AMPGNN_CACHE") or pooch.os_cache("ampgnn"))


def key_of(name: str, scale: float | None = None) -> str:
    return name if scale is None else f"{name}-{scale:g}"


def load(name: str, cache: Path | None = None, scale: float | None = None) -> NodeDataset:
    """The dataset ``name``, from the cache if it was prepared before.

    Args:
        cache: folder for downloads and prepared files; see ``default_cache``.
        scale: for "reddit": the stand-in at that share of the real size, in (0, 1].

    Raises:
        DatasetError: an unknown name, a wrong scale or damaged files.
        DatasetUnavailable: it cannot be had and has no stand-in.
    """
    return _prepared(name, cache, scale)[0]


def prepare(
    name: str,
    out: Path,
    *,
    scale: float | None = None,
    cache: Path | None = None,
    on_unavailable: str = "record",
) -> dict:
    """Puts the dataset into the cache and writes a record of it, as JSON, to ``out``; returns the record.

    Args:
        on_unavailable: "record" writes a record with status "unavailable" and the reason, "fail" raises.
    """
    record = {"key": key_of(name, scale), "name": name, "options": {} if scale is None else {"scale": scale}}
    try:
        dataset, file, digest = _prepared(name, cache, scale)
    except DatasetUnavailable as reason:
        if on_unavailable == "fail":
            raise
        record |= {"status": "unavailable", "reason": str(reason)}
    else:
        counts = [int(m.sum()) for m in (dataset.train_mask, dataset.val_mask, dataset.test_mask)]
        record |= {"status": "ready", "reason": None, "digest": digest}
        record |= {
            "nodes": dataset.num_nodes,
            "edges": len(dataset.src),
            "features": dataset.features.shape[1],
        }
        record |= {"classes": dataset.num_classes, "split": counts, **dataset.provenance.as_dict()}
        record["file"] = os.path.relpath(file, Path(out).resolve().parent)
    write_json(Path(out), record)
    return record


def open_record(path: Path) -> NodeDataset:
    """The dataset that a record points to.

    Raises:
        DatasetError: no such record, or its file is missing or changed.
        DatasetUnavailable: the record says that it could not be had.
    """
    record = read_record(path)
    if record["status"] != "ready":
        raise DatasetUnavailable(record["reason"])
    return _read(Path(path).resolve().parent / record["file"], record)


def read_record(path: Path) -> dict:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError):
        raise DatasetError(f"{path} is not a dataset record: make one with `ampgnn data NAME --out {path}`") from None


def _prepared(name: str, cache: Path | None, scale: float | None) -> tuple[NodeDataset, Path, str]:
    if name not in REGISTRY:
        raise DatasetError(f"unknown dataset '{name}', allowed are {', '.join(sorted(REGISTRY))}")
    if scale is not None and name != "reddit":
        raise DatasetError(f"scale is for the dataset reddit alone, not {name}")
    if scale is not None and not 0 < scale <= 1:
        raise DatasetError(f"scale must be above 0 and at most 1, got {scale}")
    cache = Path(cache or default_cache())
    folder = cache / "prepared" / key_of(name, scale)
    folder.mkdir(parents=True, exist_ok=True)
    file, about = folder / "data.safetensors", folder / "about.json"
    with FileLock(folder / "lock"):
        if file.exists() and about.exists():
            try:
                record = json.loads(about.read_text())
                return _read(file, record), file, record["digest"]
            except (DatasetError, ValueError, KeyError):
                pass  # damaged: made anew below
        options = {} if scale is None else {"scale": scale}
        dataset = REGISTRY[name](name, cache, **options).validate()
        tensors = {t: getattr(dataset, t).contiguous() for t in _TENSORS}
        part = file.with_suffix(".part")
        save_file(tensors, part)
        digest = _sha256(part)
        os.replace(part, file)
        record = {
            "name": name,
            "classes": dataset.num_classes,
            "digest": digest,
            **dataset.provenance.as_dict(),
        }
        write_json(about, record)
    return dataset, file, digest


def _read(file: Path, record: dict) -> NodeDataset:
    if not file.exists():
        raise DatasetError(f"{file} is missing: prepare {record['name']} again")
    if _sha256(file) != record["digest"]:
        raise DatasetError(f"{file} was changed since it was prepared: remove it and prepare {record['name']} again")
    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise DatasetError(f"{file} is damaged: {error}") from None
    provenance = Provenance(**{f: record[f] for f in Provenance.__dataclass_fields__})
    return NodeDataset(name=record["name"], num_classes=record["classes"], provenance=provenance, **tensors).validate()


def _sha256(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
