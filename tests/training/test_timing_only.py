"""The trainer for runs in which only the clock matters."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from fedbalancer.client.work import batches
from fedbalancer.core.types import ClientWork
from fedbalancer.training.timing_only import TimingOnly


def work(count: int) -> ClientWork:
    return ClientWork("ann", np.array([9, 2, 4, 7, 1, 5, 30]), count, 3, 0.1, 0.0, None, seed=4)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9])
def test_sees_what_a_real_trainer_would_see_in_the_first_epoch(count: int) -> None:
    trained = TimingOnly({"ann": 40}).train(np.empty(0, np.float32), work(count))
    seen = [row for epoch, rows in batches(work(count)) if epoch == 0 for row in rows]
    assert list(trained.seen) == sorted(seen)
    assert list(trained.losses) == [1.0] * len(seen)
    assert trained.update.shape == (0,)


def test_has_no_weights_and_nothing_to_evaluate() -> None:
    trainer = TimingOnly({"ann": 4})
    assert trainer.layout == ()
    assert trainer.initial_weights(3).shape == (0,)
    assert list(trainer.losses(trainer.initial_weights(0), "ann")) == [1.0] * 4
    evaluation = trainer.evaluate(trainer.initial_weights(0))
    assert math.isnan(evaluation.accuracy)
    assert math.isnan(evaluation.loss)
    assert evaluation.samples == 0


def test_lists_of_one_length_are_one_list_that_nobody_can_change() -> None:
    trainer, weights = TimingOnly({"ann": 4, "bob": 4}), np.empty(0, np.float32)
    assert trainer.losses(weights, "ann") is trainer.losses(weights, "bob")
    with pytest.raises(ValueError, match="read-only"):
        trainer.losses(weights, "ann")[0] = 2.0


def test_needs_no_torch() -> None:
    code = "import sys, fedbalancer.training.timing_only, fedbalancer.data.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
