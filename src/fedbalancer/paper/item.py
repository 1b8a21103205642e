"""What an item is: it measures one task at a time into tables of numbers, and presents the tables of all its tasks.

Measuring may take hours, so its tables are kept, task by task; presenting reads nothing but them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fedbalancer.paper.printed import TASKS, Printed
from fedbalancer.paper.request import Request
from fedbalancer.paper.verdict import Ours, Verdict, compare
from fedbalancer.reporting.charts import Chart
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.style import Look
from fedbalancer.runs.jobs import JobEvent

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

Frames = Mapping[str, "pl.DataFrame"]
"""Tables by name; each has a column `task`."""


@dataclass(frozen=True)
class Table:
    """Text in rows and columns; the first column names the row."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """One figure of ours beside the paper's."""

    task: str
    what: str
    ours: Ours
    paper: Printed | None
    verdict: Verdict
    digits: int = 2

    @classmethod
    def of(
        cls, task: str, what: str, ours: Ours, paper: Printed | None, *, ratio: bool = True, digits: int = 2,
        more_is_better: bool | None = True,
    ) -> Finding:  # fmt: skip
        verdict = compare(ours, paper, ratio=ratio, more_is_better=more_is_better)
        return cls(task, what, ours, paper, verdict, paper.digits if paper is not None else digits)

    @property
    def ours_text(self) -> str:
        return figure_text(self.ours, self.digits)

    def to_json(self) -> dict[str, Any]:
        printed = None if self.paper is None else {
            "mean": self.paper.mean, "std": self.paper.std, "place": self.paper.place,
        }  # fmt: skip
        ours = asdict(self.ours)
        return {"task": self.task, "what": self.what, "ours": ours, "paper": printed, **self.verdict.to_json()}


def figure_text(ours: Ours, digits: int) -> str:
    """A figure with its interval, as far as it is known.

    >>> figure_text(Ours(1.5, 1.2, 1.9), 2), figure_text(Ours(0.4, None, 0.5, "<"), 1), figure_text(Ours(None), 2)
    ('1.50 (1.20 to 1.90)', '< 0.4', '–')
    """
    if ours.mean is None:
        return ours.bound or "–"
    text = f"{ours.bound} {ours.mean:.{digits}f}".strip()
    if ours.low is None or ours.high is None:
        return text
    return f"{text} ({ours.low:.{digits}f} to {ours.high:.{digits}f})"


@dataclass(frozen=True)
class Charts:
    """Charts, and how each thing that has lines or bars in them looks in all of them. `instead`: they show all that the
    item's drawing does."""

    drawn: Sequence[Chart] = ()
    looks: Mapping[str, Look] = field(default_factory=dict)
    instead: bool = True


@dataclass(frozen=True)
class Presentation:
    """What an item shows: its main figures in a sentence or two, tables, findings, notes and drawings by name. `json`
    is what `--json` prints. A headline of several tasks has its `points`, one for each; the page of an item that has
    `charts` shows these, and the drawings are for where a page cannot be."""

    headline: str
    points: Sequence[str] = ()
    charts: Charts = Charts()
    tables: Sequence[Table] = ()
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    json: Any = None


@dataclass(frozen=True)
class Work:
    """All that an item needs to measure one task."""

    request: Request
    task: str
    listen: Callable[[JobEvent], None] = lambda _: None
    stopped: Callable[[], bool] = lambda: False
    notes: list[str] = field(default_factory=list)
    """What could not be done, in words; whoever measures adds to it."""


class Item(Protocol):
    """One table or figure of the paper."""

    @property
    def name(self) -> str:
        """As the command line calls it."""

    @property
    def title(self) -> str:
        """What it shows, in a line."""

    @property
    def place(self) -> str:
        """Where it is in the paper."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that it takes unless told."""

    @property
    def scale(self) -> str:
        """The scale that it takes unless told."""

    @property
    def rule(self) -> Rule:
        """The rule that it scores by unless told."""

    def runs(self, request: Request) -> int:
        """How many runs it needs, those that are there included."""

    def check(self, request: Request) -> None:
        """Refuse what cannot be measured, before anything runs."""

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        """The tables of one task; makes the runs that are missing."""

    def present(self, frames: Frames) -> Presentation:
        """What the tables of all tasks show."""


@dataclass(frozen=True)
class WithoutRuns:
    """What items have in common that only draw the devices of the published tasks: nothing is run."""

    name: str
    title: str
    place: str
    tasks: tuple[str, ...] = TASKS
    scale: str = "paper"
    rule: Rule = "fair"

    def runs(self, request: Request) -> int:
        """None."""
        return 0

    def check(self, request: Request) -> None:
        """Refuse tasks that cannot be loaded."""
        for task in request.tasks:
            request.spec(task).load_task()
