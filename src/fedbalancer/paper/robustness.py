"""The robustness matrix: attack x method over seeds, as `fedbalancer bench attacks` measures and presents it.

One row per run and number of rounds, in one CSV file. Rows that are there are not measured again, so an interrupted
matrix continues, and methods or attacks can be added later.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.files import write_text
from fedbalancer.core.interfaces import Executor
from fedbalancer.data import Task
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import check_method_name
from fedbalancer.paper.attacks import measure_influences
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.simulation.attacks import TargetedAttack, make_attackers, parse_attack

NONE = "none"
ABSENT = "absent"
"""Instead of an attack: the attackers do not exist. What is lost then is lost with their data."""
LIBRARY = (
    "step-replay", "step-replay(factor=-1)", "common-direction", "quiet-flip", "quiet-flip(factor=.7)", "update-flip",
    "update-flip(factor=100)", "sleeper", "alternating", "silence", "update-scale", "little-is-enough", "inner-product",
    "against-median", "label-flip", "targeted-flip", "backdoor", "metadata-liar", "loss-drift", "utility-liar",
    "latency-liar(factor=.01)", "oscillating-latency", "epochs-liar", "epochs-liar(factor=1,samples=1e-6)",
)  # fmt: skip
"""The attacks of the matrix."""
METHODS = ("canter+robust", "fedbalancer+robust", "canter", "fedbalancer")
ROUNDS = (50, 100)
ROWS, PAGE = "attacks.csv", "README.md"
KEPT = {10: 0.90, 20: 0.85}
"""Goal: share of its own accuracy without attackers that a robust method keeps, by attackers of 100."""
MOST_DEADLINE, MOST_SELECTED = 0.10, 0.25
"""Goals: largest relative error of the deadline, and largest share of rounds with the same attacker."""


@dataclass(frozen=True)
class Case:
    """A run of the matrix.

    Args:
        method: Name of the method.
        attack: The attack; "none" for a run without attackers, "absent" for one without their clients.
        attackers: Number of attackers.
        seed: The run's seed.
        victims_of: A targeted attack whose victims a run without attackers is evaluated on; empty for none.
    """

    method: str
    attack: str
    attackers: int
    seed: int
    victims_of: str = ""


@dataclass(frozen=True)
class Row:
    """The measured values of a run after some rounds: the fields of `Case` and of `Influence`."""

    method: str
    attack: str
    attackers: int
    seed: int
    victims_of: str
    rounds: int
    threshold: float
    deadline: float
    honest: float
    selected: float
    rejected: int
    wrongly_rejected: int
    accuracy: float
    victims: float

    @property
    def case(self) -> Case:
        """The run."""
        return Case(self.method, self.attack, self.attackers, self.seed, self.victims_of)


def list_cases(
    methods: Sequence[str], attacks: Sequence[str], attackers: Sequence[int], seeds: Sequence[int]
) -> list[Case]:
    """Return the runs of a matrix, seed by seed, so that an interrupted one has all attacks for its first seeds.

    Args:
        methods: Names of the methods.
        attacks: Attacks without a number of clients.
        attackers: Numbers of attackers.
        seeds: The seeds.

    Raises:
        BadSetting: If a method or an attack has no such name.
    """
    for method in methods:
        check_method_name(method)
    targeted = [attack for attack in attacks if isinstance(parse_attack(f"{attack}:1")[0], TargetedAttack)]
    cases = []
    for seed in seeds:
        for method in methods:
            cases += [Case(method, NONE, 0, seed, victims_of) for victims_of in ("", *targeted)]
        for count in attackers:
            cases += [Case(method, attack, count, seed) for method in methods for attack in (ABSENT, *attacks)]
    return cases


def read_rows(folder: Path) -> list[Row]:
    """Return the rows that were measured; none if there is no file.

    Args:
        folder: The folder of the matrix.

    Raises:
        BadSetting: If the file has other columns.
    """
    path = folder / ROWS
    if not path.exists():
        return []
    types: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}
    columns = {each.name: types[str(each.type)] for each in fields(Row)}
    table = list(csv.DictReader(io.StringIO(path.read_text())))
    if any(set(each) != set(columns) for each in table):
        raise BadSetting(f"{path} has other columns than {', '.join(columns)}; remove it to measure again")
    return [Row(**{name: read(each[name]) for name, read in columns.items()}) for each in table]


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Write all rows, sorted.

    Args:
        folder: The folder of the matrix.
        rows: The rows.
    """
    ordered = sorted(
        rows, key=lambda row: (row.method, row.attack, row.attackers, row.victims_of, row.rounds, row.seed)
    )
    text = io.StringIO()
    table = csv.DictWriter(text, [each.name for each in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(
        {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in asdict(row).items()}
        for row in ordered
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / ROWS, text.getvalue())


def measure_matrix(
    folder: Path,
    cases: Sequence[Case],
    rounds: Sequence[int] = ROUNDS,
    task: str = "synthetic",
    users: int | None = 100,
    report: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Measure the runs that the folder does not have yet, and write the rows and the page.

    Args:
        folder: The folder of the matrix.
        cases: The runs.
        rounds: Numbers of rounds after which a run is measured, ascending.
        task: Name of the task.
        users: Number of clients.
        report: Receives a line before each run.

    Returns:
        All rows of the folder.
    """
    rows = read_rows(folder)
    have = {row.case for row in rows if row.rounds == rounds[-1]}
    todo = [case for case in cases if case not in have]
    if todo:
        measure = _Measure(RunSpec(task=task, users=users, rounds=rounds[-1]), tuple(rounds))
    for number, case in enumerate(todo):
        who = f"{case.attack}:{case.attackers}" if case.attackers else "no attackers"
        report(f"{number + 1} of {len(todo)}: {case.method}, {who}, seed {case.seed}")
        rows = [row for row in rows if row.case != case] + measure(case)
        write_rows(folder, rows)
    write_text(folder / PAGE, write_page(rows))
    return rows


class _Measure:
    """Measures cases with one task and one executor.

    Args:
        base: The run without method, seed and attacks.
        rounds: Numbers of rounds after which a run is measured.
    """

    def __init__(self, base: RunSpec, rounds: tuple[int, ...]) -> None:
        self._base, self._rounds = base, rounds
        self._task: Task = base.load_task()
        self._executor = ExecutorCache().executor(base, self._task)
        self._victims: dict[str, Executor] = {}

    def __call__(self, case: Case) -> list[Row]:
        """Return the rows of a case, one for each number of rounds."""
        spec = replace(self._base, method=case.method, seed=case.seed)
        task, executor, attacks = self._task, self._executor, (f"{case.attack}:{case.attackers}",)
        if case.attack == ABSENT:
            task = _without_attackers(task, case)
            executor = ExecutorCache().executor(spec, task)
        victims = self._victims_of(case.victims_of or case.attack)
        honest = case.attack in (NONE, ABSENT)
        influences = measure_influences(spec, task, executor, () if honest else attacks, self._rounds, victims)
        return [
            Row(**asdict(case), rounds=number, **asdict(influence))
            for number, influence in zip(self._rounds, influences, strict=True)
        ]

    def _victims_of(self, name: str) -> Executor | None:
        """Return an executor that evaluates on the victims of a targeted attack; None for other attacks."""
        attack: object = None if name in (NONE, ABSENT) else parse_attack(f"{name}:1")[0]
        if not isinstance(attack, TargetedAttack):
            return None
        if name not in self._victims:
            classes = self._task.classes or int(np.max(self._task.test[1])) + 1
            spoilt = replace(self._task, test=attack.victims(self._task.test, classes))
            self._victims[name] = ExecutorCache().executor(self._base, spoilt)
        return self._victims[name]


def _without_attackers(task: Task, case: Case) -> Task:
    """Return the task without the clients that would attack with the case's seed."""
    drawn = make_attackers((f"silence:{case.attackers}",), tuple(sorted(task.sizes)), case.seed)
    attackers = {} if drawn is None else drawn.attack_of
    return replace(task, clients={client: task.clients[client] for client in task.sizes if client not in attackers})


@dataclass(frozen=True)
class Cell:
    """One method under one attack, over seeds.

    Args:
        accuracy: Mean accuracy.
        kept: Accuracy as a share of that without attackers, paired by seed.
        victims: The same of the accuracy on the victims of a targeted attack; None for other attacks.
        deadline: Largest relative error of the deadline.
        selected: Largest share of rounds with the same attacker.
        seeds: Number of seeds.
    """

    accuracy: float
    kept: Estimate
    victims: Estimate | None
    deadline: float
    selected: float
    seeds: int

    @property
    def kept_mean(self) -> float:
        """Mean of `kept`."""
        return math.nan if self.kept.mean is None else self.kept.mean


def compute_cells(rows: Sequence[Row]) -> dict[tuple[str, str, int, int], Cell]:
    """Return the cells of the matrix by method, attack, attackers and rounds.

    Args:
        rows: The measured rows.
    """
    honest = {(row.method, row.victims_of, row.rounds, row.seed): row for row in rows if row.attack == NONE}
    groups: dict[tuple[str, str, int, int], list[tuple[Row, Row]]] = defaultdict(list)
    for row in rows:
        reference = honest.get((row.method, "", row.rounds, row.seed))
        if row.attack != NONE and reference is not None:
            groups[row.method, row.attack, row.attackers, row.rounds].append((row, reference))
    return {key: _cell(pairs, honest) for key, pairs in groups.items()}


def _cell(pairs: list[tuple[Row, Row]], honest: dict[tuple[str, str, int, int], Row]) -> Cell:
    spoilt = [
        row.victims / honest[key].victims
        for row, _ in pairs
        if (key := (row.method, row.attack, row.rounds, row.seed)) in honest and honest[key].victims > 0
    ]
    return Cell(
        accuracy=float(np.mean([row.accuracy for row, _ in pairs])),
        kept=Estimate.of([row.accuracy / reference.accuracy for row, reference in pairs]),
        victims=Estimate.of(spoilt) if spoilt else None,
        deadline=max(row.deadline for row, _ in pairs),
        selected=max(row.selected for row, _ in pairs),
        seeds=len(pairs),
    )


def write_page(rows: Sequence[Row]) -> str:
    """Return the page of the matrix as Markdown.

    Args:
        rows: The measured rows.
    """
    cells = compute_cells(rows)
    return "\n".join([*_introduction(), *_unattacked(rows), *_goals(cells), *_tables(cells)]) + "\n"


def _introduction() -> Iterator[str]:
    yield from (
        "<!-- written by `fedbalancer bench attacks` -->",
        "",
        "# Attack matrix",
        "",
        "100 clients of `synthetic`, ten per round. Attackers know the code. In every attack on the model except "
        "`update-flip`, `update-scale`, `label-flip`, `targeted-flip` and `backdoor`, they also claim a constant loss.",
        "",
        "- *Accuracy* is the mean of the last five rounds.",
        "- *Kept* is the accuracy as a share of that of the same method and seed without attackers, with a 95% "
        "interval over seeds. In the rows `absent`, the attackers' clients do not exist: this is the loss of their "
        "data alone.",
        "- *Victims* is the same share on the samples that a targeted attack tries to spoil: class 3, or samples with "
        "the trigger.",
        "- *Deadline* is the largest relative error of the deadline, compared with a server that gets true reports.",
        "- *Selected* is the share of rounds in which the most often selected attacker took part.",
        "",
        "`fedbalancer bench attacks --out docs/results/robustness` measures what is missing and writes this page. The "
        f"data: [{ROWS}]({ROWS}), one row per run and number of rounds. The rule: [robust](../../methods/robust.md).",
        "",
    )


def _unattacked(rows: Sequence[Row]) -> Iterator[str]:
    yield from ("## Without attackers", "", "| method | rounds | accuracy | seeds |", "|:--|--:|--:|--:|")
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.attack == NONE and not row.victims_of:
            groups[row.method, row.rounds].append(row.accuracy)
    for (method, rounds), values in sorted(groups.items()):
        yield f"| `{method}` | {rounds} | {_text(Estimate.of(values), '.3f')} | {len(values)} |"
    yield ""


def _goals(cells: dict[tuple[str, str, int, int], Cell]) -> Iterator[str]:
    yield from (
        "## Goals of `+robust`",
        "",
        "| method | attackers | rounds | seeds | kept, worst attack | below the goal | deadline, worst | "
        "selected, worst |",
        "|:--|--:|--:|--:|:--|:--|--:|--:|",
    )
    groups: dict[tuple[str, int, int], list[tuple[str, Cell]]] = defaultdict(list)
    for (method, attack, attackers, rounds), cell in cells.items():
        if "+robust" in method and attack != ABSENT:
            groups[method, attackers, rounds].append((attack, cell))
    for (method, attackers, rounds), measured in sorted(groups.items()):
        goal = KEPT.get(attackers, math.nan)
        attack, worst = min(measured, key=lambda each: each[1].kept_mean)
        missed = sorted(each for each, cell in measured if cell.kept_mean < goal)
        deadline, selected = (max(getattr(cell, name) for _, cell in measured) for name in ("deadline", "selected"))
        least, most = (pick(cell.seeds for _, cell in measured) for pick in (min, max))
        seeds = f"{least}" if least == most else f"{least} to {most}"
        yield (
            f"| `{method}` | {attackers} | {rounds} | {seeds} | {worst.kept_mean:.0%} (`{attack}`) | "
            f"{len(missed)} of {len(measured)}{': ' if missed else ''}{', '.join(f'`{each}`' for each in missed)} | "
            f"{deadline:.1%} | {selected:.0%} |"
        )
    yield from (
        "",
        f"The goals: {KEPT[20]:.0%} of the accuracy kept with 20 attackers and {KEPT[10]:.0%} with ten, a deadline "
        f"within {MOST_DEADLINE:.0%}, and no attacker in {MOST_SELECTED:.0%} of the rounds or more.",
        "",
    )


def _tables(cells: dict[tuple[str, str, int, int], Cell]) -> Iterator[str]:
    order = (ABSENT, *LIBRARY)
    for attackers, rounds in sorted({(key[2], key[3]) for key in cells}, reverse=True):
        methods = sorted({key[0] for key in cells if key[2:] == (attackers, rounds)})
        yield from (f"## {attackers} attackers of 100, {rounds} rounds", "")
        yield "| attack | method | accuracy | kept | victims | deadline | selected |"
        yield "|:--|:--|--:|:--|:--|--:|--:|"
        names = {key[1] for key in cells if key[2:] == (attackers, rounds)}
        for attack in sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name)):
            for method in methods:
                cell = cells.get((method, attack, attackers, rounds))
                if cell is not None:
                    victims = "" if cell.victims is None else _percent(cell.victims)
                    yield (
                        f"| `{attack}` | `{method}` | {cell.accuracy:.3f} | {_percent(cell.kept)} | {victims} | "
                        f"{cell.deadline:.1%} | {cell.selected:.0%} |"
                    )
        yield ""


def _percent(estimate: Estimate) -> str:
    return _text(estimate, ".0%")


def _text(estimate: Estimate, style: str) -> str:
    mean = math.nan if estimate.mean is None else estimate.mean
    if estimate.low is None or estimate.high is None:
        return f"{mean:{style}}"
    return f"{mean:{style}} ({estimate.low:{style}} to {estimate.high:{style}})"
