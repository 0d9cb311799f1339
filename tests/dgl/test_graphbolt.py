"""DGL 2.1 beside a torch that it has no graphbolt library for: a package of its shape on disk."""

import subprocess
import sys

import pytest
import torch

PROGRAM = "import ampgnn, dgl; print('imported'); dgl.graphbolt.ItemSet"


@pytest.fixture
def run(tmp_path):
    package = tmp_path / "dgl"
    (package / "graphbolt").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import graphbolt\n")
    (package / "graphbolt" / "__init__.py").write_text(
        "import os\n"
        f"path = os.path.join(os.path.dirname(__file__), 'libgraphbolt_pytorch_{torch.__version__.split('+')[0]}.so')\n"
        "if not os.path.exists(path): raise FileNotFoundError(path)\n"
        "ItemSet = 'the real one'\n"
    )

    def run(program):
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    run.library = package / "graphbolt" / f"libgraphbolt_pytorch_{torch.__version__.split('+')[0]}.so"
    return run


def test_without_the_library(run):
    done = run(PROGRAM)
    assert done.stdout == "imported\n"
    assert "ImportError: dgl.graphbolt.ItemSet cannot be used: DGL" in done.stderr
    assert "FileNotFoundError" in run(PROGRAM.replace("import ampgnn, dgl", "import dgl")).stderr


def test_with_the_library(run):
    run.library.touch()
    assert run(f"{PROGRAM}; print(dgl.graphbolt.ItemSet)").stdout == "imported\nthe real one\n"
