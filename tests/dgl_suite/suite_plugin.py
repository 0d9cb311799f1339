"""pytest plugin of ``run.py``: the kernels on or off, and what became of each test."""

import json
import os
from pathlib import Path

import ampgnn

if os.environ["AMPGNN_SUITE_KERNELS"]:  # before DGL's test files bind functions of DGL by name
    ampgnn.enable(strict=True)

_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish():
    Path(os.environ["AMPGNN_SUITE_RECORD"]).write_text(json.dumps(_outcomes))
