"""What the runs of a report gave away about their clients' losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from fedbalancer.report.stored import Results, StoredRun

ABOUT = (
    "Metadata only: what clients tell of their losses. Not covered are the updates of the model, how many samples a "
    "client has, and when its replies arrive. Every report of a client counts; that it was drawn by chance is no "
    "discount."
)


@dataclass(frozen=True)
class Given:
    """What one method gave away. `epsilon` is that of the client with most releases, over all its runs (infinite
    without noise, None where it is not known, and then `why`), `median` that of the client in the middle. Where noise
    is added to the model, `model` is its epsilon for one client, and `whole` that of model and metadata together;
    `model_why` and `whole_why` say why they are infinite."""

    method: str
    mechanism: str
    unit: str
    delta: float
    epsilon: float | None
    median: float | None = None
    releases: int | None = None
    why: str = ""
    model: float | None = None
    whole: float | None = None
    model_why: str = ""
    whole_why: str = ""

    @property
    def sentence(self) -> str:
        """In words."""
        if self.model is None or self.whole is None:
            return self._metadata
        return (
            f"{self._metadata}; model: {_at_most(self.model, self.model_why)} for one client; both together: "
            f"{_at_most(self.whole, self.whole_why)} for one {self.unit}; to all who see them but not the updates"
        )

    @property
    def _metadata(self) -> str:
        if self.epsilon is None:
            return f"{self.mechanism}: epsilon not known, {self.why} (metadata only)"
        if math.isinf(self.epsilon):
            because = "no noise is added" if self.mechanism == "none" else "one sample can change it without bound"
            return f"{self.mechanism}: epsilon infinite, because {because} (metadata only)"
        most = "" if self.releases is None else f" after {self.releases} reports"
        return (
            f"{self.mechanism}: epsilon at most {self.epsilon:.3g}{most} for one {self.unit} "
            f"at delta {self.delta:g} (metadata only)"
        )

    @property
    def cells(self) -> list[str]:
        """The row of a table under `HEADER`."""
        return [
            self.method, self.mechanism, self.unit, _text(self.epsilon) if self.epsilon is not None else self.why,
            _text(self.median), "–" if self.releases is None else str(self.releases), f"{self.delta:g}",
            _text(math.inf if self.model is None else self.model),
        ]  # fmt: skip


HEADER = [
    "Method", "Mechanism", "Hides one", "Epsilon, most", "Epsilon, median client", "Reports, most", "Delta",
    "Epsilon of the model",
]  # fmt: skip


def given_away(results: Results) -> Iterator[Given]:
    """By method, as far as its runs say; those of older versions do not."""
    for method in results.methods:
        runs = [run for run in results.runs if run.curve.method == method]
        told = [run for run in runs if isinstance(run.manifest.get("privacy"), Mapping)]
        with suppress(KeyError, TypeError, ValueError):  # of a damaged manifest nothing is said
            if told:
                yield _given(method, told)


def markdown_privacy(results: Results) -> str:
    """A line per method for table.md; empty where no method has noise."""
    found = list(given_away(results))
    if all(each.epsilon is not None and math.isinf(each.epsilon) for each in found):
        return ""
    lines = [f"- {each.method}: {each.sentence}" for each in found]
    return "\n".join(["## Privacy of the metadata", "", *lines, "", ABOUT]) + "\n"


def _given(method: str, runs: list[StoredRun]) -> Given:
    told: Mapping[str, Any] = runs[0].manifest["privacy"]
    known = Given(method, str(told["mechanism"]), str(told["unit"]), float(told["delta"]), None)
    noise_multiplier = float(told["noise_multiplier"])
    rows = pl.concat([run.privacy for run in runs])
    if told.get("model_noise_multiplier") is not None:
        known = replace(
            known, model=_most(rows, "model_epsilon"), whole=_most(rows, "whole_epsilon"),
            model_why=str(told["model_why"]), whole_why=str(told["whole_why"]),
        )  # fmt: skip
    if noise_multiplier == 0 or math.isinf(noise_multiplier):
        return replace(known, epsilon=0.0 if noise_multiplier else math.inf)
    if not rows.height:
        return replace(known, why="nothing has been counted yet")
    known = replace(known, releases=int(rows["releases"].max()))  # type: ignore[arg-type]
    if rows["epsilon"].null_count():
        return replace(known, why="dp-accounting was not installed")
    return replace(known, epsilon=_most(rows, "epsilon"), median=float(rows["epsilon"].median()))  # type: ignore[arg-type]


def _most(rows: pl.DataFrame, column: str) -> float | None:
    """The highest epsilon in a column; None if one is not known, or there is none."""
    return None if not rows.height or rows[column].null_count() else float(rows[column].max())  # type: ignore[arg-type]


def _at_most(epsilon: float, why: str) -> str:
    return f"epsilon infinite, because {why}," if why else f"epsilon at most {_text(epsilon)}"


def _text(epsilon: float | None) -> str:
    if epsilon is None:
        return "–"
    return "∞" if math.isinf(epsilon) else f"{epsilon:.3g}"
