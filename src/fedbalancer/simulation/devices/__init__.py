"""How fast devices are, how fast their network is, and when they may work."""

from fedbalancer.simulation.devices.availability import AlwaysOn, Traces, read_traces
from fedbalancer.simulation.devices.many import DeviceDraw, DeviceDraws
from fedbalancer.simulation.devices.network import PROFILES, Network
from fedbalancer.simulation.devices.phones import CLASS_WEIGHTS, LATENCY_MS, Phones, resolve_latency, spread_latency
from fedbalancer.simulation.devices.replay import Replay
from fedbalancer.simulation.devices.trace_files import CleaningReport

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
