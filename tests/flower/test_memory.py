"""The loss list survives a restart, and only for the same run, client and data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import make_context

from fedbalancer.client.round import ClientMemory
from fedbalancer.flower.memory import MemoryStore, SavedMemory

LIST = np.array([1.0, np.nan, 3.0])


def keeper(context: Any = None, **changes: Any) -> MemoryStore:
    return replace(MemoryStore(context or make_context(1), "run", "ann", 3, "data"), **changes)


def test_the_list_is_found_after_a_restart() -> None:
    keeper().save(SavedMemory(ClientMemory(LIST, 4.0, 2, np.ones(2, dtype=np.float32))))
    found = keeper(make_context(99)).load().now
    assert np.array_equal(found.losses, LIST, equal_nan=True)
    assert found.batch_s(9.0) == 2.0
    assert found.residual.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("change", [{"run_key": "b"}, {"client": "b"}, {"size": 4}, {"fingerprint": "b"}])
def test_a_list_of_something_else_is_no_list(change: dict[str, Any]) -> None:
    context = make_context(1)
    keeper(context).save(SavedMemory(ClientMemory(LIST)))
    assert keeper(context, **change).load().now.losses is None


def test_without_a_folder_the_list_is_in_the_state_only() -> None:
    context = make_context(1, **{"fedbalancer-folder": "off"})
    keeper(context).save(SavedMemory(ClientMemory(LIST)))
    assert keeper(context).load().now.losses is not None
    assert keeper(make_context(1)).load().now.losses is None


def test_a_damaged_or_unwritable_file_costs_the_list_and_nothing_else(tmp_path: Path) -> None:
    keeper().save(SavedMemory(ClientMemory(LIST)))
    file = keeper().file
    assert file is not None
    file.write_bytes(b"not a list")
    assert keeper(make_context(2)).load().now.losses is None
    (tmp_path / "taken").write_text("")
    context = make_context(1, **{"fedbalancer-folder": str(tmp_path / "taken")})
    keeper(context).save(SavedMemory(ClientMemory(LIST)))
    assert keeper(context).load().now.losses is not None


@pytest.mark.parametrize(("accepted", "wanted"), [(4, [7.0, 2.0]), (3, [1.0, 2.0]), (0, [1.0, 2.0])])
def test_what_is_pending_counts_once_the_server_took_it(accepted: int, wanted: list[float]) -> None:
    now = ClientMemory(np.array([1.0, 2.0]), 4.0, 2)
    memory = SavedMemory(now, replace(now, losses=np.array([7.0, 2.0])), pending_round=4)
    keeper(size=2).save(memory)
    for found in (memory, keeper(make_context(5), size=2).load()):
        confirmed = found.confirmed(accepted)
        assert confirmed.losses is not None
        assert confirmed.losses.tolist() == wanted
        assert confirmed.batch_s(9.0) == 2.0
