"""The real datasets by name: where they come from and what they are."""

from __future__ import annotations

from dataclasses import dataclass

from .base import DatasetError, NodeDataset, Provenance

NO_DIGEST = "not published"


@dataclass(frozen=True)
class Entry:
    """A dataset at its source. ``edges``: both directions, no self loops added. ``split``: train, validation, test."""

    title: str
    file: str  # below the cache and a mirror; {part} stands for the parts of several files
    urls: tuple[str, ...]
    sha256: dict[str, str]  # of each file; empty where the source publishes none and it could not be fetched
    license: str
    nodes: int
    edges: int
    features: int
    classes: int
    split: tuple[int, int, int]

    def provenance(self, note: str, digests: dict[str, str]) -> Provenance:
        """``digests``: those of the files that were read."""
        return Provenance(origin="download", note=note, license=self.license, urls=list(self.urls[:1]), sha256=digests)

    def check(self, dataset: NodeDataset) -> NodeDataset:
        """The dataset itself, if it has the entry's nodes, features, classes and split.

        Raises:
            DatasetError: naming what differs.
        """
        masks = (dataset.train_mask, dataset.val_mask, dataset.test_mask)
        found = {
            "nodes": dataset.num_nodes,
            "features": dataset.features.shape[1],
            "classes": dataset.num_classes,
            "split": tuple(int(mask.sum()) for mask in masks),
        }
        for name, value in found.items():
            if value != getattr(self, name):
                raise DatasetError(f"{dataset.name}: {name} must be {getattr(self, name)}, got {value}")
        return dataset


_PLANETOID = (
    "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data/{file}",
    "https://github.com/kimiyoung/planetoid/raw/master/data/{file}",
)
_CITESEER = {
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
}
_MIT = "MIT (Planetoid, Zhilin Yang)"

CATALOGUE = {
    "cora": Entry(
        "Cora, citation network, Planetoid split",
        "planetoid/ind.cora.{part}", _PLANETOID, {}, _MIT, 2708, 10556, 1433, 7, (140, 500, 1000),
    ),
    "citeseer": Entry(
        "Citeseer, citation network, Planetoid split",
        "planetoid/ind.citeseer.{part}", _PLANETOID, _CITESEER, _MIT, 3327, 9228, 3703, 6, (120, 500, 1000),
    ),
    "pubmed": Entry(
        "Pubmed, citation network, Planetoid split",
        "planetoid/ind.pubmed.{part}", _PLANETOID, {}, _MIT, 19717, 88651, 500, 3, (60, 500, 1000),
    ),
    "reddit": Entry(
        "Reddit posts of September 2014 (Hamilton et al., 2017)",
        "reddit/reddit.zip", ("https://data.dgl.ai/dataset/reddit.zip",), {}, "not stated by DGL",
        232965, 114615892, 602, 41, (153431, 23831, 55703),
    ),
    "ogbn-arxiv": Entry(
        "arXiv's computer science papers and their citations (Hu et al., 2020), taken in both directions",
        "ogb/arxiv.zip", ("http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",), {}, "ODC-BY",
        169343, 2315598, 128, 40, (90941, 29799, 48603),
    ),
    "ogbn-products": Entry(
        "Amazon's products bought together (Hu et al., 2020)",
        "ogb/products.zip", ("http://snap.stanford.edu/ogb/data/nodeproppred/products.zip",), {}, "Amazon license",
        2449029, 123718280, 100, 47, (196615, 39323, 2213091),
    ),
}  # fmt: skip


def markdown() -> str:
    """The catalogue as a table."""
    lines = [
        "| name | what | from | SHA-256 | licence | nodes | edges | features | classes | train / validation / test |"
    ]
    lines.append("|" + " --- |" * 10)
    for name, e in CATALOGUE.items():
        digest = "each file's, in `ampgnn/datasets/catalogue.py`" if e.sha256 else NO_DIGEST
        sizes = [f"{n:,}" for n in (e.nodes, e.edges, e.features, e.classes)]
        split = " / ".join(f"{n:,}" for n in e.split)
        source = e.urls[0].format(file=e.file.rpartition("/")[2].format(part="*"))
        cells = [
            f"`{name}`",
            e.title,
            f"<{source}>" if "*" not in source else f"`{source}`",
            digest,
            e.license,
            *sizes,
            split,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
