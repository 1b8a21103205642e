"""One network namespace per phone, with limited bandwidth and, if the kernel supports it, delay.

Every phone is behind a virtual cable with the ends `fbN` (on a bridge) and `eth0` (in the namespace). Both ends limit
what they send, so that the model takes the phone's seconds in both directions. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType

from fedbalancer.core.errors import MissingData

BRIDGE, PREFIX = "fbbed", "fb"
HOST = "10.203.0.1"
NEWNET = 0x40000000
"""CLONE_NEWNET of Linux."""

DELAY_MS = 10.0
"""One-way delay of Wi-Fi and a campus network, used if the kernel has netem."""

Command = tuple[str, ...]


def namespace_of(number: int) -> str:
    """Return the name of a phone's namespace."""
    return f"{PREFIX}bed{number}"


def bridge_commands() -> list[Command]:
    """Return the commands that create the bridge of all phones, with the SuperLink's address."""
    return [
        ("ip", "link", "add", BRIDGE, "type", "bridge"),
        ("ip", "addr", "add", f"{HOST}/16", "dev", BRIDGE),
        ("ip", "link", "set", BRIDGE, "up"),
    ]


def phone_commands(number: int, bits_s: float, delay_ms: float = 0.0) -> list[Command]:
    """Return the commands that create a phone's namespace and its shaped cable.

    >>> phone_commands(3, 8e6)[-1][-6:]
    ('rate', '8000000bit', 'burst', '80000', 'latency', '10s')
    """
    name, end, address = namespace_of(number), f"{PREFIX}{number}", f"10.203.1.{number + 1}/16"
    inside: Command = ("ip", "netns", "exec", name)
    return [
        ("ip", "netns", "add", name),
        ("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name),
        ("ip", "link", "set", end, "master", BRIDGE, "up"),
        (*inside, "ip", "addr", "add", address, "dev", "eth0"),
        (*inside, "ip", "link", "set", "eth0", "up"),
        (*inside, "ip", "link", "set", "lo", "up"),
        *shape_commands((), end, bits_s, delay_ms),
        *shape_commands(inside, "eth0", bits_s, delay_ms),
    ]


def shape_commands(inside: Command, device: str, bits_s: float, delay_ms: float) -> list[Command]:
    """Return the commands that limit the bandwidth of a device and delay what it sends.

    Args:
        inside: Prefix that runs a command inside the namespace.
        device: Name of the network device.
        bits_s: Bandwidth in bits per second.
        delay_ms: Delay in milliseconds; 0 for none.
    """
    burst = str(max(int(bits_s / 100), 4000))  # bits per timer tick of the kernel
    bandwidth = ("tbf", "rate", f"{bits_s:.0f}bit", "burst", burst, "latency", "10s")
    if not delay_ms:
        return [(*inside, "tc", "qdisc", "add", "dev", device, "root", *bandwidth)]
    return [
        (*inside, "tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "netem", "delay", f"{delay_ms:g}ms"),
        (*inside, "tc", "qdisc", "add", "dev", device, "parent", "1:", *bandwidth),
    ]


class Networks:
    """Context manager of all phones' networks.

    Args:
        bits_s: Bandwidth of every phone, in bits per second.
    """

    def __init__(self, bits_s: Sequence[float]) -> None:
        self.bits_s = bits_s
        self.delay_ms = 0.0
        self._stack = ExitStack()

    def __enter__(self) -> Networks:
        check()
        try:
            self._stack.callback(_quietly, ("ip", "link", "del", BRIDGE))
            for command in bridge_commands():
                _run(command)
            self.delay_ms = DELAY_MS if has_netem() else 0.0
            for number, bits_s in enumerate(self.bits_s):
                self._stack.callback(_quietly, ("ip", "netns", "del", namespace_of(number)))
                for command in phone_commands(number, bits_s, self.delay_ms):
                    _run(command)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def check() -> None:
    """Raise `MissingData` if `--netns` cannot work here."""
    if not hasattr(os, "geteuid") or not os.path.isdir("/proc/self/ns"):
        raise MissingData("--netns needs Linux, whose kernel has network namespaces")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise MissingData(f"--netns needs the commands {' and '.join(missing)}: install the package iproute2")
    if os.geteuid() != 0:
        raise MissingData("--netns needs root to create network namespaces; use sudo, or run without --netns")
    with _probe() as device:
        shape = ("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", "1mbit", "burst", "10000", "latency", "1s")
        _run(shape)


def enter(name: str) -> None:
    """Move this process into a network namespace."""
    with open(f"/var/run/netns/{name}", "rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), NEWNET) != 0:
            raise MissingData(f"cannot enter the network namespace {name}: {os.strerror(ctypes.get_errno())}")


def has_netem() -> bool:
    """Return whether the kernel can delay packets."""
    with _probe() as device, suppress(MissingData):
        _run(("tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms"))
        return True
    return False


@contextmanager
def _probe() -> Iterator[str]:
    """Yield the name of a temporary cable, for tests of what the kernel allows."""
    name, device = f"{PREFIX}bedtry", f"{PREFIX}try"
    try:
        _run(("ip", "netns", "add", name))
        _run(("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name))
        yield device
    finally:
        _quietly(("ip", "netns", "del", name))


def _run(command: Command) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise MissingData(f"--netns: this kernel does not allow `{' '.join(command)}`: {said}; run without --netns")


def _quietly(command: Command) -> None:
    subprocess.run(command, capture_output=True, check=False)
