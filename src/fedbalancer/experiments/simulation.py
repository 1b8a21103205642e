"""From a spec to a server and an engine that simulates its clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.client.policies import of_client
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.interfaces import Availability, Executor
from fedbalancer.core.settings import Settings, resolve
from fedbalancer.core.types import Layout, Ledger
from fedbalancer.data import Task
from fedbalancer.experiments.executor_cache import ExecutorCache, trainer_for
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import Method, method, setup_of
from fedbalancer.server.loop import rounds as run_rounds
from fedbalancer.server.server import Server
from fedbalancer.simulation.attacks import make_attackers, poison_task
from fedbalancer.simulation.devices import (
    AlwaysOn,
    Network,
    Phones,
    estimate_network_s,
    read_traces,
    resolve_latency,
    sample_batch_s,
    spread_latency,
)
from fedbalancer.simulation.engine import SENT_NOTHING, SimulatedEngine
from fedbalancer.simulation.state import ClassCounts
from fedbalancer.store.privacy import is_private, spending_for


@dataclass(frozen=True)
class Simulation:
    """All that a run consists of."""

    spec: RunSpec
    task: Task
    settings: Settings
    method: Method
    server: Server
    engine: SimulatedEngine
    executor: Executor


def resolve_spec(spec: RunSpec, task: Task) -> tuple[Settings, Method]:
    """Settings and method of a spec, checked against each other and the task."""
    settings = resolve(task.settings(), spec.overrides, spec.own_settings)
    chosen = method(spec.method, settings) if isinstance(spec.method, str) else spec.method
    if settings.clients_per_round > len(task.sizes):
        # A default may be cut to a small task; what the user asked for may not.
        if "clients_per_round" in {**spec.overrides, **spec.own_settings}:
            raise BadSetting(
                f"setting clients_per_round = {settings.clients_per_round}: "
                f"task {task.name!r} has {len(task.sizes)} clients, so 1 to {len(task.sizes)} are allowed"
            )
        settings = settings.model_copy(update={"clients_per_round": len(task.sizes)})
    make_attackers(settings.attacks, tuple(task.sizes), spec.seed)
    poison_task(task, settings.attacks, spec.seed)
    spending_for(chosen, settings, SENT_NOTHING)  # a budget that allows nothing is refused before anything starts
    return settings, chosen


def build(spec: RunSpec, task: Task, executor: Executor | None = None) -> Simulation:
    """Server and engine of a spec; this process trains, unless an executor is given."""
    settings, chosen = resolve_spec(spec, task)
    of_client(chosen.client, lambda: task.test[1])  # refuses labels that its policies cannot go by, before the run
    work_done_by = executor if executor is not None else ExecutorCache().executor(spec, task)
    layout = partial(_layout, spec, task, work_done_by)  # asked for only where it is needed: that may take torch
    model_bytes = task.model_bytes if task.model_bytes is not None else layout().wire_bytes
    devices = Phones(
        seed=spec.seed,
        latency=spread_latency(
            task.latency if isinstance(task.latency, Mapping) else resolve_latency(settings.latency),
            settings.device_spread,
        ),
        network=Network(seed=spec.seed, floor=settings.network_floor),
    )
    size_of = task.sizes
    clients = tuple(sorted(size_of))
    sizes = np.array([size_of[client] for client in clients], dtype=np.int64)
    plain = chosen.client.compress.is_identity
    encoded_bytes = None if plain else chosen.client.compress.encoded_bytes(layout())
    # A narrow model that travels as the published one: what is sent of it is as large a share of that.
    up_bytes = model_bytes if encoded_bytes is None else round(encoded_bytes * model_bytes / layout().wire_bytes)
    ledger = Ledger.start(
        clients,
        sizes,
        estimate_network_s(devices, clients, model_bytes, up_bytes),
        sample_batch_s(devices, clients, settings.latency_samples),
    )
    labels = partial(_labels, task)
    engine = SimulatedEngine(
        policies=chosen.client,
        ledger=ledger,
        executor=work_done_by,
        devices=devices,
        availability=availability_of(settings, clients, spec.seed),
        model_bytes=model_bytes,
        up_bytes=up_bytes,
        encoded_bytes=encoded_bytes,
        window_s=settings.window_s,
        spending=spending_for(chosen, settings, SENT_NOTHING),
        attackers=make_attackers(settings.attacks, clients, spec.seed),
        labels=labels,
        classes=_classes(spec, task, settings, labels),
        saves_losses=settings.save_exact_losses or not is_private(chosen),
    )
    server = Server(chosen.server, setup_of(chosen, ledger, settings, spec.seed))
    return Simulation(spec, task, settings, chosen, server, engine, work_done_by)


def _labels(task: Task, client: str) -> ArrayLike:
    return task.clients[client][1]


def _classes(spec: RunSpec, task: Task, settings: Settings, labels: Callable[[str], ArrayLike]) -> ClassCounts | None:
    """What counts the classes that are trained, where labels are classes and the clients are few enough to know all
    labels of theirs."""
    known = np.asarray(task.test[1])
    are_classes = known.ndim == 1 and known.dtype.kind in "iu"
    if spec.timing_only or not are_classes or len(task.sizes) > settings.eval_clients:
        return None
    return ClassCounts(labels)


def _layout(spec: RunSpec, task: Task, executor: Executor) -> Layout:
    """The layout of the task's model, of which an executor that trains nothing knows nothing."""
    return trainer_for(task, "plain").layout if spec.timing_only else executor.layout


def availability_of(settings: Settings, clients: tuple[str, ...], seed: int) -> Availability:
    """When each client is there."""
    if settings.availability is None:
        return AlwaysOn()
    return read_traces(settings.availability).assign(clients, seed)


def timed_clock_s(spec: RunSpec, task: Task, rounds: int) -> float:
    """The clock after `rounds` rounds, without training: exact for methods whose rounds do not depend on losses."""
    simulation = build(replace(spec, timing_only=True), task)
    start = simulation.server.init(simulation.executor.initial_weights(spec.seed))
    every_round = run_rounds(simulation.server, simulation.engine, start, lambda state: state.round >= rounds)
    return deque(every_round, maxlen=1).pop()[0].clock_s
