"""Figure 1: gradient norms of the samples of each round's clients, and the share of norms under 0.2.

FedAvg+1T trains for the task's number of rounds. At some rounds, the gradient norm of every sample of the selected
clients is computed with the model that the round starts with. As in the paper, the top 5% of a round are dropped and
the rest is scaled to 0 to 1. Early and late are the first and the last 15% of the rounds (150 of FEMNIST's 1,000).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import safetensors.numpy

from fedbalancer.core.files import write_bytes
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
from fedbalancer.core.types import FloatArray, Weights
from fedbalancer.data import Task
from fedbalancer.experiments.execute import RunResult, continue_run, execute
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.progress import JobEvent, Progress
from fedbalancer.experiments.trust import code_of
from fedbalancer.paper.charts import Line, line_charts
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
from fedbalancer.paper.pool import TaskPool
from fedbalancer.paper.printed import LOW_NORMS
from fedbalancer.reporting.plotting import make_panels
from fedbalancer.reporting.ratio import Estimate
from fedbalancer.reporting.style import RED
from fedbalancer.store import read_status
from fedbalancer.training.tensors import FlatModule, make_batch, prepare_samples, resolve_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD, POINTS, LOW, END_SHARE = "fedavg+1t", 20, 0.2, 0.15
MOST_SAMPLES, MOST_ONE_BY_ONE = 4000, 400
"""Maximum number of randomly drawn samples per round; fewer if samples are evaluated one by one."""
GRADIENT_BYTES = 2**27
"""Memory for the gradients of the samples that are evaluated at once."""
TOP_SHARE = 0.05
"""Share of the highest norms that is dropped, as in the paper: they belong to noisy samples."""
QUANTILES = np.linspace(0.0, 1.0, 21)


class Figure1(Item):
    """Gradient norms over rounds."""

    def runs(self, request: Request) -> int:
        return len(request.tasks) * len(request.seeds)

    def check(self, request: Request) -> None:
        for task in request.tasks:
            TaskPool.make(request, task, (METHOD,))

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        pool = TaskPool.make(work.request, work.task, (METHOD,))
        frames = []
        with ExecutorCache(work.request.resources) as executors:
            for seed in pool.plan.seeds:
                run = _PausedRun(pool, seed, work, executors)
                frames += [run.norms_after(number) for number in run.rounds]
                work.listen(JobEvent((METHOD, seed), "done"))
        return {"norms": pl.concat(frames).with_columns(scale=pl.lit(work.request.scale))}

    def present(self, frames: Frames) -> Presentation:
        low = low_shares(frames["norms"])
        points = [f"{row['task']}: {row['early']:.1%} early, {row['late']:.1%} late" for row in _average_ends(low)]
        rows = [(r["task"], str(r["round"]), f"{r['low_share']:.1%}", f"{r['samples']:.0f}") for r in low.to_dicts()]
        return Presentation(
            headline=f"Share of samples with a scaled gradient norm under {LOW}: {'; '.join(points)}.",
            points=points,
            charts=_make_charts(frames["norms"]),
            tables=[Table("By round, mean over seeds", ("Task", "After round", f"Under {LOW}", "Samples"), rows)],
            findings=_find_shares(frames["norms"]),
            notes=(
                "The paper shows FEMNIST and Shakespeare and does not report the deadline of its FedAvg.",
                f"Early and late are means over the first and the last {END_SHARE:.0%} of the rounds in the table.",
            ),
            figures={self.name: _plot(frames["norms"], low)},
            json={row["task"]: {"early": row["early"], "late": row["late"]} for row in _average_ends(low)},
        )


class _PausedRun:
    """A run that pauses at some rounds to measure gradient norms; the results are stored in its folder."""

    def __init__(self, pool: TaskPool, seed: int, work: Work, executors: ExecutorCache) -> None:
        self.pool, self.seed, self.work, self.executors = pool, seed, work, executors
        self.last = pool.plan.rounds
        self.rounds = sorted({round(self.last * place / (POINTS - 1)) for place in range(POINTS)} - {self.last})
        self.folder = pool.folder / "gradient-norms" / f"seed-{seed}"
        self.spec = replace(pool.plan.base, method=METHOD, seed=seed, budget_s=None)
        self._norms: SampleNorms | None = None

    def norms_after(self, number: int) -> pl.DataFrame:
        """Return the norms after `number` rounds, of the clients of the next round."""
        file = self.folder / f"norms-{number:05d}.parquet"
        if not file.is_file():
            weights = self._weights(number)
            rows = self._run_to(number + 1).clients.filter(pl.col("round") == number + 1)
            frame = self._measure(number, weights, sorted(rows["client"].to_list()))
            write_bytes(file, _encode(frame))
        return pl.read_parquet(file, glob=False)

    def _weights(self, number: int) -> Weights:
        """Return the model after `number` rounds; it is stored, because the run continues before it is measured."""
        file = self.folder / f"weights-{number:05d}.safetensors"
        if number == 0:
            task = self.executors.load_task(self.spec, self._task)
            return self.executors.executor(self.spec, task).initial_weights(self.seed)
        if not file.is_file():
            write_bytes(file, safetensors.numpy.save({"weights": self._run_to(number).weights}))
        weights: Weights = safetensors.numpy.load(file.read_bytes())["weights"]
        return weights

    def _run_to(self, number: int) -> RunResult:
        place, spec = self.folder / "run", replace(self.spec, rounds=number)
        report, stopped = self._progress_reporter(), self.work.stopped
        if read_status(place) == "absent":
            result = execute(
                spec, place, task=self._task, executors=self.executors, progress=report, stopped=stopped
            )  # fmt: skip
        else:
            changes = {"rounds": number}
            result = continue_run(
                place, self.executors, changes, task=self._task, trusted=code_of(spec), progress=report, stopped=stopped
            )
        if result.status == "stopped":
            raise Stopped
        return result

    def _progress_reporter(self) -> Callable[[Progress], None]:
        def report(now: Progress) -> None:
            share = min(1.0, now.round / self.last)
            self.work.listen(JobEvent((METHOD, self.seed), "running", replace(now, share=share)))

        return report

    @property
    def _task(self) -> Task:
        return self.pool.plan.task

    def _measure(self, number: int, weights: Weights, clients: list[str]) -> pl.DataFrame:
        norms = self._norms = self._norms or SampleNorms(self._task)
        most = MOST_SAMPLES if norms.vectorized else MOST_ONE_BY_ONE
        samples = _draw_samples([self._task.clients[client] for client in clients], most, self.seed, number)
        values = scale_norms(norms(weights, samples))
        return pl.DataFrame({
            "task": [self._task.name], "variant": [self._task.variant], "seed": [self.seed], "round": [number],
            "samples": [len(samples[1])], "low_share": [float((values < LOW).mean())],
            "quantiles": [np.quantile(values, QUANTILES).tolist()],
        })  # fmt: skip


class SampleNorms:
    """Computes the gradient norms of samples of a task under given weights.

    `torch.func` gives the gradients of many samples at once. For models it does not support, samples are evaluated one
    by one.
    """

    def __init__(self, task: Task) -> None:
        import torch

        self._flat = FlatModule(task.model)
        self._flat.module.eval()
        self._loss = resolve_loss(task.loss)
        self.vectorized = True
        self._torch = torch

    def __call__(self, weights: Weights, samples: Samples) -> FloatArray:
        """Return the Euclidean norm of the gradient of each sample's loss with respect to all parameters."""
        self._flat.load(weights)
        features, labels = make_batch(samples[0], slice(None)), make_batch(samples[1], slice(None))
        if labels.dtype.is_floating_point is False:
            labels = labels.long()
        if self.vectorized:
            try:
                return self._compute_vectorized(features, labels)
            except (RuntimeError, NotImplementedError):
                self.vectorized = False
        return self._compute_one_by_one(features, labels)

    def _compute_vectorized(self, features: Any, labels: Any) -> FloatArray:
        torch, module = self._torch, self._flat.module
        parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        others = dict(module.named_buffers())

        def loss(values: dict[str, Any], sample: Any, label: Any) -> Any:
            outputs = torch.func.functional_call(module, (values, others), (sample[None],))
            return self._loss(outputs, label[None])[0]

        def norm(sample: Any, label: Any) -> Any:
            gradients = torch.func.grad(loss)(parameters, sample, label)
            return torch.stack([gradient.pow(2).sum() for gradient in gradients.values()]).sum().sqrt()

        size = 4 * sum(p.numel() for p in parameters.values())
        chunk = max(1, min(256, GRADIENT_BYTES // size))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # an LSTM is not vectorized
            return np.asarray(torch.func.vmap(norm, chunk_size=chunk)(features, labels).numpy(), dtype=np.float64)

    def _compute_one_by_one(self, features: Any, labels: Any) -> FloatArray:
        torch, module = self._torch, self._flat.module
        parameters = [p for p in module.parameters() if p.requires_grad]
        norms = []
        for sample, label in zip(features, labels, strict=True):
            loss = self._loss(module(sample[None]), label[None])[0]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            squares = [gradient.pow(2).sum() for gradient in gradients if gradient is not None]
            norms.append(float(torch.stack(squares).sum().sqrt()))
        return np.array(norms)


def scale_norms(norms: FloatArray) -> FloatArray:
    """Sort the norms of a round, drop the top 5% and scale the rest to 0 to 1, as in the paper.

    Example:
        >>> scale_norms(np.array([4.0, 2.0, 3.0])).tolist()
        [0.0, 0.5, 1.0]
    """
    kept = np.sort(norms)[: max(1, int(np.ceil(len(norms) * (1 - TOP_SHARE))))]
    width = kept[-1] - kept[0]
    return np.asarray((kept - kept[0]) / width if width > 0 else np.zeros_like(kept))


def _draw_samples(parts: list[Samples], most: int, seed: int, number: int) -> Samples:
    features = np.concatenate([prepare_samples(part)[0] for part in parts])
    labels = np.concatenate([prepare_samples(part)[1] for part in parts])
    rows = np.arange(len(labels))
    if len(rows) > most:
        rows = np.sort(stream(seed, "gradient norms", number).choice(len(labels), most, replace=False))
    return features[rows], labels[rows]


def low_shares(norms: pl.DataFrame) -> pl.DataFrame:
    """Return the share of norms under 0.2 by task and round, mean over seeds."""
    return norms.group_by("task", "round", maintain_order=True).agg(pl.mean("low_share", "samples"))


def _average_ends(low: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the means of the first and the last rounds by task."""
    rows = []
    for (task,), task_rows in low.group_by(["task"], maintain_order=True):
        count = max(1, round(END_SHARE * task_rows.height))
        ordered = task_rows.sort("round")["low_share"]
        rows.append({"task": task, "early": ordered.head(count).mean(), "late": ordered.tail(count).mean()})
    return rows


def _find_shares(norms: pl.DataFrame) -> list[Finding]:
    seeds = norms.group_by(["seed"], maintain_order=True)
    by_seed = [row for _, rows in seeds for row in _average_ends(low_shares(rows))]
    findings = []
    for task in dict.fromkeys(row["task"] for row in by_seed):
        for end in ("early", "late"):
            share = Estimate.of([row[end] for row in by_seed if row["task"] == task])
            ours = Measured(share.mean, share.low, share.high)
            paper = LOW_NORMS.get((task, end))
            what = f"share under {LOW}, {end} rounds"
            findings.append(Finding.of(task, what, ours, paper, ratio=False, digits=3, more_is_better=None))
    return findings


def _make_charts(norms: pl.DataFrame) -> Charts:
    over_seeds = norms.group_by("task", "round", maintain_order=True).agg(
        y=pl.mean("low_share"), low=pl.min("low_share"), high=pl.max("low_share")
    )
    lines: dict[str, Line] = {}
    for (task,), rows in over_seeds.sort("task", "round").group_by(["task"], maintain_order=True):
        lines[str(task)] = {"x": rows["round"].to_numpy()} | {n: rows[n].to_numpy() for n in ("y", "low", "high")}
    about = (
        f"Share of samples with a scaled gradient norm under {LOW}. Lines: mean over seeds. Bands: lowest to highest"
    )
    about += " seed. The figure below shows all norms of seed 0."
    return line_charts({"Samples with a small gradient": lines}, "round", f"share under {LOW}", about, complete=False)


def _plot(norms: pl.DataFrame, low: pl.DataFrame) -> Figure:
    """Plot quantiles of the scaled norms over rounds, and the share under 0.2."""
    tasks = low["task"].unique(maintain_order=True).to_list()
    figure, panels = make_panels(tasks, "Round", "Share of samples, smallest norm at the top")
    for axes, task in zip(panels, tasks, strict=True):
        first = norms.filter((pl.col("task") == task) & (pl.col("seed") == 0)).sort("round")
        image: FloatArray = np.array(first["quantiles"].to_list()).T
        rounds = first["round"].to_numpy()
        axes.pcolormesh(
            rounds, 1 - QUANTILES, image, cmap="cividis", vmin=0, vmax=1, shading="nearest", rasterized=True
        )
        line = low.filter(pl.col("task") == task).sort("round")
        axes.plot(line["round"], 1 - line["low_share"], "x-", color=RED, linewidth=0.8, markersize=4, label=f"{LOW}")
        axes.grid(visible=False)
    figure.colorbar(panels[-1].collections[0], ax=panels, label="Scaled gradient norm (seed 0)", shrink=0.8)
    return figure


def _encode(frame: pl.DataFrame) -> bytes:
    buffer = BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


FIG1 = Figure1(name="fig1", title="gradient norms of single samples over rounds", place="Figure 1")
