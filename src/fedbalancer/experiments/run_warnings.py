"""Warnings about valid settings and data that are probably not intended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedbalancer.client.training import STATISTICS, LocalLayers
from fedbalancer.core.samples import IGNORED
from fedbalancer.core.settings import Settings
from fedbalancer.core.task import CountedClients, MadeOnDemand
from fedbalancer.core.types import IndexArray
from fedbalancer.data import Task
from fedbalancer.data.registry import TASKS
from fedbalancer.experiments.clock import latency_row, latency_scale
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.simulation import availability_of, resolve_spec
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method
from fedbalancer.server.pace import RatioControl
from fedbalancer.simulation.devices import are_available
from fedbalancer.simulation.devices.fleet import Fleet
from fedbalancer.simulation.devices.fleet_check import find_problems
from fedbalancer.store.privacy import model_claim


def warnings_for_run(spec: RunSpec, task: Task) -> list[str]:
    """Return the warnings for one run.

    Args:
        spec: The run.
        task: The loaded task.

    Returns:
        One sentence per warning.
    """
    settings, method = resolve_spec(spec, task)
    rounds = None if spec.budget_s is not None else spec.rounds if spec.rounds is not None else settings.rounds
    return [
        *_method_warnings([method], rounds),
        *_data_warnings(spec, task, settings),
        *_availability_warnings(spec, task, settings),
    ]


def warnings_for_comparison(plan: ComparisonPlan) -> list[str]:
    """Return the warnings for a comparison, one sentence each."""
    resolved = [resolve_spec(replace(plan.base, method=method), plan.task) for method in plan.methods]
    first = replace(plan.base, seed=plan.seeds[0])
    return [
        *_method_warnings([method for _, method in resolved], plan.rounds),
        *_data_warnings(plan.base, plan.task, resolved[0][0]),
        *_availability_warnings(first, plan.task, resolved[0][0]),
    ]


def missing_kernels(spec: RunSpec) -> list[str]:
    """Return a warning if kernels of a run could not be compiled."""
    absent = {name: why for name, why in spec.kernels().items() if why.startswith("torch (")}
    if not absent:
        return []
    why = next(iter(absent.values())).removeprefix("torch (").removesuffix(")")
    return [f"kernels not compiled, so torch is used for: {', '.join(absent)} ({why}); see `fedbalancer doctor`"]


def _method_warnings(methods: Sequence[Method], rounds: int | None) -> Iterator[str]:
    short = {
        method.name: method.pace.w
        for method in methods
        if rounds is not None and isinstance(method.pace, RatioControl) and rounds < 2 * method.pace.w
    }
    if short:
        w = max(short.values())
        yield (
            f"{', '.join(short)}: {rounds} rounds are fewer than 2 w = {2 * w}, so the loss threshold stays close to 0 "
            "and samples are not selected by their loss; use more rounds, or a smaller w "
            f"(w={max(1, (rounds or 2) // 8)})"
        )
    for method in methods:
        claim = model_claim(method)
        if claim is not None and claim.why:
            yield f"{method.name}: the epsilon of the model is infinite, because {claim.why}"
    if any(method.part == LocalLayers(STATISTICS) for method in methods):
        yield (
            "batch_norm = local: the test data are evaluated with the batch norm statistics of the initial model, "
            "because those of the clients do not travel; look at the accuracy of the clients instead"
        )
    without_term = [method.name for method in methods if method.name.startswith("prox") and method.mu == 0]
    if without_term:
        yield (
            f"{', '.join(without_term)}: prox_mu is 0, so there is no proximal term, only epochs cut to the deadline; "
            "set it, for example prox_mu=0.01"
        )


def _data_warnings(spec: RunSpec, task: Task, settings: Settings) -> Iterator[str]:
    """Yield warnings about the user's own data."""
    if spec.task in TASKS:
        return
    if task.latency is None and "latency" not in spec.overrides and not _has_seconds(spec.with_devices_of(task)):
        yield _estimate_sentence(task, settings)
    requested, clients = task.clients_per_round, len(task.sizes)
    if requested > clients and requested != Task.clients_per_round:  # the default is not a request
        yield f"clients_per_round = {requested}: {task.name} has {clients} clients, so every round selects all of them"
    if isinstance(task.clients, CountedClients):
        kind = type(task.clients.clients).__name__
        yield (
            f"clients is a {kind} without sizes, so all {clients:,} clients were loaded to count their samples; give "
            "it a property `sizes` (number of samples by client id), and clients are loaded only when they train"
        )
    if isinstance(task.clients, MadeOnDemand) or np.ndim(task.test[1]) > 1:
        return
    if any(np.asarray(labels).dtype.kind not in "iu" for _, labels in task.clients.values()):
        return
    by_client = {client: _classes(labels) for client, (_, labels) in task.clients.items()}
    by_client = {client: classes for client, classes in by_client.items() if len(classes)}
    used = np.unique(np.concatenate([*by_client.values(), _classes(task.test[1])]))
    if len(used) >= 2:
        yield from _label_warnings(task, by_client, used)


def _has_seconds(spec: RunSpec) -> bool:
    """Return whether all devices of a run have their own seconds."""
    fleet = spec.devices
    if isinstance(fleet, Fleet):
        return bool(fleet.devices) and all(device.has_seconds for device in fleet.devices)
    return fleet is not None


def _estimate_sentence(task: Task, settings: Settings) -> str:
    scale = latency_scale(task, settings)
    return (
        f"{task.name} has no latency, so the time of a batch is estimated from the model's FLOPs "
        f"({_count(scale.cost.train_flops)} per sample): {scale.factor:.3g} times a batch of {scale.row} on the "
        f"paper's phones ({_milliseconds(latency_row(task, scale))}). To accept the estimate, set latency to flops. To "
        "replace it, set your own times in ms, {'slow': (mean, std), 'mid': (mean, std), 'fast': (mean, std)}, "
        "or a row of `fedbalancer list devices`"
    )


def _count(flops: float) -> str:
    """Return a number of FLOPs with a prefix.

    >>> _count(102_017_024)
    '102 million'
    """
    units = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1e3, " thousand"), (1, ""))
    size, unit = next((each for each in units if flops >= each[0]), (1, ""))
    return f"{flops / size:.3g}{unit}"


def _classes(labels: Any) -> IndexArray:
    """Return the classes that occur, without ignored labels."""
    array = np.asarray(labels)
    return np.unique(array[array != IGNORED])


def _milliseconds(latency: Mapping[str, tuple[float, float]]) -> str:
    return ", ".join(
        f"{name} {f'{mean:,.0f}' if mean >= 10 else f'{mean:.2g}'} ms" for name, (mean, _) in latency.items()
    )


def _availability_warnings(spec: RunSpec, task: Task, settings: Settings) -> Iterator[str]:
    """Yield warnings about an implausible fleet, and if too few devices are online when the run starts."""
    spec = spec.with_devices_of(task)
    devices = spec.devices
    if isinstance(devices, Fleet):
        yield from find_problems(devices)
        yield from _device_warnings(devices, task)
    if settings.availability is None and not (isinstance(devices, Fleet) and devices.has_online):
        return
    clients = tuple(sorted(task.sizes))
    available = int(are_available(availability_of(spec, settings, clients), clients, settings.window_s).sum())
    if available < settings.clients_per_round:
        yield (
            f"{available} of {len(clients)} clients are available when seed {spec.seed} starts, fewer than the "
            f"{settings.clients_per_round} of a round, so rounds may be empty; use more users if the task has them"
        )


def _device_warnings(fleet: Fleet, task: Task) -> Iterator[str]:
    """Yield a warning if some clients have the id of a device and others do not."""
    ids = {device.id for device in fleet.devices}
    others = [client for client in task.sizes if client not in ids]
    if 0 < len(others) < len(task.sizes):
        yield (
            f"{len(others)} of {len(task.sizes)} clients have no device with their id in the fleet, for example "
            f"{others[0]!r}; they get devices that are drawn from the fleet"
        )


def _label_warnings(task: Task, by_client: Mapping[str, IndexArray], used: IndexArray) -> Iterator[str]:
    """Yield a warning if one client alone has a label far above all others, or if labels have gaps: 0, 10, 20."""
    top, below = int(used[-1]), int(used[-2])
    holders = [client for client, labels in by_client.items() if labels[-1] == top]
    if len(holders) == 1 and top not in task.test[1] and top - below > len(used) - 1:
        sample = int(np.flatnonzero(np.asarray(task.clients[holders[0]][1]) == top)[0])
        yield (
            f"only client {holders[0]!r} has the label {top} (sample {sample}); all other labels are {int(used[0])} to "
            f"{below}. If this is not a mistake, no other client has this class"
        )
    elif len(used) < (top + 1) / 2:
        listed = ", ".join(str(label) for label in used[:5]) + (", ..." if len(used) > 5 else "")
        yield (
            f"labels range from 0 to {top}, but only {len(used)} occur ({listed}); the model has {top + 1} outputs. "
            "Number the classes from 0 without gaps, or pass them as text"
        )
