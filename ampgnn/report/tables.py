"""A row a configuration: mean and spread over its seeds, and how it compares."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

LOSS_TOLERANCE, ACCURACY_TOLERANCE = 0.02, 0.01  # of float32; numerics.md's bound for training


@dataclass
class Row:
    """One configuration. Numbers are None where it did not run."""

    id: str
    precision: str
    mode: str
    backend: str
    device: str
    setting: str
    seeds: int
    epochs: int
    time_only: bool  # trained for fewer epochs than the others of its table: its loss says nothing
    loss: tuple[float, float] | None = None  # mean, standard deviation
    accuracy: tuple[float, float] | None = None
    seconds: tuple[float, float] | None = None  # of an epoch's training step
    memory: float | None = None  # bytes of tensors at the peak, largest of the seeds
    resident: float | None = None  # bytes of the process at the peak; on CUDA those that torch reserved there
    planned: float | None = None  # bytes of tensors that `ampgnn plan` predicts
    speedup: float | None = None  # over DGL fp32 in the same setting on the same device
    over_fp32: float | None = None  # over fp32 of its own backend, likewise
    runs: list[dict] = field(default_factory=list)  # run_id, experiment, seed, status

    @property
    def name(self) -> str:
        parts = [self.precision, self.mode, self.backend, self.device if self.device != "cpu" else ""]
        return " ".join(p for p in parts if p)


@dataclass
class Table:
    """All configurations of a dataset and a model."""

    dataset: str
    model: str
    stand_in: bool
    note: str
    rows: list[Row]
    not_run: list[tuple[str, str]]  # configuration, reason
    verdicts: list[str]

    @property
    def anchor(self) -> str:
        return f"{self.dataset}-{self.model}".replace(".", "-")

    @property
    def has_settings(self) -> bool:
        """Whether the rows need a column that tells their settings apart."""
        return any(row.setting for row in self.rows)


def make(runs: pd.DataFrame, notes: dict[str, str], planned: dict[tuple[str, str], int]) -> list[Table]:
    """A table for each dataset and model, in the order of the runs; ``planned``: bytes by dataset and id."""
    tables = [
        _table(dataset, model, group, notes.get(dataset, ""))
        for (dataset, model), group in runs.groupby(["dataset", "model"], sort=False)
    ]
    for table in tables:
        for row in table.rows:
            row.planned = planned.get((table.dataset, row.id))
    return tables


def _table(dataset: str, model: str, group: pd.DataFrame, note: str) -> Table:
    longest = group["epochs"].max()
    rows, not_run = [], []
    for _, config in group.groupby("id", sort=False):
        row = _row(config, longest)
        rows.append(row)
        not_run += [(row.id, reason) for reason in config.loc[config.status != "finished", "reason"].unique()]
    rows = [r for r in rows if r.seconds is not None]
    for row in rows:
        row.speedup, row.over_fp32 = _speedup(row, rows, "dgl"), _speedup(row, rows, row.backend)
    rows.sort(key=lambda r: (r.setting, r.device, r.backend == "native", r.precision != "fp32", r.precision, r.mode))
    return Table(dataset, model, bool(group["stand_in"].any()), note, rows, not_run, _verdicts(rows))


def _row(config: pd.DataFrame, longest: int) -> Row:
    first = config.iloc[0]
    row = Row(
        id=first["id"],
        precision=first["precision"],
        mode=first["mode"],
        backend=first["backend"],
        device=first["device"],
        setting=first["setting"],
        seeds=len(config),
        epochs=int(first["epochs"]),
        time_only=bool(first["epochs"] < longest),
        runs=config[["run_id", "experiment", "seed", "status"]].to_dict("records"),
    )
    done = config[config.status == "finished"]
    if len(done):
        row.loss, row.accuracy = _spread(done["train/loss"]), _spread(done["test/acc"])
        row.seconds = _spread(done["epoch_seconds"])
        row.memory = float(done["peak_tensor_bytes"].max())
        row.resident = float(done["peak_reserved_bytes" if row.device == "cuda" else "peak_rss_bytes"].max())
    return row


def _spread(values: pd.Series) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _speedup(row: Row, rows: list[Row], backend: str) -> float | None:
    for base in rows:
        if (base.backend, base.precision, base.setting, base.device) == (backend, "fp32", row.setting, row.device):
            return base.seconds[0] / row.seconds[0]
    return None


def _verdicts(rows: list[Row]) -> list[str]:
    """Whether each half-precision configuration ends where float32 does, both on the native kernels."""
    said = []
    for base in rows:
        if (base.backend, base.precision) != ("native", "fp32") or base.time_only:
            continue
        for row in rows:
            same = (row.backend, row.setting, row.device) == (base.backend, base.setting, base.device)
            if not same or row.precision == "fp32" or row.time_only:
                continue
            loss, accuracy = row.loss[0] / base.loss[0] - 1, row.accuracy[0] - base.accuracy[0]
            fits = abs(loss) <= LOSS_TOLERANCE and abs(accuracy) <= ACCURACY_TOLERANCE
            setting = f", {row.setting}," if row.setting else ""
            seeds = f"{row.seeds} seed{'s' if row.seeds > 1 else ''}"
            verdict = "matches fp32" if fits else "differs from fp32"
            said.append(
                f"{row.precision} {row.mode}{setting} {verdict}: loss {loss:+.2%}, test accuracy {accuracy * 100:+.2f} points ({seeds})"
            )
    return said
