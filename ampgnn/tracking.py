"""MLflow: the only module, beside the report, that knows of it.

A store that cannot be reached never costs a result: the run goes on and says so.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

EXPERIMENT = "ampgnn"
BATCH_SECONDS = 5
MAX_BATCH = 1000  # metrics of one call, MLflow's limit

# Before MLflow is imported: no usage reports, no asynchronous logging (it loses rows without a word), and a server
# that is down is noticed within seconds, not minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ["MLFLOW_ENABLE_ASYNC_LOGGING"] = "false"
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")


def default_uri() -> str:
    """``MLFLOW_TRACKING_URI``, else SQLite under ``results/``; absolute."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('results').resolve() / 'mlflow.db'}"


def _database(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


@contextmanager
def _only_one(uri: str):
    """One process at a time sets up a SQLite store: MLflow's own migration breaks if two run at once."""
    database = _database(uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{database}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def open_store(uri: str | None = None):
    """A client of the store, which is created and migrated if need be, and the id of the project's experiment.

    Raises:
        Exception: whatever MLflow or the network raises.
    """
    import logging

    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow import MlflowClient

    uri = uri or default_uri()
    with _only_one(uri):
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            return client, experiment.experiment_id
        database = _database(uri)
        artifacts = None if database is None else str(database.parent.resolve() / "mlartifacts")
        return client, client.create_experiment(EXPERIMENT, artifact_location=artifacts)


class Tracker:
    """The MLflow runs of one configuration."""

    def __init__(self, config, record: dict, environment: dict, out: Path, uri: str | None = None):
        self.config, self.record, self.environment = config, record, environment
        self.uri = uri or default_uri()
        self.name = f"{config.dataset}/{config.id}"
        self.client = self.experiment = None
        self.problem: str | None = None
        try:
            self.client, self.experiment = open_store(self.uri)
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """From here on nothing is logged; said once."""
        self.client = None
        self.problem = " ".join(str(error).split())[:200] or type(error).__name__
        print(
            f"warning: MLflow at {self.uri} cannot be used, results stay in files: {self.problem}",
            file=sys.stderr,
        )

    def about(self) -> dict:
        reachable = self.client is not None
        return {"uri": self.uri, "experiment": EXPERIMENT, "reachable": reachable, "problem": self.problem}

    @contextmanager
    def run(self, seed: int):
        """A run for a seed, in place of earlier ones of the same configuration; its ``id`` is None without a store."""
        run = Run(self, seed)
        try:
            yield run
        except BaseException:
            run.end("FAILED")
            raise

    def tags(self, seed: int) -> dict[str, str]:
        config, record, environment = self.config, self.record, self.environment
        tags = {
            "mlflow.source.git.commit": environment["git_commit"],
            "mlflow.note.content": record.get("note"),
            "ampgnn.config_hash": config.hash,
            "ampgnn.seed": seed,
            "ampgnn.dataset": config.dataset,
            "ampgnn.origin": record.get("origin", "unavailable"),
            "ampgnn.git_dirty": environment["git_dirty"],
            "ampgnn.image": environment.get("image") or "none: the host's environment",
        }
        tags |= {f"ampgnn.{k}": getattr(config, k) for k in ("model", "precision", "mode", "backend", "device")}
        tags |= {f"ampgnn.machine.{k}": v for k, v in environment["machine"].items()}
        tags |= {f"ampgnn.version.{k}": v for k, v in environment["versions"].items()}
        return {k: str(v) for k, v in tags.items() if v is not None}


class Run:
    """One MLflow run: metrics are gathered and sent in batches."""

    def __init__(self, tracker: Tracker, seed: int):
        self.tracker, self.id = tracker, None
        self.pending: list = []
        self.sent = time.monotonic()
        self._try(lambda client: self._start(client, seed))

    def _try(self, action) -> None:
        if self.tracker.client is None:
            return
        try:
            action(self.tracker.client)
        except Exception as error:
            self.tracker.give_up(error)

    def _start(self, client, seed: int) -> None:
        from mlflow.entities import Param

        self._supersede(client, seed)
        name = f"{self.tracker.name}/s{seed}"
        self.id = client.create_run(self.tracker.experiment, tags=self.tracker.tags(seed), run_name=name).info.run_id
        params = {**self.tracker.config.model_dump(mode="json", exclude={"seeds"}), "seed": seed}
        client.log_batch(
            self.id,
            params=[Param(k, json.dumps(v) if isinstance(v, list) else str(v)) for k, v in params.items()],
        )
        self._log_dataset(client)

    def _supersede(self, client, seed: int) -> None:
        """Earlier runs of the configuration leave the list (deleted, not purged); one left running was killed."""
        from mlflow.entities import RunStatus

        query = f"tags.`ampgnn.config_hash` = '{self.tracker.config.hash}' and tags.`ampgnn.seed` = '{seed}'"
        for old in client.search_runs([self.tracker.experiment], query):
            if old.info.status == RunStatus.to_string(RunStatus.RUNNING):
                client.set_terminated(old.info.run_id, "KILLED")
            client.set_tag(old.info.run_id, "ampgnn.superseded", "true")
            client.delete_run(old.info.run_id)

    def _log_dataset(self, client) -> None:
        record = self.tracker.record
        if record["status"] != "ready":
            return
        from mlflow.data.http_dataset_source import HTTPDatasetSource
        from mlflow.data.meta_dataset import MetaDataset
        from mlflow.entities import DatasetInput, InputTag

        source = HTTPDatasetSource(url=(record["urls"] or [f"{record['origin']}:{record['key']}"])[0])
        dataset = MetaDataset(source, name=record["key"], digest=record["digest"][:12])
        tags = [InputTag("mlflow.data.context", "training"), InputTag("origin", record["origin"])]
        client.log_inputs(self.id, datasets=[DatasetInput(dataset._to_mlflow_entity(), tags)])

    def log(self, metrics: dict) -> None:
        """Takes an epoch's metrics with their ``step``."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        step = metrics["step"]
        self.pending += [Metric(k, float(v), now, step) for k, v in metrics.items() if k != "step"]
        if time.monotonic() - self.sent > BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        while self.pending and self.tracker.client is not None:
            batch, self.pending = self.pending[:MAX_BATCH], self.pending[MAX_BATCH:]
            self._try(lambda client, batch=batch: client.log_batch(self.id, metrics=batch))
        self.sent = time.monotonic()

    def finish(self, status: str, reason: str | None, final: dict, artifacts: list[Path]) -> None:
        """Ends the run with its status ("finished", "failed" or "not_run"), final metrics and files."""
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        self.pending += [Metric(f"final/{k}", float(v), now, 0) for k, v in final.items()]
        self.flush()

        def send(client):
            client.log_batch(self.id, tags=[RunTag("ampgnn.status", status), RunTag("ampgnn.reason", reason or "")])
            for file in artifacts:
                client.log_artifact(self.id, str(file))
            client.log_text(self.id, _frozen(), "environment.txt")
            client.log_text(self.id, json.dumps(self.tracker.environment, indent=1), "environment.json")

        self._try(send)
        self.end("FAILED" if status == "failed" else "FINISHED")

    def end(self, status: str) -> None:
        if self.id is not None:
            self._try(lambda client: client.set_terminated(self.id, status))


def _frozen() -> str:
    from importlib.metadata import distributions

    return "\n".join(sorted({f"{d.metadata['Name']}=={d.version}" for d in distributions()}, key=str.lower)) + "\n"
