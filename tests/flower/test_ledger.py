"""The server learns from everything that it hears, so that rounds count those who could make it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.phones import Phone, World

from fedbalancer.flower.ledger import TransportTimes


def reported(world: World, since: int = 3) -> float:
    """The share of orders that were reported, from a round on."""
    sent = sum(len(fields["cohort"]) for fields in world.of("round") if fields["round"] >= since)
    return sum(fields["completed"] for fields in world.of("round closed") if fields["round"] >= since) / sent


@pytest.mark.parametrize("name", ["fedbalancer", "prox+2t", "fedavg+2t"])
@pytest.mark.parametrize(("batch_s", "said_s"), [(0.01, 0), (0.5, 0), (2.0, 0), (2.0, 0.2), (2.0, 2.0)])
def test_equal_clients_report_from_the_third_round_on(name: str, batch_s: float, said_s: float) -> None:
    """Whether they timed their batches, did not, or were much faster when they did."""
    world = World(*(Phone(number, batch_s, said_s=said_s) for number in range(3)))
    world.start(12, name)
    assert reported(world) >= 0.95


def test_a_measurement_takes_the_place_of_an_assumption() -> None:
    """Nobody timed a batch, so .1 s is assumed; the first report says 2 s, and the mean of both is nobody's speed."""
    phones = Phone(0, 2.0, said_s=0), Phone(1, 2.0, said_s=0)
    World(*phones).start(4, "prox+2t")
    for phone in phones:
        assert phone.orders[0].batch_s == pytest.approx(0.1)
        assert [order.batch_s for order in phone.orders[2:]] == pytest.approx([2.0] * len(phone.orders[2:]))


def test_who_did_not_measure_is_as_fast_as_the_others() -> None:
    """One client of three takes part in a round; what it measured is expected of the two that were not asked yet."""
    phones = [Phone(n, 2.0, said_s=0) for n in range(3)]
    World(*phones).start(3, "fedavg+wfa", clients_per_round=1)
    later = [phone.orders[0].batch_s for phone in phones if phone.orders and phone.orders[0].order.round > 1]
    assert later
    assert later == pytest.approx([2.0] * len(later))


def test_a_late_report_teaches_its_times() -> None:
    """It said .2 s a batch and takes 2 s. Its first report comes after the deadline, and the next order knows."""
    slow, other = Phone(0, 2.0, said_s=0.2), Phone(1, 0.2)
    world = World(slow, other)
    world.start(4, "fedavg+1t")
    assert slow.orders[-1].batch_s > 0.25
    assert not any(fields["client"] == "c1" for fields in world.of("late reply"))


@pytest.mark.parametrize("name", ["fedbalancer", "fedavg+2t"])
def test_after_a_round_that_nobody_made_the_deadline_grows_until_somebody_does(name: str) -> None:
    """From the third round on all replies take 45 s more, and say nothing of it."""

    def later(reply: Any) -> Any:
        round = int(reply.content.config_records["fedbalancer"]["round"])
        return [(45.0 if round > 2 else 0.0, reply)]

    world = World(Phone(0, change=later), Phone(1, change=later))
    world.start(12, name)
    deadlines = {fields["round"]: fields["deadline_s"] for fields in world.of("round")}
    counts = {fields["round"]: fields["completed"] for fields in world.of("round closed")}
    failed = [round for round in counts if not counts[round]]
    assert failed
    for round in failed:
        assert deadlines[round + 1] > deadlines[round]
    assert reported(world, since=max(failed) + 1) >= 0.95
    assert max(failed) < 9


def test_a_message_that_took_ages_once_does_not_cost_the_next_rounds() -> None:
    transport = TransportTimes()
    for seconds in (4.0, 5.0, 4.5, 30.0):
        transport.add_order("ann", seconds)
    assert transport.expected_s("ann") > 30.0
    transport.add_order("ann", 5.0)
    assert transport.expected_s("ann") == pytest.approx(8.0)
    transport.add_order("ann", 28.0)
    assert transport.expected_s("ann") > 30.0


def test_quick_messages_leave_time_for_a_slower_one() -> None:
    """In Flower's simulation the first took 40 s, the next a quarter of a second, and the one after those two."""
    transport = TransportTimes()
    for seconds in (40.0, 0.25, 0.25, 0.25):
        transport.add_order("ann", seconds)
    assert 2.2 < transport.expected_s("ann") < 10.0


def test_what_is_assumed_and_what_failed_outlives_a_crash(tmp_path: Any) -> None:
    places = {"checkpoint_dir": tmp_path, "run_key": "mine", "clients_per_round": 1}
    wanted, died = [Phone(n, 2.0, said_s=0) for n in range(3)], [Phone(n, 2.0, said_s=0) for n in range(3)]
    World(*wanted).start(6, "fedavg+wfa", clients_per_round=1)
    World(*died).start(1, "fedavg+wfa", **places)
    World(*died).start(6, "fedavg+wfa", **places)
    assert [[order.batch_s for order in phone.orders] for phone in died] == [
        pytest.approx([order.batch_s for order in phone.orders]) for phone in wanted
    ]
