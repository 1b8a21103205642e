"""A run that a test writes round by round, as a run in another process would."""

from __future__ import annotations

from pathlib import Path

from fedbalancer.store import ClientRow, EvalRow, RoundRow, RunFolder, new_manifest


def begun(path: Path, method: str = "fedbalancer", seed: int = 0, *, overwrite: bool = False) -> RunFolder:
    """A new run folder, still without a round."""
    task = {"name": "har", "variant": "", "scale": "small"}
    manifest = new_manifest(task=task, method=method, seed=seed, settings={"epochs": 5}, budget_s=1000.0)
    return RunFolder.create(path, manifest, overwrite=overwrite)


def add_round(folder: RunFolder, number: int, accuracy: float) -> None:
    """One more round of 10 s, with an evaluation."""
    start_s, end_s = 10.0 * (number - 1), 10.0 * number
    row = RoundRow(number, start_s, end_s, 12.0, 0.5, 0.1, 0.9, 2, 1, 100, 5.0, None, 1000, 500, 15.0, 500.0)
    clients = [
        ClientRow(number, "a", 1.0, 0.5, 6.0, 1.0, 0.0, 5.0, 100, "completed"),
        ClientRow(number, "b", 1.0, 0.5, 9.0, 0.0, 0.0, 0.0, 100, "train"),
    ]
    folder.record(row, [EvalRow(number, start_s, end_s, accuracy, 1 - accuracy)], clients)
