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
    assert "stock DGL: 2 passed, 0 failed, 0 skipped\nkernels: 1 passed, 1 failed" in done.stdout
    assert "passes on stock DGL alone: tests/python/common/ops/test_ops.py::test_stock" in done.stdout
