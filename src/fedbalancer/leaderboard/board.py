"""Entries as tables of tasks x methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedbalancer.leaderboard.entry import Entry, is_ours, seeds_text

SIGNS = {"faster": "▲", "slower": "▼", "open": "○", "none": ""}
SIGN_WORDS = {
    "faster": "faster than the reference, resolved",
    "slower": "slower than the reference, resolved",
    "open": "not resolved by the seeds",
    "none": "never reached the target",
}
NOTE = (
    "Other seeds than those of the paper's table, and so other references: not to be compared with it cell by cell. "
    "Cells differ in how many seeds they have; each is over the best FedAvg of its own."
)


@dataclass(frozen=True)
class Row:
    """A method of somebody's, with what it did on every task of its board."""

    method: str
    whose: str
    cells: tuple[Entry | None, ...]

    @property
    def of_a_grid(self) -> bool:
        return any(entry is not None and entry.of_a_grid for entry in self.cells)

    @property
    def ours(self) -> bool:
        return is_ours(self.method)


@dataclass(frozen=True)
class Board:
    """Methods x tasks at one scale, by one rule, for one target and on one series of seeds."""

    scale: str
    rule: str
    target_share: float
    series: str
    tasks: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        rule = {"fair": "fair rule", "paper": "the paper's rule"}.get(self.rule, self.rule)
        named = [f"scale {self.scale}" if self.scale else "", rule, f"target {self.target_share:.0%} of the reference"]
        return f"{self._seeds}{', '.join(filter(None, named))}"

    @property
    def note(self) -> str:
        """What has to be said of a series of its own."""
        return NOTE if self.series else ""

    @property
    def _seeds(self) -> str:
        """Which seeds the cells of a series have in all."""
        cells = [cell for row in self.rows for cell in row.cells if cell is not None]
        ends = [(cell.first_seed, cell.first_seed + cell.seeds - 1) for cell in cells if cell.first_seed is not None]
        if not self.series or not ends:
            return ""
        return f"{seeds_text(min(first for first, _ in ends), max(last for _, last in ends))}, {self.series}: "


def boards(entries: Iterable[Entry]) -> list[Board]:
    """A board for every scale, rule, target and series: the fair rule and the highest target first."""
    kinds: dict[tuple[str, str, float, str], list[Entry]] = {}
    for entry in entries:
        if entry.on_the_board:
            kinds.setdefault(entry.board, []).append(entry)
    order = sorted(kinds, key=lambda kind: (kind[1] != "fair", -kind[2], kind[0] != "small", kind[0], kind[3]))
    return [_board(kind, kinds[kind]) for kind in order]


def _board(kind: tuple[str, str, float, str], entries: Sequence[Entry]) -> Board:
    """Of several entries for one cell, which cannot be pooled, that of the most seeds counts; of equals the first."""
    tasks = tuple(dict.fromkeys(entry.task for entry in entries))
    names = dict.fromkeys((entry.method, entry.whose) for entry in entries)
    cells: dict[tuple[str, str, str], Entry] = {}
    for entry in sorted(entries, key=lambda entry: -entry.seeds):
        cells.setdefault((entry.method, entry.whose, entry.task), entry)
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


def reached_text(entry: Entry) -> str:
    """On how many of its seeds it came to the target.

    >>> reached_text(Entry("har", "fedbalancer", seeds=10, reached=9)), reached_text(Entry("har", "fedbalancer"))
    ('9 of 10', '')
    """
    return f"{entry.reached} of {entry.seeds}" if entry.seeds else ""


def interval_text(low: float | None, high: float | None, digits: int) -> str:
    """An interval, empty where there is none."""
    if low is None and high is None:
        return ""
    ends = ["…" if end is None else f"{end:.{digits}f}" for end in (low, high)]
    return f"{ends[0]} to {ends[1]}"


def accuracy_text(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{accuracy:.3f}"
