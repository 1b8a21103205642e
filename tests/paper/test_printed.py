"""The paper's numbers: complete, and in agreement with what the paper says of them."""

from __future__ import annotations

import pytest

from fedbalancer.paper.printed import GRID, RECOMMENDED, SPEEDUPS, TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, TASKS


def test_every_cell_of_the_tables_is_there() -> None:
    assert len(TABLE1) == 10 * len(TASKS)
    assert len(TABLE3) == 2 * sum(len(values) for values in GRID.values())
    assert len(TABLE5) == 8
    assert sum(row[-1] for row in TABLE4) == 21
    assert set(TABLE2) == {(task, row) for task in TASKS for row in "AS"}


def test_the_recommended_settings_are_in_the_grid() -> None:
    assert all(RECOMMENDED[name] in values for name, values in GRID.items())


@pytest.mark.parametrize("task", TASKS)
def test_the_speedups_of_the_text_are_quotients_of_the_table(task: str) -> None:
    """Section 4.2 rounds quotients of rounded numbers: so within 2 %."""
    ours = TABLE1[task, "fedbalancer"][0].mean
    prox = max(TABLE1[task, name][0].mean for name in ("prox+1t", "prox+2t"))
    assert SPEEDUPS[task, "fedavg"].mean == ours
    assert SPEEDUPS[task, "prox"].mean == pytest.approx(ours / prox, rel=0.02)
    other = TABLE1[task, "sampleselection"][0].mean
    assert SPEEDUPS[task, "sampleselection"].mean == pytest.approx(ours / other, rel=0.02)


def test_a_number_is_shown_as_it_is_printed() -> None:
    assert str(TABLE1["har", "fedbalancer"][0]) == "1.56 ± 0.28"
    assert str(TABLE1["har", "fedbalancer"][1]) == "0.855 ± 0.034"
