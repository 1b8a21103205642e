"""Device models and availability: how fast devices and their networks are, and when devices may work."""

from fedbalancer.simulation.devices.availability import AlwaysOn, Traces, are_available, read_traces
from fedbalancer.simulation.devices.fleet import Device, Fleet
from fedbalancer.simulation.devices.models import (
    CLASS_WEIGHTS,
    LATENCY_MS,
    PROFILES,
    DeviceDraw,
    DeviceDraws,
    Network,
    Phones,
    Replay,
    draw_devices,
    estimate_network_s,
    resolve_latency,
    sample_batch_s,
    spread_latency,
)
from fedbalancer.simulation.devices.trace_files import CleaningReport

__all__ = [
    "CLASS_WEIGHTS",
    "LATENCY_MS",
    "PROFILES",
    "AlwaysOn",
    "CleaningReport",
    "Device",
    "DeviceDraw",
    "DeviceDraws",
    "Fleet",
    "Network",
    "Phones",
    "Replay",
    "Traces",
    "are_available",
    "draw_devices",
    "estimate_network_s",
    "read_traces",
    "resolve_latency",
    "sample_batch_s",
    "spread_latency",
]
