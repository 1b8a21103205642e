"""Builds the server and the simulated engine of a run from its spec."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedbalancer.client.policies import bind_labels
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.interfaces import Availability, DeviceModel, Executor
from fedbalancer.core.schedules import rate_of_round, read_schedule
from fedbalancer.core.settings import Settings, resolve
from fedbalancer.core.types import Layout, Ledger, Order, batches_per_epoch
from fedbalancer.data import Task
from fedbalancer.experiments.clock import fleet_batch_s, latency_row, latency_scale, recorded_scale, scale_for_devices
from fedbalancer.experiments.executor_cache import ExecutorCache, trainer_for
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.composition import check_composition, with_local_statistics
from fedbalancer.methods.fields import check_settings_used
from fedbalancer.methods.table import Method, method_of_run, setup_of
from fedbalancer.server.clients.tags import split_tags, uses_tags
from fedbalancer.server.loop import rounds as run_rounds
from fedbalancer.server.server import Server
from fedbalancer.simulation.attacks import make_attackers, poison_task
from fedbalancer.simulation.devices import (
    AlwaysOn,
    Network,
    Phones,
    estimate_network_s,
    read_traces,
    sample_batch_s,
    spread_latency,
)
from fedbalancer.simulation.devices.fleet import Device, Fleet
from fedbalancer.simulation.devices.fleet_files import MODEL_METHODS, is_availability, is_device_model
from fedbalancer.simulation.devices.fleet_model import FleetDevices
from fedbalancer.simulation.engine import LOST_ROUND_S, SENT_NOTHING, SimulatedEngine
from fedbalancer.simulation.local_costs import LocalCosts, needs_costs
from fedbalancer.simulation.state import ClassCounts
from fedbalancer.store.privacy import is_private, spending_for
from fedbalancer.training.flops import tensor_flops
from fedbalancer.training.optimizers import check_optimizer


@dataclass(frozen=True)
class Simulation:
    """The parts of a run.

    Args:
        spec: The run.
        task: The loaded task.
        settings: The resolved settings.
        method: The method.
        server: The server.
        engine: Simulates the clients.
        executor: Trains the clients.
    """

    spec: RunSpec
    task: Task
    settings: Settings
    method: Method
    server: Server
    engine: SimulatedEngine
    executor: Executor


def check_settings(specs: Iterable[RunSpec], task: Task) -> None:
    """Check the settings of runs that share them.

    Args:
        specs: The runs.
        task: Their task.

    Raises:
        UnknownName: If no method of these runs has a policy field that the settings change.
        BadSetting: If a value is not allowed for one of the runs.
    """
    runs = list(specs)
    methods = [(spec, resolve_spec(spec, task)[1]) for spec in runs]
    named = [method for spec, method in methods if isinstance(spec.method, str)]
    check_settings_used(resolve(runs[0].overrides), named)


def check_target(spec: RunSpec, task: Task) -> None:
    """Check that a run can reach its target.

    Args:
        spec: The run.
        task: Its task.

    Raises:
        BadSetting: If the target is not a possible value of the metric.
    """
    if spec.target is not None:
        spec.metric(task).check_target(spec.target)


def resolve_spec(spec: RunSpec, task: Task) -> tuple[Settings, Method]:
    """Resolve the settings and the method of a spec, and check them against the task.

    Args:
        spec: The run.
        task: The loaded task.

    Raises:
        BadSetting: If a setting is invalid for the method or the task.
    """
    spec.metric(task)
    settings = resolve(task.settings(), spec.overrides, spec.own_settings)
    if isinstance(spec.method, str):
        resolved = method_of_run(spec.method, settings)
    else:
        resolved = with_local_statistics(spec.method, settings)
        check_composition(resolved)
    if settings.clients_per_round > len(task.sizes):
        # A default is reduced for a small task; a value that the user set is not.
        if "clients_per_round" in {**spec.overrides, **spec.own_settings}:
            raise BadSetting(
                f"setting clients_per_round = {settings.clients_per_round}: "
                f"task {task.name!r} has {len(task.sizes)} clients; use 1 to {len(task.sizes)}"
            )
        settings = settings.model_copy(update={"clients_per_round": len(task.sizes)})
    check_devices(spec, task, settings)
    make_attackers(settings.attacks, tuple(task.sizes), spec.seed)
    poison_task(task, settings.attacks, spec.seed)
    spending_for(resolved, settings, SENT_NOTHING)  # refuses a privacy budget that does not allow one round
    first_order(settings, spec.seed)  # refuses a learning rate that is a bad function
    if not spec.timing_only:
        check_optimizer(settings.optimizer, task.optimizer if callable(task.optimizer) else None)
    return settings, resolved


def build(
    spec: RunSpec,
    task: Task,
    executor: Executor | None = None,
    manifest: Mapping[str, Any] | None = None,
    engine_class: type[SimulatedEngine] = SimulatedEngine,
) -> Simulation:
    """Build the server and the engine of a run.

    Args:
        spec: The run.
        task: The loaded task.
        executor: Trains the clients. Default: this process.
        manifest: Manifest of the run, with how its latencies are scaled. Default: by the task and the settings.
        engine_class: Class of the engine, for tools that observe it.
    """
    spec = spec.with_devices_of(task)
    settings, resolved = resolve_spec(spec, task)
    bind_labels(resolved.client, lambda: task.test[1])  # refuses labels that the policies do not support
    trained_by = executor if executor is not None else ExecutorCache().executor(spec, task)
    layout = partial(_layout, spec, task, trained_by)  # only computed if needed: it may need torch
    model_bytes = task.model_bytes if task.model_bytes is not None else layout().wire_bytes
    scale = latency_scale(task, settings) if manifest is None else recorded_scale(manifest, task, settings)
    latency = spread_latency(latency_row(task, scale), settings.device_spread)
    size_of = task.sizes
    clients = tuple(sorted(size_of))
    devices = device_model_of(spec, settings, latency, fleet_batch_s(task, settings, scale), clients)
    scale = scale_for_devices(scale, task, spec.devices)
    sizes = np.array([size_of[client] for client in clients], dtype=np.int64)
    plain = resolved.client.compress.is_identity
    encoded_bytes = None if plain else resolved.client.compress.encoded_bytes(layout())
    # A small task may declare the published model's size: the encoded upload is scaled by the same factor.
    up_bytes = model_bytes if encoded_bytes is None else round(encoded_bytes * model_bytes / layout().wire_bytes)
    network_s = estimate_network_s(devices, clients, model_bytes, up_bytes)
    batch_s = sample_batch_s(devices, clients, settings.latency_samples)
    costs = None
    if needs_costs(resolved.client):
        flops = partial(tensor_flops, task)
        costs = LocalCosts.of(resolved.client, layout(), model_bytes, up_bytes, clients, batch_s.mean(axis=1), flops)
        order = first_order(settings, spec.seed)
        network_s = costs.estimate_network_s(devices, clients, order)
        batch_s = batch_s * costs.batch_factors(clients, order)[:, None]
    if scale.counts_samples:  # a client with few samples has only short batches to measure
        batches = batches_per_epoch(sizes, settings.batch_size, resolved.server.epoch_batches, settings.drop_last)
        batch_s = batch_s * scale.batch_factors(sizes, batches)[:, None]
    ledger = Ledger.start(clients, sizes, network_s, batch_s)
    if uses_tags(resolved.server.clients):
        ledger = replace(ledger, tags=_tags(devices, clients))
    engine = engine_class(
        policies=resolved.client,
        ledger=ledger,
        executor=trained_by,
        devices=devices,
        availability=availability_of(spec, settings, clients),
        model_bytes=model_bytes,
        up_bytes=up_bytes,
        encoded_bytes=encoded_bytes,
        window_s=0.0 if resolved.late.rule() == "counts" else settings.window_s,
        check_in_s=settings.window_s or LOST_ROUND_S,
        spending=spending_for(resolved, settings, SENT_NOTHING),
        attackers=make_attackers(settings.attacks, clients, spec.seed),
        labels=task.labels,
        classes=_classes(spec, task, settings),
        saves_losses=settings.save_exact_losses or not is_private(resolved),
        scale=scale,
        costs=costs,
    )
    setup = setup_of(resolved, ledger, settings, spec.seed, scale.forward_epochs)
    if costs is not None:
        setup = replace(setup, report_arrays=resolved.client.train.up_arrays(trained_by.layout))
    server = Server(resolved.server, setup)
    return Simulation(spec, task, settings, resolved, server, engine, trained_by)


def first_order(settings: Settings, seed: int) -> Order:
    """Return an order like that of the first round, without a deadline.

    Args:
        settings: The settings.
        seed: Seed of the run.
    """
    rate = rate_of_round(settings.learning_rate, read_schedule(settings.schedule), 1)
    return Order(
        1, 0.0, math.inf, settings.epochs, settings.batch_size, seed, learning_rate=rate,
        clip_norm=settings.clip_norm, training=settings.training(),
    )  # fmt: skip


def _tags(devices: DeviceModel, clients: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the tags of every client: those of its device in a fleet, and the class of its device."""
    clients = list(clients)
    classes_of = getattr(devices, "device_classes", None)
    classes = classes_of(clients) if classes_of is not None else [""] * len(clients)
    named = devices.tags if isinstance(devices, FleetDevices) else [""] * len(clients)
    return {
        client: split_tags(f"{tags}+{device}") for client, tags, device in zip(clients, named, classes, strict=True)
    }


def _classes(spec: RunSpec, task: Task, settings: Settings) -> ClassCounts | None:
    """Return the counter of trained classes, if labels are classes and there are not too many clients."""
    labels_of_test = np.asarray(task.test[1])
    are_classes = labels_of_test.ndim == 1 and labels_of_test.dtype.kind in "iu"
    if spec.timing_only or not are_classes or len(task.sizes) > settings.eval_clients:
        return None
    return ClassCounts(task.labels)


def _layout(spec: RunSpec, task: Task, executor: Executor) -> Layout:
    """Return the layout of the task's model. An executor that trains nothing does not know it."""
    return trainer_for(task, "plain").layout if spec.timing_only else executor.layout


def device_model_of(
    spec: RunSpec,
    settings: Settings,
    latency: Mapping[str, tuple[float, float]],
    batch_s: Callable[[Device], float],
    clients: tuple[str, ...],
) -> DeviceModel:
    """Return how fast every client is.

    Args:
        spec: The run, with the task's devices if it names none.
        settings: The settings.
        latency: Milliseconds per batch by class, for devices that do not have their own speed.
        batch_s: Seconds of a batch of the run on a device that has its own speed.
        clients: The clients.
    """
    if spec.devices is None:
        return Phones(spec.seed, latency, Network(seed=spec.seed, floor=settings.network_floor))
    if isinstance(spec.devices, Fleet):
        return spec.devices.device_model(
            clients, spec.seed, latency=latency, network_floor=settings.network_floor, batch_s=batch_s
        )
    return _own_devices(spec, clients)


def availability_of(spec: RunSpec, settings: Settings, clients: tuple[str, ...]) -> Availability:
    """Return when each client is available.

    Args:
        spec: The run, with the task's devices if it names none.
        settings: The settings, which may name a file of availability traces.
        clients: The clients.

    Raises:
        BadSetting: If both the settings and the devices say when clients are available.
    """
    own: Any = None
    if isinstance(spec.devices, Fleet) and spec.devices.has_online:
        own = spec.devices.availability(clients, spec.seed)
    elif spec.has_device_object and is_availability(model := _own_devices(spec, clients)):
        own = model
    if settings.availability is None:
        return own if own is not None else AlwaysOn()
    if own is not None:
        raise BadSetting("availability names a trace file, but the devices have online intervals too; leave one out")
    return read_traces(settings.availability).assign(clients, spec.seed)


def _own_devices(spec: RunSpec, clients: tuple[str, ...]) -> DeviceModel:
    """Return the device model of the user, which may come from a function.

    Raises:
        BadSetting: If the function returns something else.
    """
    model: DeviceModel = spec.devices if is_device_model(spec.devices) else spec.devices(clients, spec.seed)
    if not is_device_model(model):
        raise BadSetting(
            f"devices: the function returned {model!r}; it must be an object with the methods "
            f"{', '.join(MODEL_METHODS)}"
        )
    return model


def check_devices(spec: RunSpec, task: Task, settings: Settings) -> None:
    """Refuse settings that do not apply to the devices of a run.

    Raises:
        BadSetting: If there are such settings.
    """
    devices = spec.with_devices_of(task).devices
    if devices is None:
        return
    is_fleet = isinstance(devices, Fleet)
    has_speeds = not is_fleet or any(device.has_seconds for device in devices.devices)
    if settings.device_spread != 1 and has_speeds:
        raise BadSetting(
            f"device_spread = {settings.device_spread:g} changes the paper's phones, but the devices of this run have "
            "their own speeds; leave it out"
        )
    if settings.network_floor is not None and not is_fleet:
        raise BadSetting(f"network_floor = {settings.network_floor:g} does not apply to your own device model")
    if settings.availability is not None:
        availability_of(spec.with_devices_of(task), settings, tuple(sorted(task.sizes)))


def simulate_clock_s(spec: RunSpec, task: Task, rounds: int) -> float:
    """Return the simulated clock after some rounds, without training.

    This is exact for methods whose rounds do not depend on losses.

    Args:
        spec: The run.
        task: The loaded task.
        rounds: Number of rounds.
    """
    simulation = build(replace(spec, timing_only=True), task)
    start = simulation.server.init(simulation.executor.initial_weights(spec.seed))
    every_round = run_rounds(simulation.server, simulation.engine, start, lambda state: state.round >= rounds)
    return deque(every_round, maxlen=1).pop()[0].clock_s
