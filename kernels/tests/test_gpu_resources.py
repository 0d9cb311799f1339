"""Every kernel compiled for GPUs that are not there: no spilled register, no atomics, and the committed figures."""

import csv
import os
import subprocess
import sys
from importlib.metadata import version
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the GPU kernels are written in Triton")
COMMITTED = Path(__file__).parents[1] / "benchmarks" / "gpu_resources.csv"
# Each architecture and each type once; the whole table takes minutes (see the module's own text).
JOBS = [("80", "bf16", "int64"), ("90", "fp16", "int32"), ("100", "fp32", "int32")]


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_committed_table_covers_everything_and_spills_nothing():
    rows = read(COMMITTED)
    covered = {(r["sm"], r["type"], r["ids"]) for r in rows}
    assert covered == set(product(("80", "90", "100"), ("fp16", "bf16", "fp32"), ("int32", "int64")))
    assert all(r["stack"] == "0" and r["float_atomics"] == "0" for r in rows)
    wide = [r for r in rows if r["case"].startswith("1x256") and r["kernel"] in ("sum_pieces", "attention_pieces")]
    assert wide and all(int(r["vector_loads"]) > 0 for r in wide)


def test_compiling_again_gives_the_committed_figures(tmp_path):
    pinned = (Path(__file__).parents[2] / "envs" / "test.txt").read_text().split("triton==")[1].split()[0]
    assert version("triton") == pinned, "another compiler gives other figures"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    jobs = [f"--job={','.join(job)}" for job in JOBS]
    command = [sys.executable, "-m", "ampgnn_kernels.gpu.resources", "--out", str(tmp_path / "again.csv"), *jobs]
    subprocess.run(command, env=env, check=True)
    again = read(tmp_path / "again.csv")
    assert again == [r for job in JOBS for r in read(COMMITTED) if (r["sm"], r["type"], r["ids"]) == job]
