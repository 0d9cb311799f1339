"""What ``ampgnn.reorder`` gains, in one run: ``python kernels/benchmarks/reorder.py``."""

import dgl
import torch
from ampgnn_kernels import bench

import ampgnn
from ampgnn.dgl import to_graph


def shuffled(graph: dgl.DGLGraph) -> dgl.DGLGraph:
    """Nodes and edges in random order."""
    r = torch.Generator().manual_seed(0)
    nodes, edges = (torch.randperm(n, generator=r) for n in (graph.num_nodes(), graph.num_edges()))
    src, dst = (nodes[ends.long()][edges].int() for ends in graph.edges())
    return dgl.graph((src, dst), num_nodes=graph.num_nodes())


def main() -> None:
    print(
        "| graph | order | u_mul_e sum | u_dot_v | edge_softmax | GAT fwd+bwd |\n| --- | --- | --- | --- | --- | --- |"
    )
    for kind, nodes, edges in (("power_law", 46_593, 10_000_000), ("grid", 0, 4_000_000)):
        made = bench.GRAPHS[kind](nodes, edges, torch.Generator().manual_seed(0))
        plain = shuffled(dgl.graph(made.coo(), num_nodes=made.num_src))
        for order in ("shuffled", None, "degree", "rcm"):
            graph = to_graph(plain if order == "shuffled" else ampgnn.reorder(plain, order))
            _ = graph.csr
            calls = bench.ours(bench.Case(graph, 256, 1, torch.bfloat16))
            names = ("u_mul_e sum", "u_dot_v", "edge_softmax", "GAT fwd+bwd")
            times = [f"{bench.best_time(calls[name]) * 1e3:.0f}" for name in names]
            label = "shuffled" if order == "shuffled" else f"reorder(graph{f', {order!r}' if order else ''})"
            print(
                f"| {kind}, {made.num_src:,} nodes, {made.num_edges:,} edges | {label} | {' | '.join(times)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
