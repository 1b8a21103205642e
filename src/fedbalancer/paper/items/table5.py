"""Table 5: all its methods on a test bed of 21 emulated phones, in as many sittings as there are seeds.

A sitting is one test bed: real Flower processes that take as long as the paper's phones took in one of their three
recorded sittings. One that is whole is found and used again; one that was stopped begins anew, since a bed cannot be
resumed. Seconds are the phones'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from fedbalancer.paper.charts import compared_charts
from fedbalancer.paper.item import Finding, Frames, Presentation, Work
from fedbalancer.paper.items.compared import headlines, joined, result_json, score_tables
from fedbalancer.paper.measured import Group, frames_of
from fedbalancer.paper.pool import FOUND
from fedbalancer.paper.printed import DISAGREE, TABLE5
from fedbalancer.paper.request import Request, Stopped
from fedbalancer.paper.rows import accuracy_of, rows_of, speedup_of
from fedbalancer.reporting.plotting import accuracy_panels
from fedbalancer.reporting.results import Results, load_comparison
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.scores import score
from fedbalancer.runs.jobs import JobEvent
from fedbalancer.store import status_of
from fedbalancer.testbed.bed import run_bed
from fedbalancer.testbed.phone_logs import PHONES as PHONE_LOG
from fedbalancer.testbed.phone_logs import lag_of
from fedbalancer.testbed.plan import DEFAULT_SPEED, FILE, BedPlan

METHODS = tuple(TABLE5)
PHONES = 21
NAME = "test bed"


@dataclass(frozen=True)
class Table5:
    """The test bed. `phones` is the file of the recorded phones, `first` the first sitting."""

    speed: float = DEFAULT_SPEED
    phones: Path | None = None
    first: int = 0
    clients: int = PHONES
    methods: tuple[str, ...] = METHODS
    name: str = "table5"
    title: str = "all methods on a test bed of 21 emulated phones"
    place: str = "Table 5"
    tasks: tuple[str, ...] = ("har",)
    scale: str = "paper"
    rule: Rule = "paper"

    def runs(self, request: Request) -> int:
        return len(request.tasks) * len(self.methods) * request.seeds

    def check(self, request: Request) -> None:
        for task in request.tasks:
            for seed in self._sittings(request):
                self._plan(request, task, seed)

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        plans = [self._plan(work.request, work.task, seed) for seed in self._sittings(work.request)]
        for plan in plans:
            self._sit(plan, work)
        results = [load_comparison(Path(plan.folder)) for plan in plans]
        return {**_frames(work, plans[0], results), "lags": _lags(plans)}

    def present(self, frames: Frames) -> Presentation:
        methods = frames["methods"]
        late = float(frames["lags"]["late_share"].mean() or 0.0)  # type: ignore[arg-type]
        points, findings = headlines(methods, Group(NAME, ("fedbalancer",))), _findings(methods)
        return Presentation(
            headline=joined(points),
            points=points,
            charts=compared_charts(methods, frames["scores"], frames["curves"], findings),
            tables=list(score_tables(methods)),
            findings=findings,
            notes=(
                "Phones are emulated by the recorded seconds of the authors' phones; accuracies are those of real "
                "training. A seed is one of their three sittings.",
                f"The machine was too slow for the phones in {late:.0%} of their rounds; their clock waited for it.",
                *DISAGREE,
            ),
            figures={self.name: accuracy_panels(frames["curves"])},
            json=result_json(methods),
        )

    def _sittings(self, request: Request) -> range:
        return range(self.first, self.first + request.seeds)

    def _plan(self, request: Request, task: str, seed: int) -> BedPlan:
        folder = request.runs / f"table5-{task}-{request.scale}" / f"sitting-{seed}"
        return BedPlan.make(
            folder, self.phones, methods=self.methods, clients=self.clients, speed=self.speed, rounds=request.rounds,
            seed=seed, task=task, scale=request.scale, overrides=dict(request.settings),
        )  # fmt: skip

    def _sit(self, plan: BedPlan, work: Work) -> None:
        if _is_whole(plan):
            for method in plan.methods:
                work.listen(JobEvent((method, plan.seed), "done", why=FOUND))
            return
        overwrite = (Path(plan.folder) / FILE).is_file()
        result = run_bed(plan, overwrite=overwrite, listen=work.listen, stopped=work.stopped)
        if result.stopped:
            raise Stopped


def _is_whole(plan: BedPlan) -> bool:
    """Whether a sitting of the same plan is there, with all its methods at their end."""
    if not (Path(plan.folder) / FILE).is_file():
        return False
    before = {**asdict(BedPlan.read(Path(plan.folder) / FILE)), "folder": plan.folder, "phones": plan.phones}
    return before == asdict(plan) and all(status_of(plan.run_folder(method)) == "done" for method in plan.methods)


def _frames(work: Work, plan: BedPlan, sittings: Sequence[Results]) -> dict[str, pl.DataFrame]:
    """All sittings scored together: each is a seed with a budget of its own."""
    curves = [curve for sitting in sittings for curve in sitting.curves]
    budgets_s = {seed: budget_s for sitting in sittings for seed, budget_s in sitting.budgets_s.items()}
    found = score(
        curves, budgets_s, methods=plan.methods, rule=work.request.rule, task=plan.loaded.name,
        variant=plan.loaded.variant, rounds=work.request.rounds,
    )  # fmt: skip
    work.notes.extend(found.notes)
    return frames_of({NAME: found}, curves, budgets_s, {"scale": plan.scale, "clients": plan.clients})


def _lags(plans: Sequence[BedPlan]) -> pl.DataFrame:
    """How well this machine kept up with the phones, by method and sitting."""
    rows = []
    for plan in plans:
        for method in plan.methods:
            phones = pl.read_parquet(plan.run_folder(method) / PHONE_LOG, glob=False)
            lag = lag_of(phones, plan.speed)
            rows.append((plan.loaded.name, method, plan.seed, lag.late, lag.p90_s, lag.worst_s))
    columns = ["task", "method", "seed", "late_share", "p90_s", "worst_s"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def _findings(methods: pl.DataFrame) -> list[Finding]:
    findings = []
    for row in rows_of(methods):
        speedup, accuracy = TABLE5.get(row["method"], (None, None)) if row["task"] == "har" else (None, None)
        findings.append(Finding.of(row["task"], f"{row['method']}: speed-up", speedup_of(row), speedup))
        what = f"{row['method']}: accuracy"
        findings.append(Finding.of(row["task"], what, accuracy_of(row), accuracy, ratio=False, digits=3))
    return findings


ITEM = Table5()
