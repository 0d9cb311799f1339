import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_roofline.py"


@pytest.fixture(scope="module")
def roofline():
    spec = importlib.util.spec_from_file_location("gpu_roofline", SCRIPT)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_document_has_the_tables_that_the_script_makes(roofline):
    document = roofline.DOCUMENT.read_text()
    assert roofline.tables() in document and roofline.placed(document) == document


def test_bytes_of_a_sum_are_edges_times_rows(roofline):
    (copy,) = (k for k in roofline.kernels(1, 256, 2) if k.name == "copy_u, sum")
    assert copy.gathered == roofline.EDGES * 512
    assert copy.least == roofline.EDGES * 4 + 2 * roofline.NODES * 512
