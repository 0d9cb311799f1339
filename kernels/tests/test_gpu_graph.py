"""What of the GPU's side needs no GPU and no Triton."""

import subprocess
import sys

import pytest
import torch
from ampgnn_kernels.graph import _group, _group_anywhere
from support import IDTYPES, random_graph


@pytest.mark.parametrize("idtype", IDTYPES)
def test_grouping_with_torch_equals_grouping_in_cpp(idtype):
    graph = random_graph(30, 20, 200, idtype)
    src, dst = graph.coo()
    names = ("dst", "src")
    for ours, cpp in zip(_group_anywhere(dst, src, 20, 30, names), _group(dst, src, 20, 30), strict=True):
        assert torch.equal(ours, cpp) and ours.dtype == idtype
    with pytest.raises(ValueError, match="edge 1: src is 30, allowed are 0 to 29"):
        _group_anywhere(dst[:2], torch.tensor([0, 30], dtype=idtype), 20, 30, names)


def test_a_moved_graph_keeps_its_orders():
    graph = random_graph(30, 20, 200)
    assert graph.to("cpu") is graph and graph.to(torch.device("cpu")) is graph
    moved = graph.to("meta")
    assert moved.device.type == "meta" and moved._csr is None and moved.csc.indptr.shape == (21,)
    assert graph.csr and graph.to("meta")._csr.indptr.shape == (31,)


def test_without_triton_only_cuda_tensors_fail_in_one_line():
    code = """
import sys; sys.modules["triton"] = None
import torch, ampgnn_kernels as ak
g = ak.Graph.from_coo(torch.tensor([0]), torch.tensor([0]), 1, 1)
assert ak.spmm(g, torch.ones(1, 1), op="copy_u").item() == 1
try:
    ak.ops._on_gpu("spmm")()
except NotImplementedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "ampgnn_kernels on CUDA tensors needs triton, which CUDA builds of torch bring: pip install triton"
    )


def test_every_operator_has_a_cuda_implementation():
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("ampgnn::")]
    assert "ampgnn::spmm" in names
    assert all(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CUDA") for name in names)
