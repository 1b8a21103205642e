"""Being connected to Ray: a cluster that is there, or a Ray of our own that starts here and ends with us."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.training.fast.provenance import processor

ANSWER_S = 10.0
"""How long an address may take to answer at all."""
NODES_S = 60.0
"""How long all nodes may take to name their processors."""
STARTS = 3
"""Attempts to start a Ray here: it gives itself 30 s, which may not be enough on a busy machine."""
PREFIX = "fb-ray-"
LONGEST_FOLDER = 16
"""Ray puts sockets some 80 characters below the folder for temporary files, and their paths may have 107 at most (103
on a Mac)."""


class RaySession:
    """A connection to Ray. One that the program made before is used and left as it is.

    A Ray that starts here has `cores` CPUs.
    """

    def __init__(self, address: str | None, cores: int) -> None:
        self.ray = _package()
        self._folder: Path | None = None
        self._ours = not self.ray.is_initialized()
        if self._ours:
            try:
                self._connect(address, cores)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """End the connection, and the Ray that was started for it, if it is ours."""
        if self._ours:
            self.ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def room(self, cpus: float, gpus: float) -> int:
        """How many workers fit that each need so much; at least one."""
        there = self.ray.cluster_resources()
        fitting = [there.get(name, 0.0) // need for name, need in (("CPU", cpus), ("GPU", gpus)) if need]
        return max(int(min(fitting)), 1)

    def describe(self) -> str:
        """What there is to work with."""
        there, free = self.ray.cluster_resources(), self.ray.available_resources()
        return f"the cluster has {there.get('CPU', 0.0):g} CPUs, of which {free.get('CPU', 0.0):g} are free"

    def _connect(self, address: str | None, cores: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
        if address is not None:
            check_answers(address)
            _begin(self.ray, f"address = {address!r}: Ray does not work there", {"address": address, **quiet})
            return
        own = {"address": "local", "num_cpus": cores, "include_dashboard": False, **quiet}
        for left in reversed(range(STARTS)):
            self._folder = fresh_folder()
            try:
                _begin(self.ray, "Ray cannot start here", {**own, "_temp_dir": str(self._folder)})
            except BadSetting:
                if not left:
                    raise
                self.close()
            else:
                return


def warn_of_unlike_nodes(ray: Any) -> None:
    """Tell the user of a cluster whose processors differ: only equal ones give the same bytes."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    ask = ray.remote(num_cpus=0)(processor)
    there = (NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes.values() if len(nodes) > 1)
    try:
        found = ray.get([ask.options(scheduling_strategy=node).remote() for node in there], timeout=NODES_S)
    except ray.exceptions.RayError:  # a node that has just gone: whatever replaces it is not known yet
        return
    if len(set(found)) > 1:
        each = "; ".join(f"{name}: {has}" for name, has in zip(nodes, found, strict=True))
        told = f"the processors of the Ray cluster differ, so that a seed need not give the same bytes: {each}"
        warnings.warn(told, stacklevel=2)


def fresh_folder() -> Path:
    """A folder for what Ray writes. Those of drivers that were killed are removed by who comes next."""
    usual = tempfile.gettempdir()
    place = Path(usual if len(usual) <= LONGEST_FOLDER else "/tmp")
    if sys.platform != "win32":
        for old in place.glob(f"{PREFIX}*-*"):
            owner = old.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdigit() and not _is_alive(int(owner)):
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is, but not ours
        return True
    return True


def _package() -> Any:
    """Ray, told to keep to itself what it would print on our stdout, such as the death of a worker."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError as error:
        raise MissingData("executor ray needs Ray; type: pip install 'fedbalancer[ray]'") from error
    return ray


def check_answers(address: str) -> None:
    """Ray itself would keep trying for minutes."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise BadSetting(f"address = {address!r} must be auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise BadSetting(f"address = {address!r}: no Ray answers there ({error})") from error


def _begin(ray: Any, trouble: str, options: dict[str, Any]) -> None:
    try:
        with _signals_kept():
            ray.init(**options)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        hint = "; one that asks for a token needs RAY_AUTH_MODE=token" if isinstance(error, ConnectionError) else ""
        raise BadSetting(f"{trouble} ({reason}){hint}") from error


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; whoever had it before gets it back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
