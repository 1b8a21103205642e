"""The clients' evaluations as one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedbalancer.flower.compat import Message
from fedbalancer.types import Evaluation

MOST_SAMPLES = 10**6
"""What one client's evaluation counts for, at most."""


def mean_evaluation(answers: Sequence[Message]) -> Evaluation:
    """Each by its samples; answers that hold no finite numbers are left out."""
    rows = [row for answer in answers if not answer.has_error() and (row := _row(answer)) is not None]
    table = np.array(rows).reshape(-1, 3)
    weights = np.clip(table[:, 0], 0, MOST_SAMPLES)
    if weights.sum() <= 0:
        return Evaluation(math.nan, math.nan, 0)
    accuracy, loss = np.average(table[:, 1:], axis=0, weights=weights).tolist()
    return Evaluation(accuracy, loss, int(weights.sum()))


def _row(answer: Message) -> list[float] | None:
    found = {name: value for record in answer.content.metric_records.values() for name, value in record.items()}
    values = [found.get(name) for name in ("num-examples", "accuracy", "loss")]
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return numbers if len(numbers) == len(values) else None
