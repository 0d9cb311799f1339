"""Mixed-precision training of graph neural networks: right, fast and reproducible."""

__version__ = "0.1.0"
