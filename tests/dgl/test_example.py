"""The example of mini-batches, run as a user would run it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "graphsage_minibatch.py"


@pytest.mark.parametrize("precision, workers", [("fp32", 0), ("fp16", 0), ("bf16", 2)])
def test_graphsage_learns_in_every_precision(precision, workers):
    command = [sys.executable, EXAMPLE, "--precision", precision, "--workers", str(workers), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    accuracy = [float(found) for found in re.findall(r"test accuracy ([0-9.]+)", done.stdout)]
    assert len(accuracy) == 2 and accuracy[-1] > 0.8  # one class in five by chance
