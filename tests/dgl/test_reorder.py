"""reorder: the same graph in another order, features along, ids to go back."""

import dgl
import pytest
import torch

import ampgnn
from ampgnn.dgl import to_graph


def made(idtype=torch.int32):
    r = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(50, (400,), generator=r) for _ in range(2))
    graph = dgl.graph((src, dst), num_nodes=50, idtype=idtype)
    graph.ndata["x"] = torch.rand(50, 3, generator=r)
    graph.edata["w"] = torch.rand(400, 1, generator=r)
    return graph


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("nodes", [None, "degree", "rcm"])
def test_results_and_features_go_along(nodes, idtype):
    graph = made(idtype)
    out = ampgnn.reorder(graph, nodes)
    assert out.idtype == idtype and out.num_nodes() == 50
    nid = out.ndata[dgl.NID].long() if nodes else torch.arange(50)
    eid = out.edata[dgl.EID].long()
    assert sorted(eid.tolist()) == list(range(400)) and sorted(nid.tolist()) == list(range(50))
    assert torch.equal(out.ndata["x"], graph.ndata["x"][nid]) and torch.equal(out.edata["w"], graph.edata["w"][eid])
    src, dst = out.edges()
    assert torch.equal(torch.stack(graph.edges())[:, eid].long(), nid[torch.stack((src, dst)).long()])
    assert torch.equal((dst.long() * 50 + src.long()).argsort(stable=True), torch.arange(400))
    want = dgl.ops.u_mul_e_sum(graph, graph.ndata["x"], graph.edata["w"])
    torch.testing.assert_close(dgl.ops.u_mul_e_sum(out, out.ndata["x"], out.edata["w"]), want[nid])


def test_the_kernels_need_no_edge_ids_afterwards():
    assert to_graph(made()).csc.eids is not None
    assert to_graph(ampgnn.reorder(made())).csc.eids is None


def test_orders_by_degree():
    degrees = ampgnn.reorder(made(), "degree").in_degrees()
    assert torch.equal(degrees, degrees.sort(descending=True)[0])


def test_what_it_refuses():
    with pytest.raises(ValueError, match="nodes is 'metis', allowed are None, 'degree', 'rcm'"):
        ampgnn.reorder(made(), "metis")
    two = dgl.heterograph({("a", "r", "b"): ([0], [1]), ("a", "s", "b"): ([1], [0])})
    with pytest.raises(ValueError, match="several types"):
        ampgnn.reorder(two)
