"""One after the other, in this process."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbalancer.engine.executors import InlineExecutor


class Echo:
    """A trainer that gives back what it was asked."""

    layout = (("weight", (1,)),)

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: (verb, *arguments)


def test_asks_the_trainer_once_for_each_piece_of_work_in_order() -> None:
    executor = InlineExecutor(Echo())  # type: ignore[arg-type]
    weights = np.zeros(1, dtype=np.float32)
    assert executor.layout == Echo.layout
    assert executor.initial_weights(3) == ("initial_weights", 3)  # type: ignore[comparison-overlap]
    assert executor.losses(weights, ["b", "a"]) == [("losses", weights, "b"), ("losses", weights, "a")]  # type: ignore[comparison-overlap]
    works: Any = ["second", "first"]
    assert executor.train(weights, works) == [("train", weights, "second"), ("train", weights, "first")]  # type: ignore[comparison-overlap]
    assert executor.evaluate(weights) == ("evaluate", weights)  # type: ignore[comparison-overlap]
    executor.close()
