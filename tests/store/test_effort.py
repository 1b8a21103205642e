"""What a round costs the phones, those in vain included."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_report, make_result

from fedbalancer.core.types import FailedClient, RoundResult, Timings
from fedbalancer.store.rows import device_s, sample_passes

SPENT = Timings(download_s=10.0, forward_s=5.0, train_s=40.0, upload_s=20.0, paused_s=99.0)


def round_of(missing: FailedClient | None = None, **order: float) -> RoundResult:
    report = replace(make_report("ann", trained=30), timings=SPENT, epochs=5.0)
    result = make_result([report], deadline_s=60.0, epochs=5, batch_size=10, **order)
    return replace(result, missing=() if missing is None else (missing,))


def test_a_device_is_busy_while_it_downloads_looks_trains_and_uploads_but_not_while_it_pauses() -> None:
    assert device_s(round_of()) == 75.0


def test_who_misses_the_deadline_works_until_then_and_who_is_late_for_the_quorum_to_its_end() -> None:
    assert device_s(round_of(FailedClient("bob", "upload", SPENT, 30))) == 75.0 + 60.0
    assert device_s(round_of(FailedClient("bob", "late", SPENT, 30))) == 75.0 + 75.0
    assert device_s(round_of(FailedClient("bob", "unavailable"))) == 75.0


def test_samples_count_once_for_every_epoch() -> None:
    assert sample_passes(round_of()) == 30 * 5


def test_less_than_an_epoch_counts_what_was_seen() -> None:
    report = replace(make_report("ann", trained=12), epochs=0.4)
    assert sample_passes(make_result([report])) == 12


@pytest.mark.parametrize(
    ("why", "train_s", "passes"),
    [("train", 90.0, 75.0), ("upload", 40.0, 150.0), ("late", 90.0, 150.0), ("download", 0.0, 0.0)],
)
def test_work_in_vain_counts_as_far_as_there_was_time_for_it(why: str, train_s: float, passes: float) -> None:
    """Of 60 s until the deadline, 45 are left after download and forward pass."""
    missing = FailedClient("bob", why, replace(SPENT, train_s=train_s), 30)
    assert sample_passes(round_of(missing)) == pytest.approx(150.0 + passes)


def test_epochs_that_are_cut_short_count_what_they_train() -> None:
    """Oort trains one batch of 10 an epoch: five different ones at most."""
    assert sample_passes(round_of(epoch_batches=1)) == 10 * 5
