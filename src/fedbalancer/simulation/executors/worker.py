"""What a worker does, in whatever process it lives: it holds a trainer and answers requests."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import cloudpickle

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.interfaces import Trainer
from fedbalancer.core.processes import one_thread_here
from fedbalancer.core.types import Evaluation, Weights


@runtime_checkable
class EvaluatesInPieces(Protocol):
    """A trainer whose evaluation can be shared out. A piece is the same whoever evaluates it."""

    def evaluation_pieces(self) -> int: ...
    def evaluate_pieces(self, weights: Weights, pieces: Sequence[int]) -> list[Any]: ...
    def combine(self, pieces: Sequence[Any]) -> Evaluation:
        """The evaluation from all its pieces, in their order."""


@dataclass(frozen=True)
class Answer:
    """One value per item; fewer if an item failed: then `error` is that of the item after the last value."""

    values: list[Any]
    error: Exception | None = None


class Worker:
    """A trainer that is made here, on one thread, and asked for one list of items after the other."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None

    def start(self, make_trainer: Callable[[], Callable[[], Trainer]]) -> Answer:
        """Make the trainer; the answer is its layout. `make_trainer` gives the function that makes it."""
        one_thread_here()
        try:
            self._trainer = make_trainer()()
            one_thread_here()  # also if torch was loaded only now
            return Answer([self._trainer.layout])
        except Exception as error:
            return Answer([], told(error))

    def answer(self, verb: str, items: Sequence[Any], weights: Weights | None) -> Answer:
        """Do what is asked, up to the first item that fails."""
        assert self._trainer is not None
        values: list[Any] = []
        try:
            for value in _answers(self._trainer, verb, items, weights):
                values.append(value)
        except Exception as error:
            return Answer(values, told(error))
        return Answer(values)


def _answers(trainer: Any, verb: str, items: Sequence[Any], weights: Weights | None) -> Iterator[Any]:
    if verb in ("train", "losses", "evaluate_client"):
        yield from (getattr(trainer, verb)(weights, item) for item in items)
    elif verb == "evaluate_pieces":
        yield from trainer.evaluate_pieces(weights, items)
    elif verb == "pieces":
        yield trainer.evaluation_pieces() if isinstance(trainer, EvaluatesInPieces) else 0
    elif verb == "evaluate":
        yield trainer.evaluate(weights)
    else:  # initial_weights, combine
        yield from (getattr(trainer, verb)(item) for item in items)


def told(error: Exception) -> Exception:
    """The error as it can travel, with where it arose: a traceback cannot. One of ours says enough."""
    if not isinstance(error, FedBalancerError):
        error.add_note(f"in a worker:\n{''.join(traceback.format_exception(error))}")
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # whatever its own pickling raises
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain
    return error
