"""What ``ampgnn.reorder`` gains, in one run: ``python kernels/benchmarks/reorder.py``."""

from functools import partial

import dgl
import torch
from ampgnn_kernels import bench

import ampgnn
from ampgnn.dgl import to_graph
from ampgnn.dgl.reorder import ORDERS


def shuffled(graph: dgl.DGLGraph) -> dgl.DGLGraph:
    """Nodes and edges in random order."""
    r = torch.Generator().manual_seed(0)
    nodes, edges = (torch.randperm(n, generator=r) for n in (graph.num_nodes(), graph.num_edges()))
    src, dst = (nodes[ends.long()][edges].int() for ends in graph.edges())
    return dgl.graph((src, dst), num_nodes=graph.num_nodes())


def main() -> None:
    operators, lines = ("u_mul_e sum", "u_dot_v", "edge_softmax", "GAT fwd+bwd"), []
    for kind, nodes, edges in (("power_law", 46_593, 10_000_000), ("grid", 0, 4_000_000)):
        made = bench.GRAPHS[kind](nodes, edges, torch.Generator().manual_seed(0))
        plain = shuffled(dgl.graph(made.coo(), num_nodes=made.num_src))
        name = f"{kind}, {made.num_src:,} nodes, {made.num_edges:,} edges"
        orders = {f"reorder(graph, {order!r})": partial(ampgnn.reorder, plain, order) for order in ORDERS}
        for label, ordered in {"shuffled": lambda plain=plain: plain, **orders}.items():
            bench.progress(name, label)
            graph = to_graph(ordered())
            _ = graph.csr
            calls = bench.ours(bench.Case(graph, 256, 1, torch.bfloat16))
            lines.append([name, label, *(f"{bench.best_time(calls[operator]) * 1e3:.0f}" for operator in operators)])
    print(bench.markdown(["graph", "order", *operators], lines))


if __name__ == "__main__":
    main()
