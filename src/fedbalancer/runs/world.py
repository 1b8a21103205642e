"""From a spec to a server and an engine."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedbalancer.client.timing_only import TimingOnly
from fedbalancer.devices import AlwaysOn, Network, Phones, read_traces, resolve_latency
from fedbalancer.engine import SimulatedEngine
from fedbalancer.engine.executors import InlineExecutor, PoolExecutor
from fedbalancer.engine.simulated import Training
from fedbalancer.errors import BadSetting, MissingData
from fedbalancer.loop import rounds as run_rounds
from fedbalancer.methods import Method, method
from fedbalancer.protocols import Availability, Executor, Trainer
from fedbalancer.runs.spec import RunSpec
from fedbalancer.server.server import Server
from fedbalancer.settings import Settings, resolve
from fedbalancer.tasks import Task
from fedbalancer.types import Layout, Ledger, Setup

EXECUTORS = ("inline", "pool")


@dataclass(frozen=True)
class World:
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
    settings = resolve(task.settings(), spec.overrides)
    chosen = method(spec.method, settings) if isinstance(spec.method, str) else spec.method
    if settings.clients_per_round > len(task.sizes):
        # A default may be cut to a small task; what the user asked for may not.
        if "clients_per_round" in spec.overrides:
            raise BadSetting(
                f"setting clients_per_round = {settings.clients_per_round}: "
                f"task {task.name!r} has {len(task.sizes)} clients, so 1 to {len(task.sizes)} are allowed"
            )
        settings = settings.model_copy(update={"clients_per_round": len(task.sizes)})
    return settings, chosen


def build(spec: RunSpec, task: Task, workers: int = 1, executor: str | None = None) -> World:
    """Server, engine and executor of a spec. Close the executor when done."""
    settings, chosen = resolve_spec(spec, task)
    model_bytes = model_size_bytes(task)
    devices = Phones(
        seed=spec.seed,
        latency=task.latency if not isinstance(task.latency, str) else resolve_latency(settings.latency),
        network=Network(seed=spec.seed, floor=settings.network_floor),
    )
    size_of = task.sizes
    clients = tuple(sorted(size_of))
    sizes = np.array([size_of[client] for client in clients], dtype=np.int64)
    work_done_by = make_executor(spec, task, workers, executor)
    up_bytes = chosen.compress.encoded_bytes(work_done_by.layout, model_bytes)
    ledger = Ledger.start(
        clients,
        sizes,
        np.array([devices.expected_network_s(client, model_bytes, up_bytes) for client in clients]),
        np.stack([devices.sample_batch_s(client, settings.latency_samples) for client in clients]),
    )
    setup = Setup(
        ledger=ledger,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        clients_per_round=settings.clients_per_round,
        seed=spec.seed,
        sample_cap=chosen.samples.cap(sizes),
    )
    engine = SimulatedEngine(
        method=chosen,
        ledger=ledger,
        executor=work_done_by,
        devices=devices,
        availability=_availability(settings, clients, spec.seed),
        training=Training(settings.learning_rate, settings.clip_norm),
        model_bytes=model_bytes,
        window_s=settings.window_s,
    )
    return World(spec, task, settings, chosen, Server(chosen, setup), engine, work_done_by)


def make_executor(spec: RunSpec, task: Task, workers: int, kind: str | None) -> Executor:
    """Inline for one worker, a pool of processes for more, unless `kind` says otherwise."""
    if workers < 1:
        raise BadSetting(f"workers = {workers} must be at least 1")
    if kind not in (None, *EXECUTORS):
        raise BadSetting(f"executor = {kind!r} must be one of {', '.join(EXECUTORS)}")
    if spec.timing_only:
        return InlineExecutor(TimingOnly(task.sizes))
    if kind == "pool" or (kind is None and workers > 1):
        # A task with a name is loaded by every worker; one of the user's own travels.
        named = isinstance(spec.task, str)
        return PoolExecutor(partial(_torch_by_name, spec) if named else partial(_torch, task), workers)
    return InlineExecutor(_torch(task))


def model_size_bytes(task: Task) -> int:
    """Bytes that the model takes on the wire: four a parameter."""
    if task.model_bytes is not None:
        return task.model_bytes
    layout: Layout = _torch(task).layout
    return 4 * sum(math.prod(shape) for _, shape in layout)


def _torch(task: Task) -> Trainer:
    try:
        from fedbalancer.client.train import TorchTrainer
    except ModuleNotFoundError as error:
        raise MissingData("training needs PyTorch; type: pip install 'fedbalancer[torch]'") from error
    return TorchTrainer(task)


def _torch_by_name(spec: RunSpec) -> Trainer:
    return _torch(spec.load_task())


def _availability(settings: Settings, clients: tuple[str, ...], seed: int) -> Availability:
    if settings.availability is None:
        return AlwaysOn()
    return read_traces(settings.availability).assign(clients, seed)


def timed_clock_s(spec: RunSpec, task: Task, rounds: int) -> float:
    """The clock after `rounds` rounds, without training: exact for methods whose rounds do not depend on losses."""
    world = build(replace(spec, timing_only=True), task)
    start = world.server.init(world.executor.initial_weights(spec.seed))
    every_round = run_rounds(world.server, world.engine, start, lambda state: state.round >= rounds)
    return deque(every_round, maxlen=1).pop()[0].clock_s
