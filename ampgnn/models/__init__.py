"""Models by name. A model is a class ``Model(layers, in_feats, num_classes, config)`` with ``forward(graph, features)``.

``layers`` offers ``GATConv`` and ``GraphConv``: ours (``ampgnn.nn``) or DGL's, with the same arguments.
To add a model, write one file here and register its class, and its defaults in ``ampgnn.config.DEFAULTS``.
"""

from .gat import GAT
from .gcn import GCN

MODELS = {"gat": GAT, "gcn": GCN}
