"""A run as a run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbalancer.experiments.tracking.scalars import flat, run_name, scalars
from fedbalancer.experiments.tracking.sink import Sink


class WandB(Sink):
    """Logs to the project `where`, by default `fedbalancer`. Every number stands over its round."""

    def __init__(self, where: str | None, folder: Path | None) -> None:
        self._project, self._folder = where or "fedbalancer", folder
        self._run: Any = None

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        import wandb

        config = {"method": manifest.get("method"), "seed": manifest.get("seed"), **dict(flat(manifest["settings"]))}
        self._run = wandb.init(
            project=self._project, name=run_name(manifest), config=config, reinit="create_new",
            dir=None if self._folder is None else str(self._folder),
        )  # fmt: skip
        self._run.define_metric("*", step_metric="round")

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._run.log({"round": row["round"], **scalars(row, "round/")})

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._run.log({"round": row["round"], **scalars(row, f"{row.get('schedule', 'rounds')}/")})

    def on_end(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "done" else 1)
