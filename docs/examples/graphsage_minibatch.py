"""GraphSAGE on sampled neighbourhoods in half precision: DGL's own sampler and layers, on ampgnn's kernels.

python docs/examples/graphsage_minibatch.py --precision bf16
"""

import argparse

import ampgnn  # isort: skip  (before dgl: DGL 2.1 would not import beside a torch newer than its own)
import dgl
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler
from dgl.nn import SAGEConv

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class GraphSAGE(torch.nn.Module):
    def __init__(self, in_feats, hidden, classes):
        super().__init__()
        self.layers = torch.nn.ModuleList([SAGEConv(in_feats, hidden, "mean"), SAGEConv(hidden, classes, "mean")])

    def forward(self, blocks, h):
        for layer, block in zip(self.layers, blocks, strict=True):
            h = layer(block, h)
            if layer is not self.layers[-1]:
                h = F.relu(h)
        return h


def communities(nodes=3000, classes=5, degree=12, width=32):
    """A graph whose nodes link mostly to their own class, with features that tell little of it."""
    label = torch.arange(nodes) % classes
    src = torch.randint(nodes, (nodes * degree,))
    own = label[src] + classes * torch.randint(nodes // classes, src.shape)
    dst = torch.where(torch.rand(src.shape) < 0.8, own, torch.randint(nodes, src.shape))
    g = dgl.to_bidirected(dgl.graph((src, dst), num_nodes=nodes))
    g.ndata["label"] = label
    g.ndata["feat"] = 2 * F.one_hot(label, width) + torch.randn(nodes, width)
    return g


def main(precision="bf16", epochs=3, workers=0):
    """Trains; returns the accuracy on the nodes that were not trained on."""
    torch.manual_seed(0)
    dgl.seed(0)
    ampgnn.enable()
    g = communities()
    order = torch.randperm(g.num_nodes())
    train, test = order[:1500], order[1500:]
    sampler = NeighborSampler([10, 10], prefetch_node_feats=["feat"], prefetch_labels=["label"])

    def batches(nodes, shuffle):
        return DataLoader(g, nodes, sampler, batch_size=256, shuffle=shuffle, num_workers=workers)

    model = GraphSAGE(g.ndata["feat"].shape[1], 64, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    autocast = torch.amp.autocast("cpu", dtype=DTYPES[precision], enabled=precision != "fp32")
    for epoch in range(epochs):
        model.train()
        for _, _, blocks in batches(train, shuffle=True):
            with autocast:
                logits = model(blocks, blocks[0].srcdata["feat"])
                loss = F.cross_entropy(logits, blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        model.eval()
        right = 0
        with torch.no_grad(), autocast:
            for _, _, blocks in batches(test, shuffle=False):
                logits = model(blocks, blocks[0].srcdata["feat"])
                right += (logits.argmax(1) == blocks[-1].dstdata["label"]).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {right / len(test):.3f}")
    return right / len(test)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=DTYPES, default="bf16")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="processes that sample")
    arguments = parser.parse_args()
    main(arguments.precision, arguments.epochs, arguments.workers)
