"""A run as TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbalancer.experiments.tracking.scalars import flat, run_name, scalars
from fedbalancer.experiments.tracking.sink import Sink


class TensorBoard(Sink):
    """Writes to a folder of the run's own below `where`, by default to `tensorboard/` in the run folder."""

    def __init__(self, where: str | None, folder: Path | None) -> None:
        self._where, self._folder = where, folder
        self._writer: Any = None

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        from tensorboardX import SummaryWriter

        name = "".join(sign if sign.isalnum() or sign in "+-.=" else "-" for sign in run_name(manifest))
        place = Path(self._where or "runs/tensorboard") / name
        if self._where is None and self._folder is not None:
            place = self._folder / "tensorboard"
        self._writer = SummaryWriter(str(place))
        settings = [f"    {key}: {value}" for key, value in flat(manifest.get("settings", {}))]
        self._writer.add_text("settings", "\n".join(settings))

    def on_round(self, row: Mapping[str, Any]) -> None:
        for name, value in scalars(row, "round/").items():
            self._writer.add_scalar(name, value, row["round"])

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        for name, value in scalars(row, f"{row.get('schedule', 'rounds')}/").items():
            self._writer.add_scalar(name, value, row["round"])

    def on_end(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()
