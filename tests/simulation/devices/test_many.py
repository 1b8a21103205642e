"""Many devices at once give what asking them one by one gives, whether a model has columns or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.interfaces import Availability, DeviceModel
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraw, Network, Phones, Replay, Traces, many, resolve_latency

some_clients = st.lists(st.text(max_size=5), max_size=6)
MB = 1024 * 1024


def phones(seed: int = 0, floor: float | None = None) -> Phones:
    return Phones(seed, resolve_latency("celeba"), Network(seed, floor))


def check_draws(devices: DeviceModel, clients: Sequence[str], round: int) -> None:
    each = [devices.draw(client, round, 3 * MB, 2 * MB) for client in clients]
    found = many.draw(devices, clients, round, 3 * MB, 2 * MB)
    assert found.batch_s.tolist() == [one.batch_s for one in each]
    assert found.download_s.tolist() == [one.download_s for one in each]
    assert found.upload_s.tolist() == [one.upload_s for one in each]


def check_before_training(devices: DeviceModel, clients: Sequence[str], count: int) -> None:
    expected_s = many.expected_network_s(devices, clients, 3 * MB, 2 * MB)
    assert expected_s.tolist() == [devices.expected_network_s(client, 3 * MB, 2 * MB) for client in clients]
    sampled_s = many.sample_batch_s(devices, clients, count)
    assert sampled_s.shape == (len(clients), count)
    assert [row.tolist() for row in sampled_s] == [devices.sample_batch_s(client, count).tolist() for client in clients]


@given(st.integers(0, 2**40), st.none() | st.floats(0, 1), some_clients, st.integers(0, 10**6))
def test_phones_draw_the_same_together_and_alone(
    seed: int, floor: float | None, clients: list[str], round: int
) -> None:
    check_draws(phones(seed, floor), clients, round)
    check_before_training(phones(seed, floor), clients, 3)


def test_a_client_may_be_asked_for_twice() -> None:
    check_draws(phones(), ["ann", "bob", "ann"], 4)


def test_a_population_larger_than_a_block_is_sampled_as_its_clients_are(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [str(number) for number in range(30)]
    whole = phones().sample_batch_s_many(clients, 4)
    monkeypatch.setattr("fedbalancer.simulation.devices.phones._BLOCK", 7)
    assert phones().sample_batch_s_many(clients, 4).tolist() == whole.tolist()


@pytest.mark.parametrize("clients", [[], ["ann"], ["bob", "ann"]])
def test_a_model_that_knows_one_client_at_a_time_is_asked_one_by_one(clients: list[str]) -> None:
    draws = {(1, "ann"): DeviceDraw(0.5, 2.0, 3.0), (1, "bob"): DeviceDraw(0.7, 2.5, 3.5)}
    replay = Replay(draws, {"ann": [0.5, 0.6], "bob": [0.7, 0.8]}, {"ann": 4.0, "bob": 5.0})
    assert not isinstance(replay, many.ManyDevices)
    check_draws(replay, clients, 1)
    check_before_training(replay, clients, 2)


class Odd:
    """An availability of one's own: clients whose name has an odd length are away."""

    def is_available(self, client: str, at_s: float) -> bool:
        return len(client) % 2 == 0

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        return busy_s


NIGHTS = Traces({"ann": np.array([[0.0, 6.0], [22.0, 24.0]]), "bo": np.array([[5.0, 9.0]])}, period_s=24.0)


@pytest.mark.parametrize("model", [AlwaysOn(), NIGHTS, Odd()], ids=["always", "traces", "own"])
@pytest.mark.parametrize("clients", [(), ("ann", "bo"), ["bo", "ann", "bo"]], ids=["nobody", "all", "some"])
@pytest.mark.parametrize("at_s", [0.0, 5.0, 6.0, 8.9, 9.0, 23.0, 24 * 365.0 + 7])
def test_availability_is_the_same_together_and_alone(model: Availability, clients: Sequence[str], at_s: float) -> None:
    alone = [model.is_available(client, at_s) for client in clients]
    assert many.are_available(model, clients, at_s).tolist() == alone
