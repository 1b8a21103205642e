"""Entries as tables of tasks x methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedbalancer.leaderboard.entries import Entry

SIGNS = {"faster": "▲", "slower": "▼", "open": "○", "none": ""}
SIGN_WORDS = {
    "faster": "faster than the reference, resolved",
    "slower": "slower than the reference, resolved",
    "open": "not resolved by the seeds",
    "none": "never reached the target",
}


@dataclass(frozen=True)
class Row:
    """A method of somebody's, with what it did on every task of its board."""

    method: str
    whose: str
    cells: tuple[Entry | None, ...]

    @property
    def of_a_grid(self) -> bool:
        return any(entry is not None and entry.of_a_grid for entry in self.cells)


@dataclass(frozen=True)
class Board:
    """Methods x tasks at one scale, by one rule and for one target."""

    scale: str
    rule: str
    target_share: float
    tasks: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        rule = {"fair": "fair rule", "paper": "the paper's rule"}.get(self.rule, self.rule)
        named = [f"scale {self.scale}" if self.scale else "", rule, f"target {self.target_share:.0%} of the reference"]
        return ", ".join(filter(None, named))


def boards(entries: Iterable[Entry]) -> list[Board]:
    """A board for every scale, rule and target: the fair rule and the highest target first."""
    kinds: dict[tuple[str, str, float], list[Entry]] = {}
    for entry in entries:
        if entry.on_the_board:
            kinds.setdefault(entry.board, []).append(entry)
    order = sorted(kinds, key=lambda kind: (kind[1] != "fair", -kind[2], kind[0] != "small", kind))
    return [_board(kind, kinds[kind]) for kind in order]


def _board(kind: tuple[str, str, float], entries: Sequence[Entry]) -> Board:
    tasks = tuple(dict.fromkeys(entry.task for entry in entries))
    names = dict.fromkeys((entry.method, entry.whose) for entry in entries)
    cells = {(entry.method, entry.whose, entry.task): entry for entry in entries}
    rows = [Row(*name, tuple(cells.get((*name, task)) for task in tasks)) for name in names]
    return Board(*kind, tasks, tuple(rows))


def ratio_text(entry: Entry) -> str:
    """The speed-up, a bound of it, or that there was none.

    >>> ratio_text(Entry("har", "fedbalancer", ratio=1.56, reached=3)), ratio_text(Entry("har", "prox+1t", seeds=3))
    ('1.56', 'never')
    >>> ratio_text(Entry("har", "prox+1t", ratio=0.4, ratio_bound="<"))
    '< 0.40'
    """
    if not entry.ratio:
        return "never" if entry.seeds and not entry.reached else "–"
    return f"{entry.ratio_bound} {entry.ratio:.2f}".strip()


def interval_text(low: float | None, high: float | None, digits: int) -> str:
    """An interval, empty where there is none."""
    if low is None and high is None:
        return ""
    ends = ["…" if end is None else f"{end:.{digits}f}" for end in (low, high)]
    return f"{ends[0]} to {ends[1]}"


def accuracy_text(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{accuracy:.3f}"
