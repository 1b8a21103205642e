"""A client's decisions in a round: forward pass, costs, counted work, and memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from builders import make_order
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.compress import GradientDropping, LowRank
from fedbalancer.client.live import LiveRound
from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientMemory, ClientRound, decode_update
from fedbalancer.client.samples import EverySample, HighestLoss, OverThreshold, OverThresholdBatch
from fedbalancer.client.summary import Histogram
from fedbalancer.client.work import AllOrNothing, WholeBatches, WholeEpochs
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Layout, TrainResult

SIZE, LAYOUT = 95, Layout((("weight", (4, 3)), ("bias", (4,))))
LOSSES = np.linspace(0.0, 2.0, SIZE)


def round_of(memory: ClientMemory | None = None, policies: dict[str, Any] | None = None, **order: Any) -> ClientRound:
    given = {"batch_size": 10, "epochs": 2, "deadline_s": 5.0} | order
    return ClientRound(
        ClientPolicies(**(policies or {})), make_order(**given), "ann", SIZE, memory or ClientMemory(None, 1.0, 1)
    )


class TestLooking:
    @pytest.mark.parametrize(
        ("policies", "threshold", "looks"),
        [
            ({"samples": EverySample()}, 1.0, False),
            ({"samples": OverThreshold()}, 0.0, False),
            ({"samples": OverThreshold()}, 1.0, True),
            ({"samples": OverThresholdBatch()}, 0.0, True),
            ({"samples": OverThresholdBatch()}, 1.0, True),
            ({"samples": HighestLoss()}, 0.0, True),
        ],
    )
    def test_who_must_look_when_first_selected(self, policies: dict[str, Any], threshold: float, looks: bool) -> None:
        assert round_of(policies=policies, loss_threshold=threshold, sample_cap=50).needs_forward_pass is looks

    def test_a_list_that_is_there_is_not_made_again_unless_every_round_looks(self) -> None:
        known = ClientMemory(LOSSES, 1.0, 1)
        for forward_pass, looks in (("first", False), ("every", True)):
            policies = {"samples": OverThreshold(), "forward_pass": forward_pass}
            assert round_of(known, policies, loss_threshold=1.0).needs_forward_pass is looks

    def test_a_guarantee_about_samples_asks_for_a_look_in_every_round_and_speaks_of_that(self) -> None:
        """The losses of a training depend on each other: one sample changes more than its own."""
        policies = {"summary": Histogram(0.0), "forward_pass": "every"}
        round = round_of(ClientMemory(LOSSES, 1.0, 1), policies)
        assert round.needs_forward_pass
        looked, fresh = np.full(SIZE, 4.9), TrainResult("ann", np.zeros(0, np.float32), np.arange(SIZE), LOSSES)
        round.add_forward_pass(looked)
        told = round.prepare_report(fresh, 1.0, Layout(), np.random.default_rng(0)).summary.released
        assert told[-1] == sum(told) == SIZE
        assert not round_of(ClientMemory(LOSSES, 1.0, 1), {"summary": Histogram(0.0)}).needs_forward_pass

    def test_a_look_that_saw_nothing_is_no_ground_for_such_a_guarantee(self) -> None:
        round = round_of(policies={"summary": Histogram(), "forward_pass": "every"})
        round.add_forward_pass(np.full(SIZE, math.nan), keep=False)
        trained = TrainResult("ann", np.zeros(0, np.float32), np.arange(SIZE), LOSSES)
        with pytest.raises(BadSetting, match="received model"):
            round.prepare_report(trained, 1.0, Layout(), np.random.default_rng(0))

    @pytest.mark.parametrize(
        ("forward_pass", "threshold", "charged"),
        [("first", 1.0, 5.0), ("first", 1e-9, 5.0), ("first", 0.0, 0.0), ("every", 0.0, 0.0), ("every", 1.0, 5.0)],
    )
    def test_a_look_costs_half_an_epoch_unless_it_led_to_training_on_everything(
        self, forward_pass: str, threshold: float, charged: float
    ) -> None:
        made = round_of(policies={"samples": OverThreshold(), "forward_pass": forward_pass}, loss_threshold=threshold)
        if made.needs_forward_pass:
            made.add_forward_pass(LOSSES)
        assert made.forward_batches == charged
        assert len(made.indices) == (SIZE if threshold == 0 else int((threshold <= LOSSES).sum()))

    def test_a_look_that_shows_that_everything_is_trained_is_free_the_first_time_only(self) -> None:
        for forward_pass, charged in (("first", 0.0), ("every", 5.0)):
            made = round_of(policies={"samples": OverThreshold(), "forward_pass": forward_pass}, loss_threshold=0.5)
            made.add_forward_pass(LOSSES + 1.0)
            assert (len(made.indices), made.forward_batches) == (SIZE, charged)

    def test_the_list_of_a_look_is_kept_whatever_becomes_of_the_round(self) -> None:
        made = round_of(policies={"samples": OverThreshold()}, loss_threshold=1.0)
        made.add_forward_pass(LOSSES)
        assert made.memory.losses is LOSSES
        unkept = round_of(policies={"samples": OverThreshold()}, loss_threshold=1.0)
        unkept.add_forward_pass(LOSSES, keep=False)
        assert unkept.memory.losses is None

    def test_before_a_look_there_is_nothing_to_train(self) -> None:
        made = round_of(policies={"samples": OverThreshold(), "work": WholeBatches()}, loss_threshold=1.0)
        assert (len(made.indices), made.should_continue(0, 0.0, 1.0, math.inf)) == (0, False)


class Guessing:
    """A clock on which a batch takes what it takes."""

    def __init__(self, batch_s: float) -> None:
        self.batch_s, self.at_s = batch_s, 0.0

    def now_s(self) -> float:
        return self.at_s

    def computed(self, batches: float) -> None:
        self.at_s += batches * self.batch_s


def live(work: Any, size: int, epochs: int, batch_s: float, budget_s: float, guessed_s: float) -> LiveRound:
    order = make_order(epochs=epochs, batch_size=1, deadline_s=budget_s)
    return LiveRound(
        ClientPolicies(work=work), order, "ann", size, ClientMemory(), guessed_s, budget_s=budget_s,
        clock=Guessing(batch_s), began_s=0.0,
    )  # fmt: skip


@given(
    work=st.sampled_from([AllOrNothing(), WholeEpochs(), WholeBatches()]),
    per_epoch=st.integers(1, 6),
    epochs=st.integers(1, 5),
    batch_s=st.integers(1, 8),
    budget_s=st.integers(1, 100),
    guessed_s=st.integers(1, 50),
)
def test_what_counts_of_a_client_without_foresight_is_what_one_with_it_would_train(
    work: Any, per_epoch: int, epochs: int, batch_s: int, budget_s: int, guessed_s: int
) -> None:
    client = live(work, per_epoch, epochs, float(batch_s), float(budget_s), float(guessed_s))
    trained = sum(1 for _ in client.batches())
    wanted = client.batches_in_time(lambda batches: batches * float(batch_s), float(budget_s))
    assert trained == client.done
    if wanted:
        assert client.countable_batches(client.done) == wanted
    else:
        assert client.elapsed_s() < budget_s + batch_s
        assert client.countable_batches(client.done) == 0 or client.elapsed_s() > budget_s


def test_a_bad_guess_does_not_keep_a_client_from_trying() -> None:
    client = live(WholeEpochs(), 5, 2, 1.0, 10.0, 1000.0)
    assert (sum(1 for _ in client.batches()), client.elapsed_s()) == (10, 10.0)


@pytest.mark.parametrize("samples", [EverySample(), OverThreshold()])
def test_a_client_that_cannot_start_does_and_remembers_nothing(samples: Any) -> None:
    order = make_order(epochs=2, batch_size=1, deadline_s=0.0, loss_threshold=1.0)
    client = LiveRound(
        ClientPolicies(samples, WholeBatches()), order, "ann", 5, ClientMemory(), 1.0, budget_s=0.0,
        clock=Guessing(1.0), began_s=0.0,
    )  # fmt: skip
    client.run_forward_pass(lambda: pytest.fail("looked for nothing"))
    assert list(client.batches()) == []
    assert client.finish(None, LAYOUT) is None
    assert (client.memory.batch_s_count, client.memory.losses) == (0, None)


def test_noise_on_a_device_is_not_drawn_from_the_orders_seed() -> None:
    """Two clients with the same order, data and seed say different things; the simulator's say the same."""
    from fedbalancer.client.summary import LossStatistics

    trained = TrainResult("ann", np.ones(16, dtype=np.float32), np.arange(5), np.arange(5.0))
    said = set()
    for _ in range(3):
        client = live(AllOrNothing(), 5, 1, 1.0, 99.0, 1.0)
        client.policies = ClientPolicies(summary=LossStatistics(10.0))
        released = client.finish(trained, LAYOUT)
        assert released is not None
        said.add(released.summary.loss_low)
    assert len(said) == 3


class TestReport:
    trained = TrainResult("ann", np.arange(16, dtype=np.float32), np.array([0, 2]), np.array([7.0, 8.0]))

    def test_the_list_has_the_fresh_losses_and_the_old_memory_is_left_alone(self) -> None:
        made = round_of(ClientMemory(LOSSES, 1.0, 1))
        made.note_batch_s(3.0)
        released = made.prepare_report(self.trained, 3.0, LAYOUT, stream(0, "noise"))
        assert made.memory.losses is LOSSES
        assert released.memory.losses is not None
        assert released.memory.losses[[0, 1, 2]].tolist() == [7.0, LOSSES[1], 8.0]
        assert released.memory.batch_s() == 2.0
        assert (released.summary.trained, released.summary.batch_s) == (2, 3.0)

    def test_an_update_travels_as_it_is_or_by_the_bytes_of_its_compressor(self) -> None:
        plain = round_of().prepare_report(self.trained, 1.0, LAYOUT, stream(0, "noise"))
        assert plain.sent is self.trained.update
        for compress in (LowRank(2), GradientDropping(0.5)):
            made = round_of(policies={"compress": compress})
            sent = made.prepare_report(self.trained, 1.0, LAYOUT, stream(0, "noise"))
            assert isinstance(sent.sent, bytes)
            assert len(sent.sent) == compress.encoded_bytes(LAYOUT)
            update = decode_update(sent.sent, compress, LAYOUT, made.order, "ann")
            assert update.shape == (16,)
            if sent.memory.residual is not None:
                assert update + sent.memory.residual == pytest.approx(self.trained.update)
