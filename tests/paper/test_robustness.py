"""The robustness matrix: what it measures, that it continues, and its page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.paper.robustness import (
    ABSENT,
    LIBRARY,
    METHODS,
    MOST_DEADLINE,
    MOST_SELECTED,
    NONE,
    ROUNDS,
    ROWS,
    Case,
    Row,
    compute_cells,
    list_cases,
    measure_matrix,
    read_rows,
    write_page,
    write_rows,
)
from fedbalancer.simulation.attacks import ATTACKS, parse_attack

COMMITTED = Path(__file__).parents[2] / "docs" / "results" / "robustness"
ROW = Row("canter+robust", NONE, 0, 0, "", 50, 0.0, 0.01, 0.9, 0.0, 0, 0, 0.6, math.nan)


def test_the_library_has_every_built_in_attack() -> None:
    assert {type(parse_attack(f"{attack}:1")[0]) for attack in LIBRARY} == {kind for _, kind in ATTACKS.values()}


def test_an_interrupted_matrix_has_all_attacks_of_its_first_seeds() -> None:
    cases = list_cases(METHODS, LIBRARY, (20, 10), (0, 1))
    assert len(cases) == len(set(cases)) == 2 * len(METHODS) * (3 + 2 * (1 + len(LIBRARY)))
    assert [case.seed for case in cases] == sorted(case.seed for case in cases)
    assert cases[0] == Case("canter+robust", NONE, 0, 0)
    with pytest.raises(UnknownName, match="quiet-flop"):
        list_cases(METHODS, ["quiet-flop"], (20,), (0,))
    with pytest.raises(UnknownName, match="cantor"):
        list_cases(["cantor"], LIBRARY, (20,), (0,))


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [replace(ROW, seed=seed, victims=0.25) for seed in range(3)]
    write_rows(tmp_path, rows[::-1])
    assert read_rows(tmp_path) == rows
    (tmp_path / ROWS).write_text("method,attack\ncanter,none\n")
    with pytest.raises(BadSetting, match="other columns"):
        read_rows(tmp_path)


def test_a_cell_is_the_share_of_the_accuracy_without_attackers_by_seed() -> None:
    honest = [replace(ROW, seed=seed, accuracy=0.5 + seed / 10) for seed in range(2)]
    clean = [replace(row, victims_of="backdoor", victims=0.4) for row in honest]
    attacked = [
        replace(row, attack="backdoor", attackers=20, accuracy=row.accuracy * 0.8, victims=0.1, selected=0.1 * row.seed)
        for row in honest
    ]
    cells = compute_cells([*honest, *clean, *attacked])
    cell = cells["canter+robust", "backdoor", 20, 50]
    assert cell.victims is not None
    assert (cell.kept_mean, cell.victims.mean, cell.selected) == pytest.approx((0.8, 0.25, 0.1))
    page = write_page([*honest, *clean, *attacked])
    assert "| `backdoor` | `canter+robust` | 0.440 | 80% (80% to 80%) | 25% (25% to 25%) | 1.0% | 10% |" in page
    assert "| 80% (`backdoor`) | 1 of 1: `backdoor` | 1.0% | 10% |" in page
    assert "| `canter+robust` | 50 | 0.550 (-0.085 to 1.185) | 2 |" in page


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    said: list[str] = []
    cases = list_cases(["canter+robust"], ["targeted-flip"], (20,), (0,))
    rows = measure_matrix(tmp_path, cases[:1], (1, 2), report=said.append)
    assert [(row.rounds, row.case) for row in rows] == [(1, cases[0]), (2, cases[0])]
    rows = measure_matrix(tmp_path, cases, (1, 2), report=said.append)
    assert said[1:] == [
        "1 of 3: canter+robust, no attackers, seed 0", "2 of 3: canter+robust, absent:20, seed 0",
        "3 of 3: canter+robust, targeted-flip:20, seed 0",
    ]  # fmt: skip
    assert {row.case for row in rows} == set(cases)
    assert all(0 <= row.victims <= 1 for row in rows if row.attack == "targeted-flip" or row.victims_of)
    again = measure_matrix(tmp_path, cases, (1, 2), report=said.append)
    assert [(row.case, row.rounds) for row in again] == [(row.case, row.rounds) for row in read_rows(tmp_path)]
    assert len(said) == 4


@pytest.mark.soak
@pytest.mark.parametrize("method", ["canter+robust", "fedbalancer+robust"])
def test_the_committed_matrix_can_be_measured_again(method: str, tmp_path: Path) -> None:
    """All attacks on one seed. Another processor rounds otherwise, so single runs differ, and their mean hardly."""
    pytest.importorskip("torch", reason="torch is not installed")
    cases = list_cases([method], LIBRARY, (20,), (0,))
    cells = compute_cells(measure_matrix(tmp_path, cases, ROUNDS))
    committed = compute_cells([row for row in read_rows(COMMITTED) if row.case in set(cases)])
    assert set(cells) == set(committed)
    for rounds in ROUNDS:
        here = [key for key in cells if key[3] == rounds]
        kept, before = (sum(each[key].kept_mean for key in here) / len(here) for each in (cells, committed))
        assert kept == pytest.approx(before, abs=0.05)
    attacks = [cell for key, cell in cells.items() if key[1] != ABSENT]
    assert max(cell.deadline for cell in attacks) <= MOST_DEADLINE
    assert max(cell.selected for cell in attacks) < MOST_SELECTED
