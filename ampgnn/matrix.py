"""The pipeline's matrix: blocks of alternatives, expanded to configurations."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from .config import ConfigError, RunConfig, parse, read_yaml

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
                raise ConfigError(
                    f"{where}: dataset '{values.get('dataset')}' is not under datasets, allowed are {allowed}"
                )
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


def validate(workflow_config: dict, schema: Path) -> None:
    """Checks the pipeline's configuration against its JSON schema.

    Raises:
        ConfigError: one line naming the key and what is allowed.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    problem = best_match(Draft202012Validator(read_yaml(schema)).iter_errors(workflow_config))
    if problem is None:
        return
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in problem.absolute_path).lstrip(".")
    message = problem.message
    if problem.validator == "additionalProperties":
        unknown = sorted(set(problem.instance) - set(problem.schema["properties"]))
        message = f"unknown key '{unknown[0]}', allowed are {', '.join(problem.schema['properties'])}"
    raise ConfigError(f"config{' ' + where if where else ''}: {message}")
