"""Figure 1: gradient norms of the samples of each round's clients, and the share of them that is under 0.2.

FedAvg+1T trains for the task's rounds; at some of them the model that a round starts with is asked for the gradient
norm of every sample of the clients that were selected. As in the paper the top 5 % of a round are left out and the rest
is scaled to 0 to 1. Early and late are the first and the last 15 % of the rounds (FEMNIST's 150 of 1,000).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import safetensors.numpy

from fedbalancer.client.tensors import stored
from fedbalancer.files import write_bytes
from fedbalancer.paper.item import Charts, Finding, Frames, Presentation, Table, Work
from fedbalancer.paper.lines import Line, lines_charts
from fedbalancer.paper.norms import SampleNorms, scaled
from fedbalancer.paper.pool import TaskPool
from fedbalancer.paper.printed import LOW_NORMS
from fedbalancer.paper.request import Request, Stopped
from fedbalancer.paper.verdict import Ours
from fedbalancer.randomness import stream
from fedbalancer.reporting.plotting import make_panels
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.style import RED
from fedbalancer.runs.execute import RunResult, carry_on, execute
from fedbalancer.runs.executor_cache import ExecutorCache
from fedbalancer.runs.jobs import JobEvent
from fedbalancer.runs.rounds import Progress
from fedbalancer.runs.trust import code_of
from fedbalancer.store import status_of
from fedbalancer.task import Samples, Task
from fedbalancer.types import FloatArray, Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD, POINTS, LOW, END_SHARE = "fedavg+1t", 20, 0.2, 0.15
MOST_SAMPLES, MOST_ONE_BY_ONE = 4000, 400
"""Samples of a round that are looked at, drawn at random; fewer where each takes a pass of its own."""
QUANTILES = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True)
class Figure1:
    """Gradient norms over rounds."""

    name: str = "fig1"
    title: str = "gradient norms of single samples over rounds"
    place: str = "Figure 1"
    tasks: tuple[str, ...] = ("har",)
    scale: str = "small"
    rule: Rule = "fair"

    def runs(self, request: Request) -> int:
        return len(request.tasks) * request.seeds

    def check(self, request: Request) -> None:
        for task in request.tasks:
            TaskPool.make(request, task, (METHOD,))

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        pool = TaskPool.make(work.request, work.task, (METHOD,))
        frames = []
        with ExecutorCache(work.request.resources) as executors:
            for seed in pool.plan.seeds:
                watched = _Watched(pool, seed, work, executors)
                frames += [watched.point(number) for number in watched.rounds]
                work.listen(JobEvent((METHOD, seed), "done"))
        return {"norms": pl.concat(frames).with_columns(scale=pl.lit(work.request.scale))}

    def present(self, frames: Frames) -> Presentation:
        low = shares(frames["norms"])
        said = [f"{row['task']}: {row['early']:.1%} early, {row['late']:.1%} late" for row in _ends(low)]
        rows = [(r["task"], str(r["round"]), f"{r['low_share']:.1%}", f"{r['samples']:.0f}") for r in low.to_dicts()]
        return Presentation(
            headline=f"Share of samples with a scaled gradient norm under {LOW}: {'; '.join(said)}.",
            points=said,
            charts=_charts(frames["norms"]),
            tables=[Table("By round, mean over seeds", ("Task", "After round", f"Under {LOW}", "Samples"), rows)],
            findings=_findings(frames["norms"]),
            notes=(
                "The paper shows FEMNIST and Shakespeare; which deadline its FedAvg had is not said.",
                f"Early and late are means over the first and the last {END_SHARE:.0%} of the rounds in the table.",
            ),
            figures={self.name: _figure(frames["norms"], low)},
            json={row["task"]: {"early": row["early"], "late": row["late"]} for row in _ends(low)},
        )


class _Watched:
    """A run that stops at some rounds to be looked at; what was found at each is kept in its folder."""

    def __init__(self, pool: TaskPool, seed: int, work: Work, executors: ExecutorCache) -> None:
        self.pool, self.seed, self.work, self.executors = pool, seed, work, executors
        self.last = pool.plan.rounds
        self.rounds = sorted({round(self.last * place / (POINTS - 1)) for place in range(POINTS)} - {self.last})
        self.folder = pool.folder / "gradient-norms" / f"seed-{seed}"
        self.spec = replace(pool.plan.base, method=METHOD, seed=seed, budget_s=None)
        self._norms: SampleNorms | None = None

    def point(self, number: int) -> pl.DataFrame:
        """The norms after `number` rounds, of the clients of the next one."""
        file = self.folder / f"norms-{number:05d}.parquet"
        if not file.is_file():
            weights = self._weights(number)
            rows = self._run_to(number + 1).clients.filter(pl.col("round") == number + 1)
            frame = self._measured(number, weights, sorted(rows["client"].to_list()))
            write_bytes(file, _bytes(frame))
        return pl.read_parquet(file, glob=False)

    def _weights(self, number: int) -> Weights:
        """The model after so many rounds: kept in a file, because the run has to go on before it is looked at."""
        file = self.folder / f"weights-{number:05d}.safetensors"
        if number == 0:
            task = self.executors.load_task(self.spec, self._task)
            return self.executors.executor(self.spec, task).initial_weights(self.seed)
        if not file.is_file():
            write_bytes(file, safetensors.numpy.save({"weights": self._run_to(number).weights}))
        found: Weights = safetensors.numpy.load(file.read_bytes())["weights"]
        return found

    def _run_to(self, number: int) -> RunResult:
        place, spec = self.folder / "run", replace(self.spec, rounds=number)
        tell, stopped = self._teller(), self.work.stopped
        if status_of(place) == "absent":
            result = execute(
                spec, place, task=self._task, executors=self.executors, progress=tell, stopped=stopped
            )  # fmt: skip
        else:
            changes = {"rounds": number}
            result = carry_on(
                place, self.executors, changes, task=self._task, trusted=code_of(spec), progress=tell, stopped=stopped
            )
        if result.status == "stopped":
            raise Stopped
        return result

    def _teller(self) -> Callable[[Progress], None]:
        def tell(now: Progress) -> None:
            share = min(1.0, now.round / self.last)
            self.work.listen(JobEvent((METHOD, self.seed), "running", replace(now, share=share)))

        return tell

    @property
    def _task(self) -> Task:
        return self.pool.plan.task

    def _measured(self, number: int, weights: Weights, clients: list[str]) -> pl.DataFrame:
        norms = self._norms = self._norms or SampleNorms(self._task)
        most = MOST_SAMPLES if norms.at_once else MOST_ONE_BY_ONE
        samples = _drawn([self._task.clients[client] for client in clients], most, self.seed, number)
        values = scaled(norms(weights, samples))
        return pl.DataFrame({
            "task": [self._task.name], "variant": [self._task.variant], "seed": [self.seed], "round": [number],
            "samples": [len(samples[1])], "low_share": [float((values < LOW).mean())],
            "quantiles": [np.quantile(values, QUANTILES).tolist()],
        })  # fmt: skip


def _drawn(parts: list[Samples], most: int, seed: int, number: int) -> Samples:
    features = np.concatenate([stored(part)[0] for part in parts])
    labels = np.concatenate([stored(part)[1] for part in parts])
    rows = np.arange(len(labels))
    if len(rows) > most:
        rows = np.sort(stream(seed, "gradient norms", number).choice(len(labels), most, replace=False))
    return features[rows], labels[rows]


def shares(norms: pl.DataFrame) -> pl.DataFrame:
    """The share under 0.2 by task and round, mean over seeds."""
    return norms.group_by("task", "round", maintain_order=True).agg(pl.mean("low_share", "samples"))


def _ends(low: pl.DataFrame) -> list[dict[str, Any]]:
    """Of every task the means of its first and last rounds."""
    rows = []
    for (task,), mine in low.group_by(["task"], maintain_order=True):
        count = max(1, round(END_SHARE * mine.height))
        ordered = mine.sort("round")["low_share"]
        rows.append({"task": task, "early": ordered.head(count).mean(), "late": ordered.tail(count).mean()})
    return rows


def _findings(norms: pl.DataFrame) -> list[Finding]:
    by_seed = [row for (_,), mine in norms.group_by(["seed"], maintain_order=True) for row in _ends(shares(mine))]
    findings = []
    for task in dict.fromkeys(row["task"] for row in by_seed):
        for end in ("early", "late"):
            found = Estimate.of([row[end] for row in by_seed if row["task"] == task])
            ours = Ours(found.mean, found.low, found.high)
            paper = LOW_NORMS.get((task, end))
            what = f"share under {LOW}, {end} rounds"
            findings.append(Finding.of(task, what, ours, paper, ratio=False, digits=3, more_is_better=None))
    return findings


def _charts(norms: pl.DataFrame) -> Charts:
    over_seeds = norms.group_by("task", "round", maintain_order=True).agg(
        y=pl.mean("low_share"), low=pl.min("low_share"), high=pl.max("low_share")
    )
    panels: dict[str, dict[str, Line]] = {"Samples that teach little": {}}
    for (task,), mine in over_seeds.sort("task", "round").group_by(["task"], maintain_order=True):
        line = {"x": mine["round"].to_numpy()} | {name: mine[name].to_numpy() for name in ("y", "low", "high")}
        panels["Samples that teach little"][str(task)] = line
    about = f"The share of samples whose scaled gradient norm is under {LOW}. Lines: mean over seeds. Bands: lowest to"
    about += " highest seed. The drawing below has all norms of seed 0."
    return lines_charts(panels, "round", f"share under {LOW}", about, instead=False)


def _figure(norms: pl.DataFrame, low: pl.DataFrame) -> Figure:
    """Quantiles of the scaled norms over rounds, and the share under 0.2."""
    tasks = low["task"].unique(maintain_order=True).to_list()
    figure, grid = make_panels(tasks, "Round", "Share of samples, smallest norm at the top")
    for axes, task in zip(grid, tasks, strict=True):
        first = norms.filter((pl.col("task") == task) & (pl.col("seed") == 0)).sort("round")
        image: FloatArray = np.array(first["quantiles"].to_list()).T
        rounds = first["round"].to_numpy()
        axes.pcolormesh(
            rounds, 1 - QUANTILES, image, cmap="cividis", vmin=0, vmax=1, shading="nearest", rasterized=True
        )
        mine = low.filter(pl.col("task") == task).sort("round")
        axes.plot(mine["round"], 1 - mine["low_share"], "x-", color=RED, linewidth=0.8, markersize=4, label=f"{LOW}")
        axes.grid(visible=False)
    figure.colorbar(grid[-1].collections[0], ax=grid, label="Scaled gradient norm (seed 0)", shrink=0.8)
    return figure


def _bytes(frame: pl.DataFrame) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


ITEM = Figure1()
