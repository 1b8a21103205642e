"""Work spread over workers: dealt to whoever is free, and done again where a worker died.

A client's training depends on nothing but its arguments, so one worker or many, dead ones or none, give the same
bytes. Which error is told does not depend on the workers either: that of the first item that fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedbalancer.engine.executors.chunks import Chunk, Deal, training_cost
from fedbalancer.engine.executors.crew import TRIES, Crew, Roster
from fedbalancer.errors import FedBalancerError
from fedbalancer.processes import DIED
from fedbalancer.types import ClientWork, Evaluation, FloatArray, Layout, Trained, Weights

CHUNK_BYTES = 128 * 1024**2
"""Updates that a worker holds before it hands them over, at most."""


class SpreadExecutor:
    """An `Executor` over any crew. `sizes` are the clients' samples, where they are known."""

    def __init__(self, crew: Crew, sizes: Mapping[str, int] | None = None) -> None:
        self.workers = crew.size
        self._crew = crew
        self._roster = Roster(crew)
        self._sizes = sizes or {}
        self._pieces: int | None = None
        self._roster.fill()

    @property
    def layout(self) -> Layout:
        while self._roster.layout is None:
            self._roster.hear_starts(None)
        return self._roster.layout

    @property
    def ready(self) -> bool:
        """Whether all workers have their trainer."""
        self._roster.hear_starts(0.0)
        return not self._roster.starting

    def initial_weights(self, seed: int) -> Weights:
        weights: Weights = self._one("initial_weights", None, seed)
        return weights

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[Trained]:
        return self._spread("train", weights, works, [training_cost(work) for work in works])

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        return self._spread("losses", weights, clients, [self._sizes.get(client, 1) for client in clients])

    def evaluate(self, weights: Weights) -> Evaluation:
        """In pieces on all workers, where the trainer can; else by one of them."""
        if self._pieces is None:
            self._pieces = self._one("pieces", None, None)
        if self._pieces and self.workers > 1:
            pieces = self._spread("evaluate_pieces", weights, range(self._pieces), [1] * self._pieces)
            evaluation: Evaluation = self._one("combine", None, pieces)
        else:
            evaluation = self._one("evaluate", weights, None)
        return evaluation

    def close(self) -> None:
        self._crew.close()

    def _one(self, verb: str, weights: Weights | None, item: Any) -> Any:
        return self._spread(verb, weights, [item], [1])[0]

    def _spread(self, verb: str, weights: Weights | None, items: Sequence[Any], costs: Sequence[float]) -> list[Any]:
        self._roster.fill()
        updates = len(items) if verb == "train" else 0
        deal = Deal(costs, self.workers, _most(weights) if updates else None)
        results: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        with self._crew.shared(weights, updates) as shared, self._roster.nobody_left_busy():
            while self._give_out(deal, verb, items, shared):
                for chunk, answer in self._roster.hear(None):
                    if answer is None:
                        deal.put_back(_once_more(chunk))
                        continue
                    results.update(zip(chunk.positions, answer.values, strict=False))
                    if answer.error is not None:
                        failed[chunk.positions[len(answer.values)]] = answer.error
                        deal.drop_after(min(failed))
        if failed:
            raise failed[min(failed)]
        return [results[position] for position in range(len(items))]

    def _give_out(self, deal: Deal, verb: str, items: Sequence[Any], shared: Any) -> bool:
        """Chunks to the idle; whether there is anything left to wait for."""
        while self._roster.idle and (chunk := deal.take()) is not None:
            chosen = [items[position] for position in chunk.positions]
            self._crew.ask(self._roster.take(chunk), verb, chunk, chosen, shared)
        return bool(self._roster.busy) or not deal.is_empty


def _most(weights: Weights | None) -> int | None:
    """Clients in one chunk, at most."""
    return max(CHUNK_BYTES // weights.nbytes, 1) if weights is not None and weights.nbytes else None


def _once_more(chunk: Chunk) -> Chunk:
    if chunk.lost + 1 >= TRIES:
        raise FedBalancerError(DIED)
    return replace(chunk, lost=chunk.lost + 1)
