"""What a leaderboard shows: one entry for a method on a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAIN = "table1"
"""The item whose methods stand in the tables of tasks x methods; the others are in the list."""
OURS = "tempo"
"""The project's own method, marked where it stands among those of papers."""


@dataclass(frozen=True)
class Entry:
    """A method on a task. `ratio` is its speed-up over the reference with a 95 % interval, where there is one, or a
    bound of it if `ratio_bound` is "<" or ">"; the accuracies of clients are those of the final model on
    their own data; `whose` is empty for results of the project; `link` leads, from the leaderboard's folder, to where
    it comes from. `series` is empty for the seeds of the main item, and else says what was measured on others, from
    `first_seed` on: against other references, and so on a board apart."""

    task: str
    method: str
    scale: str = ""
    variant: str = ""
    rule: str = ""
    target_share: float = 1.0
    seeds: int = 0
    reached: int = 0
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_bound: str = ""
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    client_median: float | None = None
    client_worst_decile: float | None = None
    item: str = ""
    group: str = ""
    whose: str = ""
    link: str = ""
    measured: str = ""
    series: str = ""
    first_seed: int | None = None

    @property
    def verdict(self) -> Literal["faster", "slower", "open", "none"]:
        """Whether the seeds resolve that it is faster or slower than the reference."""
        if self.ratio is None or (not self.ratio and not self.reached):  # the paper's 0 for "never"
            return "none"
        if self.ratio_low is not None and self.ratio_low > 1:
            return "faster"
        return "slower" if self.ratio_high is not None and self.ratio_high < 1 else "open"

    @property
    def of_a_grid(self) -> bool:
        """Whether it is one of the settings over which the main item looks for the best: shown if asked for."""
        return self.item == MAIN and "[" in self.method

    @property
    def on_the_board(self) -> bool:
        return bool(self.whose or self.series) or self.item == MAIN

    @property
    def board(self) -> tuple[str, str, float, str]:
        """Entries are comparable where scale, rule, target and series of seeds are the same."""
        return self.scale, self.rule, self.target_share, self.series


def is_ours(method: str) -> bool:
    """Whether a method is the project's own, with or without settings and parts that were added.

    >>> [is_ours(name) for name in ("tempo", "tempo+late", "tempo[clients=Uniform]", "temporal", "fedbalancer")]
    [True, True, True, False, False]
    """
    return method.replace("[", "+").partition("+")[0] == OURS


def seeds_text(first: int, last: int) -> str:
    """Which seeds.

    >>> seeds_text(10, 19), seeds_text(3, 3)
    ('seeds 10 to 19', 'seed 3')
    """
    return f"seeds {first} to {last}" if last > first else f"seed {first}"
