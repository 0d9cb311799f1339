"""Models by name. A model is a class ``Model(layers, in_feats, num_classes, config)`` with ``forward(graph, features)``.

``layers`` offers ``GATConv`` and ``GraphConv``: ours (``ampgnn.nn``) or DGL's, with the same arguments.
``graph`` is one graph for all layers, or a list of a mini-batch's blocks, one a layer. To add a model, write one file here and register its class, and its defaults and layers in ``ampgnn.config``.
"""

from .gat import GAT
from .gcn import GCN

MODELS = {"gat": GAT, "gcn": GCN}
