"""The script for a real GPU, dry: the same steps on the CPU at tiny size."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "run.sh"


def run(tmp_path, **env):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHON": sys.executable} | env
    command = [SCRIPT, "--out", tmp_path / "gpu.json"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def test_the_script_runs_dry(tmp_path):
    done = run(tmp_path, AMPGNN_GPU_SCRIPT_DRY="1")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert result["facts"]["gpu"] == "none: a dry run on the CPU"
    assert len(result["values"]) == 2 * 3 * 6 and all(row["error"] is None for row in result["values"])
    assert {row["who"] for row in result["times"]} >= {"ampgnn", "torch.sparse", "DGL"}
    trained = [row for row in result["training"] if "losses" in row]
    assert {(r["heads"], r["type"]) for r in trained} >= {
        (h, t) for h in ("1.1.1", "2.2.2") for t in ("fp32", "fp16", "bf16")
    }
    assert all(row["losses"][1] < row["losses"][0] for row in trained)
    assert [row["reason"] for row in result["training"] if "reason" in row] == ["CUDA graphs need a GPU"]
    assert "Values against float64: 36 of 36 right" in done.stdout


def test_without_a_gpu_the_script_says_so(tmp_path):
    done = run(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1 and "no CUDA device" in done.stderr and not (tmp_path / "gpu.json").exists()
