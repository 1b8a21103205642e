"""A client keeps to its deadline by the method's own `Work` policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.work import AllOrNothing, WholeBatches, WholeEpochs

pytest.importorskip("flwr", reason="flwr is not installed")

from fedbalancer.flower.pace import Pace

POLICIES = [AllOrNothing(), WholeEpochs(), WholeBatches()]


def trained(pace: Pace, batch_s: float, guessed_s: float) -> tuple[int, float]:
    """Batches done and seconds taken by a client whose batches take `batch_s`, where it first expects `guessed_s`."""
    done = 0
    while pace.goes_on(done, done * batch_s, batch_s if done else guessed_s):
        done += 1
    return done, done * batch_s


@given(
    policy=st.sampled_from(POLICIES),
    per_epoch=st.integers(1, 6),
    epochs=st.integers(1, 5),
    batch_s=st.integers(1, 8),
    budget_s=st.integers(1, 100),
    guessed_s=st.integers(1, 50),
)
def test_what_counts_is_what_the_policy_would_train_that_knew_all(
    policy: object, per_epoch: int, epochs: int, batch_s: int, budget_s: int, guessed_s: int
) -> None:
    pace = Pace(policy, float(budget_s), per_epoch, epochs)  # type: ignore[arg-type]
    done, seconds = trained(pace, float(batch_s), float(guessed_s))
    wanted = policy.batches(lambda b: b * float(batch_s), float(budget_s), per_epoch, epochs)  # type: ignore[attr-defined]
    if wanted:
        assert pace.counted(done) == wanted
    else:
        assert seconds < budget_s + batch_s
        assert pace.counted(done) == 0 or seconds > budget_s


def test_a_bad_guess_does_not_keep_a_client_from_trying() -> None:
    assert trained(Pace(WholeEpochs(), 10.0, 5, 2), 1.0, 1000.0) == (10, 10.0)
