"""DGL's own tests as a peer: what passes on stock DGL must pass on the kernels, unchanged.

    python tests/dgl_suite/run.py FOLDER [pytest's arguments]

FOLDER holds DGL's sources at the tag of the installed version (v1.1.3; only ``tests/`` is read). Each file runs once
on stock DGL and once after ``ampgnn.enable(strict=True)``, under which a call that would fall back to DGL's kernels is
an error. Prints the counts of each file as a table in Markdown and exits with 1 if a test passes on stock DGL alone.
docs/dgl_suite.md has the outcome.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = (
    "common/ops/test_ops.py",
    "common/ops/test_edge_softmax.py",
    "common/function",
    "common/test_heterograph-kernel.py",
    "common/test_heterograph-update-all.py",
    "common/test_heterograph-apply-edges.py",
    "common/test_heterograph.py",
    "common/test_heterograph-specialization.py",
    "common/test_heterograph-pickle.py",
    "common/test_frame.py",
    "common/test_batch-graph.py",
    "common/test_batch-heterograph.py",
    "common/test_propagate.py",
    "common/test_readout.py",
    "pytorch/mpops",
    "pytorch/nn/test_nn.py",
)
# Where DGL's test asserts what numerics.md calls wrong: node id -> the named test of ours with the right value.
EXPECTED: dict[str, str] = {}


def outcomes(sources: Path, files: list[str], kernels: bool, extra: list[str]) -> dict[str, str]:
    """{node id: "passed", "failed" or "skipped"} of one run."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "outcomes.json"
        environment = os.environ | {
            "DGLBACKEND": "pytorch",
            "DGLTESTDEV": "cpu",
            "AMPGNN_SUITE_RECORD": str(record),
            "AMPGNN_SUITE_KERNELS": "1" if kernels else "",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(sources / "tests")]),
        }
        options = ["-p", "suite_plugin", "-q", "--tb=short", "-c", os.devnull, f"--rootdir={sources}"]
        options.append("--continue-on-collection-errors")  # in another file
        subprocess.run([sys.executable, "-m", "pytest", *options, *extra, *files], cwd=sources, env=environment)
        return json.loads(record.read_text()) if record.exists() else {}


def table(stock: dict[str, str], ours: dict[str, str]) -> str:
    """The counts of each file, and of all together, on stock DGL and on the kernels."""

    def counts(found: dict[str, str], file: str) -> str:
        kinds = [outcome for test, outcome in found.items() if test.startswith(file)]
        return " | ".join(str(kinds.count(kind)) for kind in ("passed", "failed", "skipped"))

    lines = [
        "| file of DGL's tests | passed on stock DGL | failed | skipped | passed on the kernels | failed | skipped |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for file in [*sorted({test.split("::")[0] for test in stock | ours}), ""]:
        name = file.removeprefix("tests/python/") or "all"
        lines.append(f"| {name} | {counts(stock, file)} | {counts(ours, file)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, help="DGL's sources at the tag of the installed version")
    arguments, extra = parser.parse_known_args()
    sources = arguments.sources.resolve()
    present = [f"tests/python/{name}" for name in FILES if (sources / "tests/python" / name).exists()]
    if not present:
        parser.error(f"none of DGL's test files is under {sources}/tests/python")
    stock, ours = (outcomes(sources, present, kernels, extra) for kernels in (False, True))
    print(table(stock, ours))
    worse = [test for test, outcome in stock.items() if outcome == "passed" and ours.get(test) != "passed"]
    for test in worse:
        print(f"passes on stock DGL alone: {test}" + (f" (expected: {EXPECTED[test]})" if test in EXPECTED else ""))
    return 0 if stock and set(worse) <= set(EXPECTED) else 1


if __name__ == "__main__":
    sys.exit(main())
