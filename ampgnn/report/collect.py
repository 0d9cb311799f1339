"""Result files and their MLflow runs, as one table of runs and their curves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ampgnn.config import parse
from ampgnn.errors import UserError

CURVES = ("train/loss", "val/acc")


@dataclass
class Collection:
    """Everything that a report tells.

    ``runs``: a row a seed; the configuration's fields, ``dataset``, ``id``, ``status``, ``reason``, ``stand_in``,
    ``run_id``, ``experiment``, ``from_mlflow`` and the final metrics. ``curves``: {(dataset, id, seed): a frame with
    a column a metric, a row an epoch}. ``results``: the result files, parsed. ``problems``: what could not be read.
    """

    runs: pd.DataFrame
    curves: dict[tuple[str, str, int], pd.DataFrame]
    results: list[dict]
    problems: list[str]


def collect(files: list[Path]) -> Collection:
    """Reads each run from MLflow by the id in its result file; from the files where the store cannot be reached.

    Raises:
        UserError: no result file, or one that is damaged.
    """
    if not files:
        raise UserError("no result.json to report on: run `ampgnn train` or the pipeline first")
    stores = _Stores()
    rows, curves, results = [], {}, []
    for file in map(Path, files):
        result = _parse(file)
        results.append(result)
        setting = parse(result["config"]).setting
        for run in result["runs"]:
            stored = stores.read(result["tracking"]["uri"], run["mlflow_run_id"])
            final, curve = stored or (run["final"], _curve(file.parent, run))
            key = result["config"]["dataset"], result["id"], run["seed"]
            curves[key] = curve
            rows.append(
                {
                    **{k: v for k, v in result["config"].items() if k != "seeds"},
                    "mode": result["config"]["mode"] or "",
                    "setting": setting,
                    "id": result["id"],
                    "stand_in": result["dataset"].get("origin") == "synthetic stand-in",
                    "threads": result.get("threads"),
                    "run_id": run["mlflow_run_id"],
                    "experiment": stores.experiment_of(run["mlflow_run_id"]),
                    "from_mlflow": stored is not None,
                    **{k: run[k] for k in ("seed", "status", "reason")},
                    **final,
                }
            )
    return Collection(pd.DataFrame(rows), curves, results, stores.problems())


def _parse(file: Path) -> dict:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not a result file: {error}") from None


def _curve(folder: Path, run: dict) -> pd.DataFrame:
    file = folder / run["metrics"] if run["metrics"] else None
    if file is None or not file.exists():
        return pd.DataFrame()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return pd.DataFrame(rows).set_index("step")[list(CURVES)] if rows else pd.DataFrame()


class _Stores:
    """The tracking stores that the runs name; one that fails is not asked again."""

    def __init__(self):
        self.clients: dict[str, object] = {}
        self.failed: dict[str, str] = {}
        self.experiments: dict[str, str] = {}
        self.missing: list[str] = []

    def read(self, uri: str, run_id: str | None) -> tuple[dict, pd.DataFrame] | None:
        if run_id is None or uri in self.failed:
            return None
        try:
            client = self._client(uri)
            run = client.get_run(run_id)
            self.experiments[run_id] = run.info.experiment_id
            final = {k.removeprefix("final/"): v for k, v in run.data.metrics.items() if k.startswith("final/")}
            curve = {name: self._history(client, run_id, name) for name in CURVES if name in run.data.metrics}
            return final, pd.DataFrame(curve)
        except Exception as error:
            if uri in self.clients:
                self.missing.append(run_id)
            else:
                self.failed[uri] = " ".join(str(error).split())[:200] or type(error).__name__
            return None

    def _client(self, uri: str):
        if uri not in self.clients:
            from ampgnn.tracking import open_store

            self.clients[uri] = open_store(uri)[0]
        return self.clients[uri]

    @staticmethod
    def _history(client, run_id: str, name: str) -> pd.Series:
        points = client.get_metric_history(run_id, name)
        return pd.Series({p.step: p.value for p in points}).sort_index()

    def experiment_of(self, run_id: str | None) -> str | None:
        return self.experiments.get(run_id)

    def problems(self) -> list[str]:
        found = [
            f"MLflow at {uri} could not be reached ({why}): its runs are read from result files"
            for uri, why in self.failed.items()
        ]
        if self.missing:
            found.append(f"{len(self.missing)} runs are no longer in MLflow: read from result files")
        return found
