"""The script itself, on sources of DGL's shape."""

import subprocess
import sys
from pathlib import Path

PASSES = "import dgl, torch\ndef test_sum():\n    g = dgl.graph(([0], [1]))\n    assert dgl.ops.copy_u_sum(g, torch.ones(2, 1))[1] == 1\n"
STOCK_ALONE = (
    "import dgl.ops\ndef test_stock():\n    assert dgl.ops.gspmm.__globals__['__name__'].startswith('dgl.ops.spmm')\n"
)


def run(folder):
    script = Path(__file__).parent / "run.py"
    return subprocess.run([sys.executable, script, folder], capture_output=True, text=True)


def test_a_test_that_passes_on_stock_alone_is_named(tmp_path):
    file = tmp_path / "tests/python/common/ops/test_ops.py"
    file.parent.mkdir(parents=True)
    assert run(tmp_path).returncode == 2  # no tests there
    file.write_text(PASSES + STOCK_ALONE)
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "| common/ops/test_ops.py | 2 | 0 | 0 | 1 | 1 | 0 |\n| all | 2 | 0 | 0 | 1 | 1 | 0 |" in done.stdout
    assert "passes on stock DGL alone: tests/python/common/ops/test_ops.py::test_stock" in done.stdout


def test_a_file_that_cannot_be_imported_does_not_end_the_run(tmp_path):
    folder = tmp_path / "tests/python/common/ops"
    folder.mkdir(parents=True)
    (folder / "test_ops.py").write_text(PASSES)
    (folder / "test_edge_softmax.py").write_text("import no_such_module\n")
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| common/ops/test_ops.py | 1 | 0 | 0 | 1 | 0 | 0 |" in done.stdout
