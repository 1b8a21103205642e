"""One after the other, in this process."""

from __future__ import annotations

from typing import Any

from fedbalancer.core.types import Layout
from fedbalancer.simulation.executors import InlineExecutor


class Echo:
    """A trainer that gives back what it was asked."""

    layout = Layout((("weight", (1,)),))

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: (verb, *arguments)


def test_asks_the_trainer_once_for_each_piece_of_work_in_order() -> None:
    trainer: Any = Echo()
    executor: Any = InlineExecutor(trainer)
    assert executor.layout == Echo.layout
    assert executor.initial_weights(3) == ("initial_weights", 3)
    assert executor.losses("weights", ["b", "a"]) == [("losses", "weights", "b"), ("losses", "weights", "a")]
    assert executor.train("weights", ["b", "a"]) == [("train", "weights", "b"), ("train", "weights", "a")]
    assert executor.evaluate("weights") == ("evaluate", "weights")
    executor.close()
