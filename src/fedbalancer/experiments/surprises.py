"""What would surprise a user in the results, said before a run: nothing here is wrong, so nothing is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedbalancer.core.settings import Settings
from fedbalancer.core.task import MadeOnDemand
from fedbalancer.core.types import IndexArray
from fedbalancer.data import Task
from fedbalancer.data.registry import TASKS
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.simulation import availability_of, resolve_spec
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method
from fedbalancer.server.pace import RatioControl
from fedbalancer.simulation.devices import LATENCY_MS, are_available
from fedbalancer.store.privacy import model_claim


def surprises_of_run(spec: RunSpec, task: Task) -> list[str]:
    """For one run, in sentences."""
    settings, method = resolve_spec(spec, task)
    traces = _of_traces(spec, task, settings)
    rounds = None if spec.budget_s is not None else spec.rounds if spec.rounds is not None else settings.rounds
    return [*_of_methods([method], rounds), *_of_data(spec, task), *traces]


def surprises_of_plan(plan: ComparisonPlan) -> list[str]:
    """For a comparison."""
    resolved = [resolve_spec(replace(plan.base, method=method), plan.task) for method in plan.methods]
    first = replace(plan.base, seed=plan.seeds[0])
    return [
        *_of_methods([method for _, method in resolved], plan.rounds),
        *_of_data(plan.base, plan.task),
        *_of_traces(first, plan.task, resolved[0][0]),
    ]


def absent_kernels(spec: RunSpec) -> list[str]:
    """Which kernels that a run would use could not be compiled, in one sentence at most."""
    absent = {name: why for name, why in spec.kernels().items() if why.startswith("torch (")}
    if not absent:
        return []
    why = next(iter(absent.values())).removeprefix("torch (").removesuffix(")")
    return [f"kernels not compiled, torch does their work: {', '.join(absent)} ({why}); see `fedbalancer doctor`"]


def warn(sentences: Iterable[str]) -> None:
    """Tell whoever called from Python."""
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=3)


def _of_methods(methods: Sequence[Method], rounds: int | None) -> Iterator[str]:
    short = {
        method.name: method.pace.w
        for method in methods
        if rounds is not None and isinstance(method.pace, RatioControl) and rounds < 2 * method.pace.w
    }
    if short:
        w = max(short.values())
        yield (
            f"{', '.join(short)}: {rounds} rounds are fewer than 2 w = {2 * w}, so that the loss threshold hardly "
            "leaves 0 and no sample is selected by its loss; set more rounds, or a smaller w "
            f"(w={max(1, (rounds or 2) // 8)})"
        )
    for method in methods:
        claim = model_claim(method)
        if claim is not None and claim.why:
            yield f"{method.name}: the epsilon of the model is infinite, because {claim.why}"
    bare = [method.name for method in methods if method.name.startswith("prox") and method.mu == 0]
    if bare:
        yield (
            f"{', '.join(bare)}: prox_mu is 0, so there is no proximal term, only epochs cut to the deadline; set it, "
            "as in prox_mu=.01"
        )


def _of_data(spec: RunSpec, task: Task) -> Iterator[str]:
    """What in data of the user's own is more likely a slip than meant."""
    if spec.task in TASKS:
        return
    if task.latency is None and "latency" not in spec.overrides:
        yield (
            f"{task.name} has no latency, so a batch takes as long as one of femnist on the paper's phones "
            f"({_milliseconds(LATENCY_MS['femnist'])}); set latency to another row of `fedbalancer list devices`, "
            "or to your own times in ms: {'slow': (mean, std), 'mid': (mean, std), 'fast': (mean, std)}"
        )
    asked, there = task.clients_per_round, len(task.sizes)
    if asked > there and asked != Task.clients_per_round:  # nobody asked for what is usual
        yield f"clients_per_round = {asked}: {task.name} has {there} clients, so a round asks all of them"
    if isinstance(task.clients, MadeOnDemand) or np.ndim(task.test[1]) > 1:
        return
    if any(np.asarray(labels).dtype.kind not in "iu" for _, labels in task.clients.values()):
        return
    found = {client: np.unique(labels) for client, (_, labels) in task.clients.items()}
    known = np.unique(np.concatenate([*found.values(), np.unique(task.test[1])]))
    if len(known) >= 2:
        yield from _of_labels(task, found, known)


def _milliseconds(latency: Mapping[str, tuple[float, float]]) -> str:
    return ", ".join(f"{name} {mean:,.0f} ms" for name, (mean, _) in latency.items())


def _of_traces(spec: RunSpec, task: Task, settings: Settings) -> Iterator[str]:
    """Recorded phones are there for a few hours of a day: of a hundred, at the beginning of a run maybe none."""
    if settings.availability is None:
        return
    clients = tuple(sorted(task.sizes))
    there = int(are_available(availability_of(settings, clients, spec.seed), clients, settings.window_s).sum())
    if there < settings.clients_per_round:
        yield (
            f"{there} of {len(clients)} clients are there when seed {spec.seed} begins (availability), fewer than the "
            f"{settings.clients_per_round} of a round: rounds may be empty; take more users, where the task has them"
        )


def _of_labels(task: Task, found: Mapping[str, IndexArray], known: IndexArray) -> Iterator[str]:
    """A label of one client alone, far above all others, or labels with gaps between them: 0, 10, 20."""
    top, below = int(known[-1]), int(known[-2])
    holders = [client for client, labels in found.items() if labels[-1] == top]
    if len(holders) == 1 and top not in task.test[1] and top - below > len(known) - 1:
        sample = int(np.flatnonzero(np.asarray(task.clients[holders[0]][1]) == top)[0])
        yield (
            f"client {holders[0]!r} alone has the label {top} (sample {sample}); all others are {int(known[0])} to "
            f"{below}: if that is no slip, this is a class that nobody else has"
        )
    elif len(known) < (top + 1) / 2:
        listed = ", ".join(str(label) for label in known[:5]) + (", ..." if len(known) > 5 else "")
        yield (
            f"labels are 0 to {top}, of which {len(known)} occur ({listed}): the model has an output for each of "
            f"{top + 1}; number classes from 0 without gaps, or give them as text"
        )
