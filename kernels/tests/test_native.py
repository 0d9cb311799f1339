"""The C++ core without Python: another architecture under emulation, and the instructions that an inner loop takes."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
EDGES, VECTORS = 40 * 24, 64 // 8  # the harness's graph and its 64 features in AVX2 registers


def tool(*names):
    """The path of an installed program. CI installs them all: there a missing one is a failure."""
    for name in names:
        if found := shutil.which(name):
            return found
    message = f"needs {' or '.join(names)}"
    pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


def build(out, compiler, isa, *flags):
    source = TESTS.parent / "src" / "simd" / f"{isa}.cpp"
    common = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-Wno-psabi"]
    command = [compiler, *common, *flags, f"-DHARNESS_KERNELS=ampgnn::{isa}_kernels", "-o", out, source]
    subprocess.run([*map(str, command), str(TESTS / "native" / "harness.cpp")], check=True)
    return out


def test_arm64(tmp_path):
    harness = build(tmp_path / "harness", tool("aarch64-linux-gnu-g++"), "generic")
    emulator = [tool("qemu-aarch64", "qemu-aarch64-static"), "-L", "/usr/aarch64-linux-gnu", harness]
    out = subprocess.run(emulator, check=True, capture_output=True, text=True, timeout=300).stdout
    assert out.splitlines() == [f"generic {t} right" for t in ("float64", "float32", "float16", "bfloat16")]


def test_instructions_of_a_weighted_sum(tmp_path):
    """bf16, AVX2: load and widen, shift, multiply-add for each vector, and what an entry and its row cost beside them.

    102 when it was written; a loop that is no longer vectorised takes hundreds.
    """
    harness = build(tmp_path / "harness", tool("g++", "c++"), "avx2", "-mavx2", "-mfma", "-mf16c")
    valgrind = tool("valgrind")

    def instructions(repeats):
        command = [valgrind, "--tool=callgrind", f"--callgrind-out-file={tmp_path / 'out'}", harness, str(repeats)]
        log = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stderr
        return int(re.search(r"Collected : (\d+)", log).group(1))

    per_edge = (instructions(60) - instructions(10)) / 50 / EDGES
    assert 3 * VECTORS <= per_edge <= 115, f"{per_edge:.1f} instructions an edge"
