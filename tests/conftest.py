import os
from pathlib import Path

import pytest

import ampgnn  # noqa: F401  (before dgl: DGL 2.1 would not import beside a torch newer than its own)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder with the real Citeseer files: AMPGNN_DATA_MIRROR, else ../shared/data beside the checkout."""
    folder = Path(os.environ.get("AMPGNN_DATA_MIRROR") or ROOT.parent / "shared" / "data")
    if not (folder / "planetoid" / "ind.citeseer.x").is_file():
        pytest.fail(f"AMPGNN_DATA_MIRROR must name a folder with planetoid/ind.citeseer.x, got {folder}")
    return folder.resolve()


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def citeseer(mirror, cache):
    from ampgnn import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMPGNN_DATA_MIRROR", str(mirror))
        return datasets.load("citeseer", cache)


@pytest.fixture(scope="session")
def digits_record(cache) -> Path:
    from ampgnn import datasets

    datasets.prepare("digits", cache / "digits.json", cache=cache)
    return cache / "digits.json"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    """A migrated, empty MLflow database to copy: making one takes seconds."""
    from ampgnn.tracking import open_store

    folder = tmp_path_factory.mktemp("store")
    open_store(f"sqlite:///{folder / 'mlflow.db'}")
    return folder / "mlflow.db"


@pytest.fixture
def store(tmp_path, empty_store) -> str:
    """The address of a MLflow store of this test's own."""
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
