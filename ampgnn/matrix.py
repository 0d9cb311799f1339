"""The pipeline's matrix: blocks of alternatives, expanded to configurations."""

from __future__ import annotations

from itertools import product

from .config import ConfigError, RunConfig, parse

AXES = ("dataset", "model", "heads", "precision", "mode", "backend", "device")


def expand(workflow_config: dict) -> list[RunConfig]:
    """Every configuration of ``matrix``, in order, each once.

    A block gives, for each of ``AXES``, one value or a list of alternatives (heads: a list, or a list of lists), and
    for any other key of ``RunConfig`` the value.

    Raises:
        ConfigError: naming the block and the key; also if two blocks define a configuration differently.
    """
    known = workflow_config.get("datasets", {})
    found: dict[tuple[str, str], RunConfig] = {}
    for number, block in enumerate(workflow_config.get("matrix", [])):
        where = f"matrix[{number}]"
        for values in _combinations(block):
            if values.get("dataset") not in known:
                allowed = ", ".join(known) or "none"
                raise ConfigError(f"{where}: dataset '{values.get('dataset')}' is not under datasets, allowed are {allowed}")
            config = parse(values, where)
            name = f"{config.dataset}/{config.id}"
            if found.setdefault(name, config) != config:
                raise ConfigError(f"{where}: {name} is defined twice, with other values than before")
    return list(found.values())


def _combinations(block: dict):
    axes = [axis for axis in AXES if axis in block]
    rest = {key: value for key, value in block.items() if key not in axes}
    for chosen in product(*(_alternatives(axis, block[axis]) for axis in axes)):
        yield {**rest, **dict(zip(axes, chosen, strict=True))}


def _alternatives(axis: str, value) -> list:
    if axis == "heads":
        return value if value and isinstance(value[0], list) else [value]
    return value if isinstance(value, list) else [value]
