"""One training configuration: validated, with the user guide's defaults."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .errors import UserError

Precision = Literal["fp32", "fp16", "bf16"]
Mode = Literal["amp", "pure"]
Backend = Literal["native", "dgl"]
Device = Literal["cpu", "cuda"]

# The chapter's two examples. A model's file may add its own (see ampgnn.models.register).
DEFAULTS: dict[str, dict] = {
    "gat": {
        "hidden": 256,
        "heads": (1, 1, 1),
        "lr": 1e-3,
        "weight_decay": 5e-4,
        "dropout": 0.0,
        "epochs": 100,
    },
    "gcn": {"hidden": 16, "heads": None, "lr": 1e-2, "weight_decay": 5e-4, "dropout": 0.5, "epochs": 100},
}

LAYERS = {"gat": 3, "gcn": 2}
FANOUT = 10  # of each layer, unless the configuration says otherwise


class ConfigError(UserError):
    """A configuration with an unknown key or a value that is not allowed."""


class RunConfig(BaseModel):
    """What one training job does: a model on a dataset in one precision, once for each seed.

    ``mode`` says how half precision is used: "amp" keeps float32 weights under autocast, "pure" converts model and
    features. float32 has no mode. Without ``batch_size`` an epoch is one step on the whole graph; with it, a step for
    each batch of so many training nodes, of whose in-edges layer k keeps at most ``fanouts[k]``. With ``recompute`` the
    backward pass makes a layer's activations again instead of keeping them, with the same results. A checkpoint is
    written every ``checkpoint_epochs`` epochs and once ``checkpoint_minutes`` have passed since the last. ``cuda_graph`` records the
    passes of a training step on the whole graph once and replays them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    model: str
    precision: Precision
    mode: Mode | None = "amp"
    backend: Backend = "native"
    device: Device = "cpu"
    cuda_graph: bool = False
    heads: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    hidden: Annotated[int, Field(ge=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0,)
    epochs: Annotated[int, Field(ge=1)]
    lr: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    recompute: bool = False
    batch_size: Annotated[int, Field(ge=1)] | None = None
    fanouts: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    checkpoint_epochs: Annotated[int, Field(ge=1)] | None = None
    checkpoint_minutes: Annotated[float, Field(ge=0)] = 5.0

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values):
        model = values.get("model")
        if model not in DEFAULTS:
            raise ValueError(f"model: unknown model '{model}', allowed are {', '.join(DEFAULTS)}")
        values = {**DEFAULTS[model], **{k: v for k, v in values.items() if v is not None or k == "heads"}}
        if DEFAULTS[model]["heads"] is None and values["heads"] is not None:
            raise ValueError(f"heads: the model {model} has none, leave them out")
        if DEFAULTS[model]["heads"] is not None:
            layers = LAYERS[model]
            values["heads"] = values["heads"] or DEFAULTS[model]["heads"]
            if len(values["heads"]) != layers:
                raise ValueError(f"heads: {model} has {layers} layers, got {len(values['heads'])} numbers of heads")
        if values.get("precision") == "fp32":
            values["mode"] = None
        if values.get("cuda_graph") and (values.get("device"), values.get("backend", "native")) != ("cuda", "native"):
            raise ValueError("cuda_graph: needs device cuda and backend native")
        if values.get("cuda_graph") and values.get("batch_size") is not None:
            raise ValueError("cuda_graph: mini-batches change their shapes, leave out batch_size")
        return cls._fill_fanouts(values)

    @staticmethod
    def _fill_fanouts(values):
        layers = LAYERS[values["model"]]
        if values.get("batch_size") is None:
            if values.get("fanouts") is not None:
                raise ValueError("fanouts: they are for mini-batches, give batch_size too")
            return values
        values["fanouts"] = values.get("fanouts") or (FANOUT,) * layers
        if len(values["fanouts"]) != layers:
            raise ValueError(f"fanouts: {values['model']} has {layers} layers, got {len(values['fanouts'])} fanouts")
        return values

    @property
    def id(self) -> str:
        """Short name, unique within a dataset's matrix: ``gat-h2.2.2-fp16-amp-native-cpu``."""
        heads = [] if self.heads is None else ["h" + ".".join(map(str, self.heads))]
        mode = [] if self.mode is None else [self.mode]
        batch = [] if self.batch_size is None else [f"b{self.batch_size}"]
        batch += ["recompute"] if self.recompute else []
        return "-".join([self.model, *heads, self.precision, *mode, self.backend, self.device, *batch])

    @property
    def setting(self) -> str:
        """What configurations have in common that are compared: ``heads 2 2 2, batches of 1024``; may be empty."""
        heads = [] if self.heads is None else ["heads " + " ".join(map(str, self.heads))]
        batch = [] if self.batch_size is None else [f"batches of {self.batch_size}"]
        return ", ".join([*heads, *batch, *(["recompute"] if self.recompute else [])])

    @property
    def hash(self) -> str:
        """Digest of everything that the results depend on but the seeds."""
        beside = {"seeds", "checkpoint_epochs", "checkpoint_minutes"}
        text = json.dumps(self.model_dump(mode="json", exclude=beside), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def choices(field: str) -> tuple[str, ...]:
    """The allowed values of a field with named choices."""
    return get_args({"precision": Precision, "mode": Mode, "backend": Backend, "device": Device}[field])


def parse(values: dict, where: str = "configuration") -> RunConfig:
    """The configuration in a mapping.

    Raises:
        ConfigError: one line naming the key and what is allowed.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected keys and values, got {type(values).__name__}")
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_line(error)}") from None


def _first_line(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{key}', allowed are {', '.join(RunConfig.model_fields)}"
    if problem["type"] == "missing":
        return f"{key} is missing"
    return f"{key}: {message}, got {problem['input']!r}" if key else message


def load(path: Path) -> RunConfig:
    """The configuration in a YAML file.

    Raises:
        ConfigError: no such file, no YAML or a wrong value.
    """
    return parse(read_yaml(path), str(path))


def read_yaml(path: Path):
    try:
        return yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def dump(config: RunConfig) -> str:
    """The configuration as YAML that ``load`` reads."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
