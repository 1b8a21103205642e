"""Sinks of a test's own, which other processes can import."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbalancer.experiments.tracking import Sink


class Written(Sink):
    """Writes every call to the folder that the environment names."""

    def __init__(self) -> None:
        self._heard: list[tuple[str, Any]] = []

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        self._name = f"{manifest['method']}-{manifest['seed']}.json"

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._heard.append(("round", row["round"]))

    def on_end(self, status: str) -> None:
        (Path(os.environ["HEARD"]) / self._name).write_text(json.dumps([*self._heard, ("end", status)]))
