"""Oort and OortBalancer on the simulated clock: who is invited, who counts, and what is charged."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.server.pace import ConstantPace

K, EPOCHS, BATCH = 5, 5, 10
SETTINGS = {"clients_per_round": K, "epochs": EPOCHS, "batch_size": BATCH}
PARTS = ("download_s", "forward_s", "train_s", "upload_s")


def run(method: str | fb.Method, **settings: Any) -> Any:
    return fb.run(tinytask.load(), method, settings={**SETTINGS, **settings}, rounds=12)


@pytest.fixture(scope="module")
def oort() -> Any:
    return run("oort")


@pytest.fixture(scope="module")
def balanced() -> Any:
    """Three clients a round, so that some are met for the first time when there is a threshold; a constant one, so
    that this does not depend on the draw of devices."""
    method = fb.method("oortbalancer", pace=ConstantPace(loss_threshold_ratio=0.5))
    return run(method, clients_per_round=3)


@pytest.fixture(scope="module")
def batch_s() -> dict[tuple[int, str], float]:
    """The batch latency of every client in every round: the same draw for every method."""
    everybody = run("fedavg+wfa", clients_per_round=8).clients
    return {
        (row["round"], row["client"]): row["train_s"] / (EPOCHS * -(-size_of(row["client"]) // BATCH))
        for row in everybody.iter_rows(named=True)
    }


def size_of(client: str) -> int:
    return len(tinytask.load().clients[client][1])


def test_six_are_invited_and_the_first_five_count(oort: Any) -> None:
    assert oort.rounds["selected"].to_list() == [6] * 12
    assert oort.rounds["completed"].to_list() == [K] * 12
    assert np.isinf(oort.rounds["deadline_s"].to_numpy()).all()
    outcomes = oort.clients.group_by("round", "outcome").len()
    assert set(outcomes.filter(pl.col("outcome") == "completed")["len"]) == {K}
    assert set(outcomes.filter(pl.col("outcome") == "late")["len"]) == {1}


def test_a_round_lasts_until_the_fifth_report(oort: Any) -> None:
    total = oort.clients.with_columns(total_s=pl.sum_horizontal(PARTS))
    for row in oort.rounds.iter_rows(named=True):
        seconds = sorted(total.filter(pl.col("round") == row["round"])["total_s"].to_list())
        assert row["end_s"] - row["start_s"] == pytest.approx(20.0 + seconds[K - 1])


def test_an_epoch_is_charged_as_one_batch(oort: Any, batch_s: dict[tuple[int, str], float]) -> None:
    for row in oort.clients.iter_rows(named=True):
        assert row["train_s"] == pytest.approx(EPOCHS * batch_s[row["round"], row["client"]])
        assert row["forward_s"] == 0.0


def test_an_epoch_trains_one_batch_of_the_batch_size(oort: Any) -> None:
    counted = oort.clients.filter(pl.col("outcome") == "completed")
    assert counted["epochs"].to_list() == [EPOCHS] * len(counted)
    sizes = np.array([size_of(client) for client in counted["client"]])
    samples = counted["samples"].to_numpy()
    assert (samples >= np.minimum(BATCH, sizes)).all()
    assert (samples <= np.minimum(EPOCHS * BATCH, sizes)).all()
    assert (samples > BATCH).all()  # each epoch has a batch of its own


def test_oort_learns(oort: Any) -> None:
    assert oort.evals["accuracy"][-1] > oort.evals["accuracy"][0] + 0.05


def test_oortbalancer_closes_at_a_deadline_that_its_clients_set(balanced: Any) -> None:
    assert balanced.rounds["selected"].to_list() == [3] * 12
    assert np.isfinite(balanced.rounds["deadline_s"].to_numpy()).all()
    assert balanced.rounds["loss_threshold"][-1] > 0
    seconds = balanced.rounds["end_s"] - balanced.rounds["start_s"]
    assert (seconds <= balanced.rounds["deadline_s"] + 20.0 + 1e-9).all()


def test_oortbalancer_charges_an_epoch_as_one_batch(balanced: Any, batch_s: dict[tuple[int, str], float]) -> None:
    counted = balanced.clients.filter(pl.col("outcome") == "completed")
    assert len(counted)
    for row in counted.iter_rows(named=True):
        assert row["train_s"] == pytest.approx(row["epochs"] * batch_s[row["round"], row["client"]])


def test_oortbalancer_looks_at_all_samples_of_a_client_when_it_is_first_selected(balanced: Any) -> None:
    expected, known = set(), set()
    for row in balanced.clients.sort("round").iter_rows(named=True):
        client = row["client"]
        if client not in known and size_of(client) > EPOCHS * BATCH:
            expected.add((client, row["round"]))
        known.add(client)
    assert expected
    assert set(balanced.clients.filter(pl.col("forward_s") > 0).select("client", "round").iter_rows()) == expected
