"""The seconds of a batch: selects the latencies of a run and scales them to its model and batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from fedbalancer.core.cost import CUSTOM, ESTIMATED, PUBLISHED, BatchCost, LatencyScale
from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.settings import Settings
from fedbalancer.data import Task
from fedbalancer.simulation.devices import Device, Fleet, resolve_latency


def latency_scale(task: Task, settings: Settings) -> LatencyScale:
    """Return how the latencies of a run are scaled. The model's FLOPs are counted only for an estimate.

    Args:
        task: The loaded task.
        settings: The resolved settings; `latency` names the row.

    Raises:
        UnknownName: If there is no such row.
        BadSetting: If the task has no measurements of its own, but the setting asks for them.
        MissingData: If an estimate needs torch, which is not installed.
    """
    row, size = settings.latency, settings.batch_size
    if row == ESTIMATED:
        return LatencyScale.estimated(_count(task, size))
    if row == CUSTOM:
        if not isinstance(task.latency, Mapping):
            raise BadSetting(
                f"setting latency = {CUSTOM!r}: task {task.name!r} has no measured times; give it "
                "latency={'slow': (mean, std), 'mid': (mean, std), 'fast': (mean, std)} in ms"
            )
        return LatencyScale.measured(size, task.latency_batch_size or task.batch_size)
    if row not in PUBLISHED:
        raise UnknownName("latency row", row, (*PUBLISHED, ESTIMATED, CUSTOM))
    return LatencyScale.published(row, size, task.latency_batch_size if row == task.latency else None)


def latency_row(task: Task, scale: LatencyScale) -> Mapping[str, tuple[float, float]]:
    """Return the latencies of a run's batches: mean and deviation in milliseconds by device class.

    Args:
        task: The loaded task.
        scale: How the latencies are scaled.

    Raises:
        BadSetting: If the task's own latencies are malformed.
    """
    measured = task.latency if scale.basis == "measured" and task.latency is not None else scale.row
    return scale.apply(resolve_latency(measured))


def batch_cost(task: Task, settings: Settings) -> BatchCost:
    """Return the cost of a batch of a run in FLOPs: of the published model that the task stands for, or as counted.

    Args:
        task: The loaded task.
        settings: The resolved settings.
    """
    if settings.latency in (ESTIMATED, CUSTOM):
        return _count(task, settings.batch_size)
    scale = latency_scale(task, settings)
    published = PUBLISHED[scale.row]
    per_sample = published.batch_size / scale.reference.batch_size  # published samples that a sample stands for
    return BatchCost(published.train_flops * per_sample, published.forward_flops * per_sample, scale.cost.batch_size)


def recorded_scale(manifest: Mapping[str, Any], task: Task, settings: Settings) -> LatencyScale:
    """Return the scale of a run that continues, from its manifest.

    So another version of torch that counts differently does not change the clock in the middle of a run. A run of an
    older version continues without a scale.

    Args:
        manifest: The content of manifest.json.
        task: The loaded task.
        settings: The resolved settings.

    Raises:
        RunFolderError: If the manifest's `clock` is invalid.
    """
    if "clock" not in manifest:
        size = settings.batch_size
        if isinstance(task.latency, Mapping):
            return LatencyScale.measured(size, size)
        return LatencyScale.published("femnist" if settings.latency == ESTIMATED else settings.latency, size, size)
    try:
        return LatencyScale.from_json(manifest["clock"])
    except (AttributeError, BadSetting, KeyError, TypeError) as error:
        raise RunFolderError(f"manifest.json has an invalid clock: {error}; start the run again") from error


def fleet_batch_s(task: Task, settings: Settings, scale: LatencyScale) -> Callable[[Device], float]:
    """Return a function that gives the seconds of a batch of the run on a device that has its own seconds.

    They are scaled by FLOPs if the device names the model of its measurement, and by the batch size. Seconds per sample
    are proportional to both.

    Args:
        task: The loaded task.
        settings: The resolved settings.
        scale: How the latencies of the run are scaled.
    """
    size = settings.batch_size

    @cache
    def cost() -> BatchCost:
        return scale.cost if scale.basis == "estimated" else batch_cost(task, settings)

    def batch_s(device: Device) -> float:
        published = PUBLISHED[device.model] if device.model is not None else None
        flops = published.train_flops if published is not None else device.flops
        if device.sample_s is not None:
            return size * device.sample_s * (cost().train_flops / flops if flops is not None else 1.0)
        assert device.batch_s is not None
        measured_size = device.batch_size or (published.batch_size if published is not None else task.batch_size)
        if flops is None:
            return device.batch_s * LatencyScale.measured(size, measured_size).factor
        return device.batch_s * cost().factor(BatchCost(flops, 0.0, measured_size))

    return batch_s


def scale_for_devices(scale: LatencyScale, task: Task, devices: Any) -> LatencyScale:
    """Return the scale of a run, with the batch size to which the seconds of its devices belong.

    Args:
        scale: How the latencies of the run are scaled.
        task: The loaded task.
        devices: The devices of the run.
    """
    if devices is None:
        return scale
    size = scale.cost.batch_size  # the seconds of a user's own model belong to the batches of the run
    if isinstance(devices, Fleet):
        own = [device for device in devices.devices if device.has_seconds]
        if not own:
            return scale
        size = 1 if all(device.sample_s is not None for device in own) else task.batch_size
    return replace(scale, reference=replace(scale.reference, batch_size=size))


def _count(task: Task, batch_size: int) -> BatchCost:
    from fedbalancer.training.flops import count_flops

    return replace(count_flops(task), batch_size=batch_size)
