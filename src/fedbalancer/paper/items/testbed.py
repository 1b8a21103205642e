"""Items about the test bed: all methods on 21 emulated phones (Table 5), and the phones' latencies (Figure 8).

A session of Table 5 is one test bed: real Flower processes that take as long as the paper's phones in one of their
three recorded sessions. A complete session is reused; an interrupted one starts again, because a test bed cannot be
resumed. Seconds are those of the phones' clock.

Figure 8 shows the seconds that the authors recorded on their 21 phones, about ten rounds in each of three sessions,
which are those that `fedbalancer testbed` emulates. The model of each phone was not recorded, so the two phones of the
paper's figure cannot be identified; ours are the phones with the steadiest and the least steady network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fedbalancer.core.errors import MissingData
from fedbalancer.experiments.progress import JobEvent
from fedbalancer.paper.charts import comparison_charts, line_charts
from fedbalancer.paper.item import (
    Charts,
    Finding,
    Frames,
    Item,
    Measured,
    Presentation,
    Request,
    Stopped,
    Table,
    Work,
)
from fedbalancer.paper.items.comparisons import (
    accuracy_finding,
    join_points,
    result_json,
    score_tables,
    speedup_finding,
    write_points,
)
from fedbalancer.paper.pool import REUSED
from fedbalancer.paper.printed import DISAGREE, NETWORK_CV, NETWORK_PEAK
from fedbalancer.paper.printed import TABLE5 as PRINTED
from fedbalancer.paper.scores import Group, list_rows, make_frames
from fedbalancer.paper.testbed.bed import run_bed
from fedbalancer.paper.testbed.phone_logs import PHONES as PHONE_LOG
from fedbalancer.paper.testbed.phone_logs import lag_of
from fedbalancer.paper.testbed.phones import FILE as RECORDED
from fedbalancer.paper.testbed.phones import SESSIONS, find_file, read_phones
from fedbalancer.paper.testbed.plan import DEFAULT_SPEED, FILE, BedPlan
from fedbalancer.reporting.plotting import accuracy_panels, add_legend, make_panels
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.results import Results, load_comparison
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.scores import score
from fedbalancer.reporting.style import BLUE, ORANGE
from fedbalancer.store import read_status

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = tuple(PRINTED)
PHONES = 21
NAME = "test bed"
TASK = "har"
"""The task on which the phones were recorded."""
NETWORK, TRAINING = "network", "training, 100 batches"


@dataclass(frozen=True, kw_only=True)
class Table5(Item):
    """All methods on the test bed. A seed is a session.

    Args:
        speed: Maximum phone seconds per second.
        phones: File of the recorded phones.
        clients: Number of phones.
        methods: The methods.
    """

    speed: float = DEFAULT_SPEED
    phones: Path | None = None
    clients: int = PHONES
    methods: tuple[str, ...] = METHODS
    name: str = "table5"
    title: str = "all methods on a test bed of 21 emulated phones"
    place: str = "Table 5"
    scale: str = "paper"
    rule: Rule = "paper"

    def runs(self, request: Request) -> int:
        return len(request.tasks) * len(self.methods) * len(request.seeds)

    def check(self, request: Request) -> None:
        for task in request.tasks:
            for seed in request.seeds:
                self._plan(request, task, seed)

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        plans = [self._plan(work.request, work.task, seed) for seed in work.request.seeds]
        for plan in plans:
            self._run_session(plan, work)
        results = [load_comparison(Path(plan.folder)) for plan in plans]
        return {**_score_sessions(work, plans[0], results), "lags": _measure_lags(plans)}

    def present(self, frames: Frames) -> Presentation:
        methods = frames["methods"]
        late = float(frames["lags"]["late_share"].mean() or 0.0)  # type: ignore[arg-type]
        points, findings = write_points(methods, Group(NAME, ("fedbalancer",))), _find_methods(methods)
        return Presentation(
            headline=join_points(points),
            points=points,
            charts=comparison_charts(methods, frames["scores"], frames["curves"], findings),
            tables=list(score_tables(methods)),
            findings=findings,
            notes=(
                "Phones are emulated with the recorded seconds of the authors' phones; training and accuracies are "
                "real. A seed is one of their three sessions.",
                f"The machine was too slow for the phones in {late:.0%} of their rounds; their clock waited for it.",
                *DISAGREE,
            ),
            figures={self.name: accuracy_panels(frames["curves"])},
            json=result_json(methods),
        )

    def _plan(self, request: Request, task: str, seed: int) -> BedPlan:
        folder = request.runs / f"table5-{task}-{request.scale}" / f"session-{seed}"
        return BedPlan.make(
            folder, self.phones, methods=self.methods, clients=self.clients, speed=self.speed, rounds=request.rounds,
            seed=seed, task=task, scale=request.scale, overrides=dict(request.settings),
        )  # fmt: skip

    def _run_session(self, plan: BedPlan, work: Work) -> None:
        if _is_complete(plan):
            for method in plan.methods:
                work.listen(JobEvent((method, plan.seed), "done", why=REUSED))
            return
        overwrite = (Path(plan.folder) / FILE).is_file()
        result = run_bed(plan, overwrite=overwrite, listen=work.listen, stopped=work.stopped)
        if result.stopped:
            raise Stopped


def _is_complete(plan: BedPlan) -> bool:
    """Return whether a session of the same plan exists in which all methods are done."""
    if not (Path(plan.folder) / FILE).is_file():
        return False
    before = {**asdict(BedPlan.read(Path(plan.folder) / FILE)), "folder": plan.folder, "phones": plan.phones}
    return before == asdict(plan) and all(read_status(plan.run_folder(method)) == "done" for method in plan.methods)


def _score_sessions(work: Work, plan: BedPlan, sessions: Sequence[Results]) -> dict[str, pl.DataFrame]:
    """Score all sessions together; each is a seed with its own budget."""
    curves = [curve for session in sessions for curve in session.curves]
    budgets_s = {seed: budget_s for session in sessions for seed, budget_s in session.budgets_s.items()}
    comparison = score(
        curves, budgets_s, methods=plan.methods, rule=work.request.rule, task=plan.loaded.name,
        variant=plan.loaded.variant, rounds=work.request.rounds,
    )  # fmt: skip
    work.notes.extend(comparison.notes)
    return make_frames({NAME: comparison}, curves, budgets_s, {"scale": plan.scale, "clients": plan.clients})


def _measure_lags(plans: Sequence[BedPlan]) -> pl.DataFrame:
    """Measure how far this machine lagged behind the phones, by method and session."""
    rows = []
    for plan in plans:
        for method in plan.methods:
            phones = pl.read_parquet(plan.run_folder(method) / PHONE_LOG, glob=False)
            lag = lag_of(phones, plan.speed)
            rows.append((plan.loaded.name, method, plan.seed, lag.late, lag.p90_s, lag.worst_s))
    columns = ["task", "method", "seed", "late_share", "p90_s", "worst_s"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def _find_methods(methods: pl.DataFrame) -> list[Finding]:
    findings = []
    for row in list_rows(methods):
        speedup, accuracy = PRINTED.get(row["method"], (None, None)) if row["task"] == TASK else (None, None)
        findings += [speedup_finding(row, row["method"], speedup), accuracy_finding(row, row["method"], accuracy)]
    return findings


TABLE5 = Table5()


class Figure8(Item):
    """Latencies of the recorded phones."""

    def runs(self, request: Request) -> int:
        return 0

    def check(self, request: Request) -> None:
        if find_file() is None:
            raise MissingData(f"fig8 needs the recorded phones, {RECORDED}, in the folder FEDBALANCER_DATA")

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        file = find_file()
        assert file is not None  # see `check`
        if work.task != TASK:
            work.notes.append(f"the phones were recorded on {TASK} only; there are no rows for {work.task}")
        rows = [
            (TASK, session, phone.name, number, float(batch_s), float(network_s))
            for session in range(len(SESSIONS))
            for phone in read_phones(file, session)
            for number, (batch_s, network_s) in enumerate(zip(phone.batch_s, phone.network_s, strict=True))
        ]
        columns = ["task", "session", "phone", "round", "batch_s", "network_s"]
        return {"latencies": pl.DataFrame(rows, schema=columns, orient="row")}

    def present(self, frames: Frames) -> Presentation:
        phones = average_phones(frames["latencies"])
        network, batch = (float(np.mean(phones[f"{name}_cv"].to_numpy())) for name in ("network", "batch"))
        peak = float(np.max(phones["network_peak"].to_numpy()))
        return Presentation(
            headline=f"Mean coefficient of variation over phones and sessions: {batch:.3f} for training, {network:.2f} "
            f"for the network. The longest network time of a round was {peak:.2f} times the phone's mean.",
            charts=_latency_charts(frames["latencies"], phones),
            tables=[_phone_table(phones)],
            findings=_find_variation(phones),
            notes=(
                "The seconds were recorded on the authors' phones; nothing here is simulated.",
                "The paper's value of 0.40 is for its simulated networks: see table4.",
            ),
            figures={self.name: _plot_latencies(frames["latencies"], phones)},
            json={"network_cv": network, "batch_cv": batch, "network_peak": peak},
        )


def average_phones(latencies: pl.DataFrame) -> pl.DataFrame:
    """Return mean and coefficient of variation of every phone in every session."""
    phones = latencies.group_by("task", "session", "phone", maintain_order=True).agg(
        pl.len().alias("rounds"), pl.mean("batch_s", "network_s"),
        *((pl.std(f"{name}_s") / pl.mean(f"{name}_s")).alias(f"{name}_cv") for name in ("batch", "network")),
        (pl.max("network_s") / pl.mean("network_s")).alias("network_peak"),
    )  # fmt: skip
    return phones.sort("session", pl.col("phone").cast(pl.Int64))


def _phone_table(phones: pl.DataFrame) -> Table:
    lines = [
        (
            row["phone"], str(row["session"]), str(row["rounds"]), f"{row['batch_s'] * 1000:.0f} ms",
            f"{row['batch_cv']:.3f}", f"{row['network_s']:.1f} s", f"{row['network_cv']:.2f}",
        )
        for row in phones.iter_rows(named=True)
    ]  # fmt: skip
    header = ("Phone", "Session", "Rounds", "Per batch", "CV", "Network per round", "CV")
    return Table("Phones by session", header, lines)


def _find_variation(phones: pl.DataFrame) -> list[Finding]:
    """Return the findings; intervals are over phones and sessions."""
    cv = Estimate.of(phones["network_cv"].drop_nulls().to_list())
    peak = Measured(float(np.max(phones["network_peak"].to_numpy())))
    return [
        Finding.of(TASK, "CV of the network time, mean of the phones", Measured(cv.mean, cv.low, cv.high),
                   NETWORK_CV["bed"], more_is_better=None),
        Finding.of(TASK, "longest divided by mean network time", peak, NETWORK_PEAK, more_is_better=None),
    ]  # fmt: skip


def _select_phones(latencies: pl.DataFrame, phones: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the rounds of the phones with the steadiest and the least steady network, by title."""
    ordered, selected = phones.sort("network_cv"), {}
    for word, row in {"steadiest": ordered.row(0, named=True), "least steady": ordered.row(-1, named=True)}.items():
        title = f"phone {row['phone']}, session {row['session']}: {word} network"
        same = (pl.col("phone") == row["phone"]) & (pl.col("session") == row["session"])
        selected[title] = latencies.filter(same).with_columns(hundred_s=100 * pl.col("batch_s"))
    return selected


def _latency_charts(latencies: pl.DataFrame, phones: pl.DataFrame) -> Charts:
    columns = {NETWORK: "network_s", TRAINING: "hundred_s"}
    panels = {
        title: {label: {"x": rows["round"].to_numpy(), "y": rows[name].to_numpy()} for label, name in columns.items()}
        for title, rows in _select_phones(latencies, phones).items()
    }
    return line_charts(panels, "round", "seconds", "Recorded seconds of training and on the network.")


def _plot_latencies(latencies: pl.DataFrame, phones: pl.DataFrame) -> Figure:
    selected = _select_phones(latencies, phones)
    figure, panels = make_panels(list(selected), "Round", "Seconds", 2)
    for axes, rows in zip(panels, selected.values(), strict=True):
        axes.plot(rows["round"], rows["network_s"], "o-", color=ORANGE, linewidth=1.2, markersize=3, label=NETWORK)
        axes.plot(rows["round"], rows["hundred_s"], "s-", color=BLUE, linewidth=1.2, markersize=3, label=TRAINING)
        axes.set_ylim(bottom=0)
    return add_legend(figure)


FIG8 = Figure8(name="fig8", title="latencies of the test bed's phones", place="Figure 8", tasks=(TASK,), scale="paper")
