"""How fast devices are, how fast their network is, and when they may work."""

from fedbalancer.devices.availability import AlwaysOn, Traces, read_traces
from fedbalancer.devices.many import DeviceDraw, DeviceDraws
from fedbalancer.devices.network import PROFILES, Network
from fedbalancer.devices.phones import CLASS_WEIGHTS, LATENCY_MS, Phones, resolve_latency, spread_latency
from fedbalancer.devices.replay import Replay
from fedbalancer.devices.trace_files import CleaningReport

__all__ = [
    "CLASS_WEIGHTS",
    "LATENCY_MS",
    "PROFILES",
    "AlwaysOn",
    "CleaningReport",
    "DeviceDraw",
    "DeviceDraws",
    "Network",
    "Phones",
    "Replay",
    "Traces",
    "read_traces",
    "resolve_latency",
    "spread_latency",
]
