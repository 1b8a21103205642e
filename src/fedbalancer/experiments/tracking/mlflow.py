"""A run as a run of MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbalancer.experiments.tracking.scalars import flat, run_name, scalars
from fedbalancer.experiments.tracking.sink import Sink

STATUS = {"done": "FINISHED", "stopped": "KILLED"}
LONGEST = 500
"""Letters of a value that MLflow keeps."""


class MLflow(Sink):
    """Logs to the tracking server `where`, by default the one that MLflow itself is set to. A client of its own, so
    that runs side by side do not meet in MLflow's global state."""

    def __init__(self, where: str | None, folder: Path | None) -> None:
        self._where = where
        self._client: Any = None
        self._run = ""

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._where)
        found = self._client.get_experiment_by_name("fedbalancer")
        experiment = self._client.create_experiment("fedbalancer") if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=run_name(manifest)).info.run_id
        for key, value in flat({name: manifest.get(name) for name in ("method", "seed", "settings")}):
            self._client.log_param(self._run, key, value[:LONGEST])

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._log(row, "round/")

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._log(row, f"{row.get('schedule', 'rounds')}/")

    def on_end(self, status: str) -> None:
        self._client.set_terminated(self._run, STATUS.get(status, "FAILED"))

    def _log(self, row: Mapping[str, Any], prefix: str) -> None:
        for name, value in scalars(row, prefix).items():
            self._client.log_metric(self._run, name, value, step=row["round"])
