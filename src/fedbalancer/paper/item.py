"""The interface of an item (a table or figure of the paper), and the values it works with.

An item measures one task at a time into tables of numbers and presents the tables of all its tasks. Measuring can take
hours, so the tables are stored by task; presenting reads nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedbalancer.core.errors import BadSetting
from fedbalancer.experiments.progress import JobEvent
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.paper.printed import Printed
from fedbalancer.reporting.charts import Chart
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.style import Look
from fedbalancer.simulation.executors import Resources

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

Frames = Mapping[str, "pl.DataFrame"]
"""Tables by name; each has a column `task`."""
Listen = Callable[[str, JobEvent], None]
"""Callback that receives the task and an event of one of its runs."""
Word = Literal["within", "better", "worse", "above", "below", "unknown", "not measured", "not in the paper"]


class Stopped(Exception):
    """The user asked to stop; finished runs are kept."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of one `fedbalancer paper ITEM` command.

    Args:
        tasks: Names of the tasks.
        scale: Scale of the tasks.
        seeds: The seeds.
        users: Number of clients per task. Default: all.
        variant: Variant of the tasks' data. Default: the best available.
        settings: Settings of all runs.
        rounds: Number of rounds of the budget. Default: the task's.
        extend: Maximum number of budgets that a run may take to reach the target.
        rule: The scoring rule.
        grid: Whether to run the settings of Table 2.
        runs: Folder of the pool of runs, which all items share.
        jobs: Number of runs at the same time. Default: by the number of cores.
        resources: Resources for training.
        backend: Training backend.
        device: Device for training.

    Raises:
        BadSetting: If there is no task, a task is repeated, or a number is out of range.
    """

    tasks: tuple[str, ...]
    scale: str = "small"
    seeds: tuple[int, ...] = (0, 1, 2)
    users: int | None = None
    variant: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    extend: float = 2.0
    rule: Rule = "fair"
    grid: bool = True
    runs: Path = Path("runs") / "paper"
    jobs: int | None = None
    resources: Resources = field(default_factory=lambda: Resources(workers=None))
    backend: str = "fast"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadSetting("an item needs at least one task; name them with --tasks a,b")
        if len(set(self.tasks)) < len(self.tasks):
            raise BadSetting(f"a task is listed twice: {', '.join(self.tasks)}")
        if not 1 <= self.extend <= 1000:
            raise BadSetting(f"extend = {self.extend} must be from 1 to 1000 budgets")

    @property
    def seeds_text(self) -> str:
        """The number of seeds or, if they do not start at 0, the seeds.

        Example:
            >>> [Request(tasks=("har",), seeds=seeds).seeds_text for seeds in ((0, 1, 2), (10, 11, 12), (4, 7))]
            ['3', '10..12', '4, 7']
        """
        first, count = self.seeds[0], len(self.seeds)
        if self.seeds != tuple(range(first, first + count)):
            return ", ".join(map(str, self.seeds))
        return f"{first}..{self.seeds[-1]}" if first else str(count)

    def spec(self, task: str) -> RunSpec:
        """Return the specification that all runs on a task share."""
        return RunSpec(
            task=task, scale=self.scale, users=self.users, variant=self.variant, settings=dict(self.settings),
            rounds=self.rounds, backend=self.backend, device=self.device,
        )  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A measured value with its 95% interval.

    Args:
        mean: The value; None if unknown.
        low: Lower end of the interval; None if unknown.
        high: Upper end of the interval; None if unknown.
        bound: "<" or ">" if the value is only known to be below or above `mean`, because some run never reached its
            target; "?" if nothing is known about it.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    bound: str = ""


@dataclass(frozen=True)
class Verdict:
    """The comparison of a measured value with the paper's.

    Args:
        word: The verdict.
        factor: The measured value divided by the paper's mean.
        difference: The measured value minus the paper's mean.
        resolved: Whether the whole interval gives the verdict; None without an interval or a value of the paper.
        ratio: Whether the text shows the factor, not the difference.
        digits: Number of digits of the difference in the text.
    """

    word: Word
    factor: float | None = None
    difference: float | None = None
    resolved: bool | None = None
    ratio: bool = True
    digits: int = 2

    @property
    def text(self) -> str:
        """The verdict for a table."""
        if self.difference is None:
            return self.word
        amount = f"{self.difference:+.{self.digits}f}"
        if self.ratio and self.factor is not None:
            amount = f"{self.factor:.2f} ×"
        resolution = {True: ", resolved", False: ", not resolved", None: ", no interval"}[self.resolved]
        return f"{self.word}, {amount}{resolution}"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        return {
            "verdict": self.word, "factor": self.factor, "difference": self.difference, "resolved": self.resolved,
        }  # fmt: skip


def judge(ours: Measured, paper: Printed | None, *, ratio: bool = True, more_is_better: bool | None = True) -> Verdict:
    """Compare a measured value with the paper's.

    The paper's interval is its mean ± one standard deviation as printed, widened by half of the last digit. Ours is the
    95% interval of the mean over seeds. A verdict is resolved if our whole interval gives it: all of it inside the
    paper's interval, or all of it on the same side.

    Args:
        ours: The measured value.
        paper: The printed value; None if the paper has none.
        ratio: Whether the text of the verdict shows a factor, not a difference.
        more_is_better: Whether larger values are better; None gives the neutral words "above" and "below".

    Example:
        >>> judge(Measured(2.0, 1.8, 2.2), Printed(1.56, 0.28)).text
        'better, 1.28 ×, not resolved'
        >>> judge(Measured(0.80, 0.79, 0.81), Printed(0.855, 0.034, 3), ratio=False).text
        'worse, -0.055, resolved'
    """
    if ours.mean is None:
        return Verdict("unknown" if ours.bound == "?" else "not measured")
    if paper is None:
        return Verdict("not in the paper")
    side = _side(ours.mean, paper)
    if side != {"<": -1, ">": 1}.get(ours.bound, side):
        return Verdict("unknown")  # the value can be anywhere beyond its bound
    factor = ours.mean / paper.mean if paper.mean else None
    return Verdict(
        _word(side, more_is_better), factor, ours.mean - paper.mean, _resolve(ours, paper, side), ratio, paper.digits
    )


def _side(value: float, paper: Printed) -> int:
    """Return -1, 0 or 1: below, within or above the paper's interval."""
    return int(value > paper.high) - int(value < paper.low)


def _word(side: int, more_is_better: bool | None) -> Word:
    if side == 0:
        return "within"
    if more_is_better is None:
        return "above" if side > 0 else "below"
    return "better" if (side > 0) == more_is_better else "worse"


def _resolve(ours: Measured, paper: Printed, side: int) -> bool | None:
    """Return whether the interval is on one side; for a bound, only its known end counts."""
    ends = {"<": (ours.high,), ">": (ours.low,)}.get(ours.bound, (ours.low, ours.high))
    return None if None in ends else all(_side(end, paper) == side for end in ends if end is not None)


@dataclass(frozen=True)
class Finding:
    """One measured value next to the paper's.

    Args:
        task: Name of the task.
        what: Description of the value.
        ours: The measured value.
        paper: The paper's value; None if it has none.
        verdict: The comparison of both.
        digits: Number of digits in texts.
    """

    task: str
    what: str
    ours: Measured
    paper: Printed | None
    verdict: Verdict
    digits: int = 2

    @classmethod
    def of(
        cls, task: str, what: str, ours: Measured, paper: Printed | None, *, ratio: bool = True, digits: int = 2,
        more_is_better: bool | None = True,
    ) -> Finding:  # fmt: skip
        """Judge a value, see `judge`."""
        verdict = judge(ours, paper, ratio=ratio, more_is_better=more_is_better)
        return cls(task, what, ours, paper, verdict, paper.digits if paper is not None else digits)

    @property
    def ours_text(self) -> str:
        """The measured value with its interval, as text."""
        return value_text(self.ours, self.digits)

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        printed = None if self.paper is None else {
            "mean": self.paper.mean, "std": self.paper.std, "place": self.paper.place,
        }  # fmt: skip
        ours = asdict(self.ours)
        return {"task": self.task, "what": self.what, "ours": ours, "paper": printed, **self.verdict.to_json()}


def value_text(value: Measured, digits: int) -> str:
    """Format a value with its interval.

    Example:
        >>> value_text(Measured(1.5, 1.2, 1.9), 2), value_text(Measured(0.4, None, 0.5, "<"), 1)
        ('1.50 (1.20 to 1.90)', '< 0.4')
        >>> value_text(Measured(None), 2)
        '–'
    """
    if value.mean is None:
        return value.bound or "–"
    text = f"{value.bound} {value.mean:.{digits}f}".strip()
    if value.low is None or value.high is None:
        return text
    return f"{text} ({value.low:.{digits}f} to {value.high:.{digits}f})"


@dataclass(frozen=True)
class Table:
    """Text in rows and columns; the first column names the row.

    Args:
        title: The title.
        header: The headings of the columns.
        rows: The rows.
        note: A note below the table.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Charts:
    """Interactive charts.

    Args:
        charts: The charts.
        looks: The looks of their lines.
        complete: Whether they replace the item's figure.
    """

    charts: Sequence[Chart] = ()
    looks: Mapping[str, Look] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True)
class Presentation:
    """The content of an item's page.

    Args:
        headline: The main results in a sentence or two.
        points: The headline as one point per task.
        charts: Interactive charts of the page.
        tables: Tables, the main one first.
        findings: Measured values next to the paper's.
        notes: Notes for the reader.
        figures: Figures by file name, for places without the page.
        json: The value that `--json` prints.
    """

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
    """The input of an item that measures one task.

    Args:
        request: The options of the command.
        task: Name of the task.
        listen: Receives the events of runs.
        stopped: Returns whether the user has interrupted the command.
        notes: The item adds problems here.
    """

    request: Request
    task: str
    listen: Callable[[JobEvent], None] = lambda _: None
    stopped: Callable[[], bool] = lambda: False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Item(ABC):
    """One table or figure of the paper.

    Args:
        name: Name on the command line.
        title: Title, in one line.
        place: Place in the paper, such as "Table 1".
        tasks: Default tasks.
        scale: Default scale.
        rule: Default scoring rule.
    """

    name: str
    title: str
    place: str
    tasks: tuple[str, ...] = ("har",)
    scale: str = "small"
    rule: Rule = "fair"

    @abstractmethod
    def runs(self, request: Request) -> int:
        """Return the number of runs that a request needs, including existing ones."""

    @abstractmethod
    def check(self, request: Request) -> None:
        """Validate a request before anything runs.

        Raises:
            FedBalancerError: If the request cannot be measured.
        """

    @abstractmethod
    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        """Return the tables of one task; missing runs are executed."""

    @abstractmethod
    def present(self, frames: Frames) -> Presentation:
        """Present the tables of all tasks."""
