"""The privacy loss of the clients' metadata, by method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from fedbalancer.reporting.results import Results, StoredRun

ABOUT = (
    "Metadata only: the loss statistics that clients send. Model updates, the number of samples of a client and the "
    "arrival times of its replies are not covered. Every report of a client counts; there is no amplification by "
    "client sampling."
)
HEADER = [
    "Method", "Mechanism", "Protected unit", "Epsilon, maximum", "Epsilon, median client", "Reports, maximum", "Delta",
    "Epsilon of the model",
]  # fmt: skip


@dataclass(frozen=True)
class PrivacyLoss:
    """The privacy loss of one method.

    Attributes:
        method: Name of the method.
        mechanism: The noise mechanism, or "none".
        unit: The protected unit, such as "sample" or "client".
        delta: The delta of the guarantee.
        epsilon: Epsilon of the client with most releases, over all runs; infinite without noise, None if unknown.
        median: Epsilon of the median client.
        releases: Number of releases of the client with most releases.
        why: Why `epsilon` is unknown.
        model: Epsilon of the model for one client, if noise is added to the model.
        whole: Epsilon of model and metadata together, if noise is added to the model.
        model_why: Why `model` is infinite.
        whole_why: Why `whole` is infinite.
    """

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
        """The guarantee in words."""
        if self.model is None or self.whole is None:
            return self._metadata
        return (
            f"{self._metadata}; model: {_at_most(self.model, self.model_why)} for one client; both together: "
            f"{_at_most(self.whole, self.whole_why)} for one {self.unit}; against anyone who sees these but not the "
            "updates"
        )

    @property
    def _metadata(self) -> str:
        if self.epsilon is None:
            return f"{self.mechanism}: epsilon unknown, {self.why} (metadata only)"
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
        """A table row under `HEADER`."""
        return [
            self.method, self.mechanism, self.unit, _text(self.epsilon) if self.epsilon is not None else self.why,
            _text(self.median), "–" if self.releases is None else str(self.releases), f"{self.delta:g}",
            _text(math.inf if self.model is None else self.model),
        ]  # fmt: skip


def account_privacy(results: Results) -> Iterator[PrivacyLoss]:
    """Yield the privacy loss of every method whose runs recorded it.

    Args:
        results: The runs.
    """
    for method in results.methods:
        runs = [run for run in results.runs if run.curve.method == method]
        recorded = [run for run in runs if isinstance(run.manifest.get("privacy"), Mapping)]
        with suppress(KeyError, TypeError, ValueError):  # a damaged manifest
            if recorded:
                yield _account_method(method, recorded)


def markdown_privacy(results: Results) -> str:
    """Return a Markdown section with a line per method; empty if no method adds noise."""
    losses = list(account_privacy(results))
    if all(loss.epsilon is not None and math.isinf(loss.epsilon) for loss in losses):
        return ""
    lines = [f"- {loss.method}: {loss.sentence}" for loss in losses]
    return "\n".join(["## Privacy of the metadata", "", *lines, "", ABOUT]) + "\n"


def _account_method(method: str, runs: list[StoredRun]) -> PrivacyLoss:
    settings: Mapping[str, Any] = runs[0].manifest["privacy"]
    loss = PrivacyLoss(
        method, str(settings["mechanism"]), str(settings["unit"]), float(settings["delta"]), epsilon=None
    )
    noise_multiplier = float(settings["noise_multiplier"])
    rows = pl.concat([run.privacy for run in runs])
    if settings.get("model_noise_multiplier") is not None:
        loss = replace(
            loss, model=_highest(rows, "model_epsilon"), whole=_highest(rows, "whole_epsilon"),
            model_why=str(settings["model_why"]), whole_why=str(settings["whole_why"]),
        )  # fmt: skip
    if noise_multiplier == 0 or math.isinf(noise_multiplier):
        return replace(loss, epsilon=0.0 if noise_multiplier else math.inf)
    if not rows.height:
        return replace(loss, why="no release is recorded yet")
    loss = replace(loss, releases=int(rows["releases"].max()))  # type: ignore[arg-type]
    if rows["epsilon"].null_count():
        return replace(loss, why="dp-accounting was not installed")
    return replace(loss, epsilon=_highest(rows, "epsilon"), median=float(rows["epsilon"].median()))  # type: ignore[arg-type]


def _highest(rows: pl.DataFrame, column: str) -> float | None:
    """Return the highest epsilon of a column; None if it is empty or one value is unknown."""
    return None if not rows.height or rows[column].null_count() else float(rows[column].max())  # type: ignore[arg-type]


def _at_most(epsilon: float, why: str) -> str:
    return f"epsilon infinite, because {why}," if why else f"epsilon at most {_text(epsilon)}"


def _text(epsilon: float | None) -> str:
    if epsilon is None:
        return "–"
    return "∞" if math.isinf(epsilon) else f"{epsilon:.3g}"
