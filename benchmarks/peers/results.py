"""From the seconds of all repeats to rates, ratios, a table and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engines import PEERS, TITLES
from rich.table import Table
from torch import nn
from work import WORKLOADS, Work

SAME_UPDATE = 0.01
"""How far an engine's update of the global model may be from the reference's, relative to its length."""

SAME_LOSS = 0.02
"""How far the mean training loss after the last timed rounds may be from the reference's, relative to it."""


@dataclass
class Results:
    """Rates by workload and engine, one a repeat, in samples (`tiny`: clients) a second."""

    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    difference: dict[str, dict[str, float]] = field(default_factory=dict)
    loss: dict[str, dict[str, float]] = field(default_factory=dict)
    start_s: dict[str, float] = field(default_factory=dict)

    def add(self, workload: str, engine: str, rate: float) -> None:
        self.rates.setdefault(workload, {}).setdefault(engine, []).append(rate)

    def compare_updates(self, work: Work, workload: str, models: dict[str, Path]) -> None:
        """How far apart the global models of the engines are."""
        start = np.load(work.folder / "weights.npy")
        vectors = {engine: np.load(path) for engine, path in models.items()}
        reference = vectors[reference_of(models)]
        length = np.linalg.norm(reference - start)
        self.difference[workload] = {
            engine: float(np.linalg.norm(vector - reference) / length) for engine, vector in vectors.items()
        }

    def compare_losses(self, work: Work, workload: str, models: dict[str, Path]) -> None:
        """The mean loss of the engines' global models over all training samples."""
        self.loss[workload] = {engine: mean_loss(work, np.load(path)) for engine, path in models.items()}

    def unlike(self) -> list[str]:
        """Engines whose result is another: they did not do the same work."""
        updates = [
            f"{engine} on {workload}: its update is {value:.2g} of the reference's length away from it"
            for workload, engines in self.difference.items()
            for engine, value in engines.items()
            if not value < SAME_UPDATE
        ]
        return updates + [
            f"{engine} on {workload}: its training loss is {loss:.4f}, not {reference:.4f}"
            for workload, engines in self.loss.items()
            for reference in [engines[reference_of(engines)]]
            for engine, loss in engines.items()
            if not abs(loss / reference - 1) < SAME_LOSS
        ]

    def best_peer(self, workload: str) -> str | None:
        """The faster of Flower and pfl-research in its best set-up, by medians."""
        rates = self.rates[workload]
        return max((peer for peer in PEERS if peer in rates), key=lambda p: statistics.median(rates[p]), default=None)

    def ratio(self, workload: str, engine: str) -> float | None:
        """Median over the repeats of the engine's rate over the best peer's in the same repeat."""
        best = self.best_peer(workload)
        if best is None:
            return None
        rates = self.rates[workload]
        return statistics.median(mine / peers for mine, peers in zip(rates[engine], rates[best], strict=True))

    def to_json(self) -> dict[str, Any]:
        return {
            "start_s": self.start_s,
            "workloads": {
                workload: {
                    "title": WORKLOADS[workload].title,
                    "unit": unit(workload),
                    "best_peer": self.best_peer(workload),
                    "engines": {
                        engine: {
                            "median": statistics.median(rates),
                            "repeats": rates,
                            "ratio_to_best_peer": self.ratio(workload, engine),
                            "update_difference": self.difference[workload][engine],
                            "train_loss": self.loss[workload][engine],
                        }
                        for engine, rates in engines.items()
                    },
                }
                for workload, engines in self.rates.items()
            },
        }

    @property
    def headings(self) -> list[str]:
        return ["engine", *(f"{workload} ({unit(workload)})" for workload in self.rates), "start s"]

    def rows(self) -> list[list[str]]:
        """A row an engine: on every workload the median rate and its ratio to the best peer's."""
        return [
            [
                TITLES[engine],
                *(f"{statistics.median(self.rates[w][engine]):,.0f}{self._times(w, engine)}" for w in self.rates),
                f"{self.start_s[engine]:.1f}",
            ]
            for engine in next(iter(self.rates.values()))
        ]

    def table(self) -> Table:
        table = Table(title="Medians, and ratios to the best peer")
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if number else "left")
        for row in self.rows():
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """The table as it goes into a page."""
        lines = [self.headings, ["---"] + ["---:"] * (len(self.headings) - 1), *self.rows()]
        return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)

    def _times(self, workload: str, engine: str) -> str:
        ratio = self.ratio(workload, engine)
        return "" if ratio is None else f" · {ratio:.2f} x"


def reference_of(engines: Iterable[str]) -> str:
    """Whose result the others must have: the naive loop's, if it takes part."""
    names = list(engines)
    return "naive" if "naive" in names else names[0]


def unit(workload: str) -> str:
    return "clients/s" if workload == "tiny" else "samples/s"


def mean_loss(work: Work, vector: Any) -> float:
    """Cross-entropy of the model over all samples of all clients."""
    module = work.workload.model().eval()
    nn.utils.vector_to_parameters(torch.from_numpy(vector), module.parameters())
    total = 0.0
    with torch.no_grad():
        for client in work.clients:
            x, y = work.samples(client)
            total += float(nn.functional.cross_entropy(module(x), y, reduction="sum"))
    return total / sum(work.sizes)
