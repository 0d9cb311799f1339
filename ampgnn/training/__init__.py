"""Training one configuration: the stage ``ampgnn train``."""

from .stage import run_config

__all__ = ["run_config"]
