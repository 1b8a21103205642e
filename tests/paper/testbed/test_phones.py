"""The recorded phones: read as they were measured, handed out to all, and the same for every method."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.paper.testbed.phones import FILE, SESSIONS, Phone, RecordedPhones, assign_phones, read_phones


def content(phones: int = 4) -> dict[str, Any]:
    """Sessions whose phone n has batches of n hundredths of a second, and a network ten times the session's number."""
    return {
        session: {
            str(n): {"per_batch_train_times": [n / 100, n / 50], "networking_times": [10.0 * s, 12.0 * s]}
            for n in range(phones, 0, -1)
        }
        for s, session in enumerate(SESSIONS, start=1)
    }


def test_a_seed_has_its_session_and_phones_come_in_order(tmp_path: Path) -> None:
    file = tmp_path / "phones.json"
    file.write_text(json.dumps(content(12)))
    for seed, network_s in ((0, 10.0), (1, 20.0), (2, 30.0), (3, 10.0)):
        phones = read_phones(file, seed)
        assert [phone.name for phone in phones] == [str(n) for n in range(1, 13)]
        assert phones[4].batch_s.tolist() == [0.05, 0.1]
        assert phones[4].network_s[0] == network_s


def test_the_archive_is_read_as_the_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "devices.zip", "w") as archive:
        archive.writestr(FILE, json.dumps(content()))
    assert len(read_phones(tmp_path / "devices.zip", 0)) == 4


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"experiments_batch1": {"1": {"per_batch_train_times": [0.1]}}}, "networking_times"),
        ({"experiments_batch1": {"1": {"per_batch_train_times": [-1.0], "networking_times": [1.0]}}}, "positive"),
        ({"experiments_batch1": {"1": {"per_batch_train_times": [1.0], "networking_times": [1, 2]}}}, "same rounds"),
        ({"other": {}}, "experiments_batch1"),
        ([], "object"),
    ],
)
def test_a_file_that_is_none_of_phones_is_told(tmp_path: Path, changed: Any, word: str) -> None:
    file = tmp_path / "phones.json"
    file.write_text(json.dumps(changed))
    with pytest.raises(BadData, match=word):
        read_phones(file, 0)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="--phones"):
        read_phones(tmp_path / "none.json", 0)


@given(st.integers(0, 2**31), st.integers(1, 10**6), st.text("abc", min_size=1, max_size=4))
def test_a_round_is_a_recorded_one(seed: int, round: int, client: str) -> None:
    phone = Phone("7", np.array([0.1, 0.2, 0.3]), np.array([4.0, 6.0, 20.0]))
    devices = RecordedPhones(seed, {client: phone})
    draw = devices.draw(client, round, 10, 10)
    row = phone.batch_s.tolist().index(draw.batch_s)
    assert draw.download_s == draw.upload_s == phone.network_s[row] / 2
    assert devices.draw(client, round, 99, 99) == draw
    assert devices.expected_network_s(client, 0, 0) == pytest.approx(10.0)
    assert devices.sample_batch_s(client, 5).tolist() == [0.1, 0.2, 0.3, 0.1, 0.2]


@given(st.integers(1, 60), st.integers(1, 21))
def test_every_client_has_a_phone_and_no_phone_is_idle_while_another_has_two(clients: int, count: int) -> None:
    phones = [Phone(str(n), np.ones(1), np.ones(1)) for n in range(count)]
    given_out = assign_phones([f"c{n}" for n in range(clients)], phones)
    used = [phone.name for phone in given_out.values()]
    assert len(given_out) == clients
    times = [used.count(phone.name) for phone in phones]
    assert max(times) - min(times) <= 1
