"""Files by name and SHA-256, from a mirror, the cache or the network."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pooch
import requests

from .base import DatasetError, DatasetUnavailable

ATTEMPTS = 3  # at each address
MIRROR = "AMPGNN_DATA_MIRROR"


def fetch_any(path: str, urls: list[str], cache: Path, sha256: str | None = None) -> tuple[Path, str]:
    """As ``fetch``, also where no digest is published; returns the file and its digest."""
    file = fetch(path, sha256, urls, cache)
    return file, sha256 or pooch.file_hash(str(file))


def fetch(path: str, sha256: str | None, urls: list[str], cache: Path) -> Path:
    """The file ``path`` (such as "planetoid/ind.citeseer.x") with that digest, in ``cache``; any where it is None.

    Looks into the cache, then below the folder or address in ``AMPGNN_DATA_MIRROR``, then at each of ``urls``.

    Raises:
        DatasetError: the mirror is a folder and its file has another digest.
        DatasetUnavailable: no address gave the file; names each with its reason.
    """
    target = cache / path
    if target.exists() and sha256 in (None, pooch.file_hash(str(target))):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    mirror = os.environ.get(MIRROR)
    if mirror and "://" not in mirror:
        local = Path(mirror).expanduser() / path
        if local.exists():
            return _copy(local, target, sha256)
    addresses = ([f"{mirror.rstrip('/')}/{path}"] if mirror and "://" in mirror else []) + urls
    reasons = []
    for url in addresses:
        reason = _download(url, target, sha256)
        if reason is None:
            return target
        reasons.append(f"{url}: {reason}")
    raise DatasetUnavailable(
        f"{path} cannot be had ({'; '.join(reasons)}); {MIRROR} may name a folder or address that has it"
    )


def _copy(source: Path, target: Path, sha256: str | None) -> Path:
    digest = pooch.file_hash(str(source))
    if sha256 not in (None, digest):
        raise DatasetError(f"{source} is corrupted: SHA-256 {digest[:12]}..., expected {sha256[:12]}...")
    part = target.with_name(target.name + ".part")
    shutil.copyfile(source, part)
    os.replace(part, target)
    return target


def _download(url: str, target: Path, sha256: str | None) -> str | None:
    """None, or why not. pooch writes to a temporary name and moves it only once its digest is right."""
    for attempt in range(ATTEMPTS):
        try:
            pooch.retrieve(
                url,
                sha256 and f"sha256:{sha256}",
                fname=target.name,
                path=target.parent,
                downloader=pooch.HTTPDownloader(timeout=30, progressbar=True),
            )
            return None
        except ValueError:
            reason = "another SHA-256 than expected: truncated or changed"
        except requests.HTTPError as error:
            reason = f"HTTP status {error.response.status_code}"
        except requests.ConnectionError:
            reason = "no connection"
        except Exception as error:  # whatever else a network does
            reason = _one_line(error)
        time.sleep(0.2 * 2**attempt)
    return reason


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
