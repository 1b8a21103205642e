"""The executor that trains with Ray actors, on this machine or on a cluster, and its connection to Ray."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from fedbalancer.core.errors import BadSetting, FedBalancerError, MissingData
from fedbalancer.core.interfaces import Trainer
from fedbalancer.core.processes import usable_cores
from fedbalancer.core.types import TrainResult, Weights
from fedbalancer.simulation.executors.distributed import Answer, DistributedExecutor, Worker
from fedbalancer.training.fast.kernels import describe_processor

START_S = 300.0
"""Maximum seconds until Ray starts a first worker, which imports torch; this takes minutes on busy machines."""
ANSWER_S = 10.0
"""Maximum seconds until an address answers."""
NODES_S = 60.0
"""Maximum seconds until all nodes have named their processors."""
STARTS = 3
"""Attempts to start a local Ray, which gives up after 30 s; a busy machine may need longer."""
PREFIX = "fb-ray-"
MAX_FOLDER_LENGTH = 16
"""Ray puts sockets about 80 characters below its temporary folder; their paths may have 107 characters (103 on macOS).
"""


class RaySession:
    """A connection to Ray; an existing connection of the program is used and left open.

    Args:
        address: Address of a cluster, or "auto". Default: start a local Ray.
        cores: CPUs of a local Ray.

    Raises:
        MissingData: If Ray is not installed.
        BadSetting: If Ray does not answer at the address or cannot start.
    """

    def __init__(self, address: str | None, cores: int) -> None:
        self.ray = _import_ray()
        self._folder: Path | None = None
        self._ours = not self.ray.is_initialized()
        if self._ours:
            try:
                self._connect(address, cores)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the connection if it was opened here, and stop the local Ray."""
        if self._ours:
            self.ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def room(self, cpus: float, gpus: float) -> int:
        """Return how many workers fit into the cluster, at least 1.

        Args:
            cpus: CPUs of each worker.
            gpus: GPUs of each worker.
        """
        resources = self.ray.cluster_resources()
        fitting = [resources.get(name, 0.0) // need for name, need in (("CPU", cpus), ("GPU", gpus)) if need]
        return max(int(min(fitting)), 1)

    def describe(self) -> str:
        """Return the cluster's CPUs in words."""
        resources, free = self.ray.cluster_resources(), self.ray.available_resources()
        return f"the cluster has {resources.get('CPU', 0.0):g} CPUs, of which {free.get('CPU', 0.0):g} are free"

    def _connect(self, address: str | None, cores: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
        if address is not None:
            check_answers(address)
            _init_ray(self.ray, f"address = {address!r}: cannot connect to Ray", {"address": address, **quiet})
            return
        local = {"address": "local", "num_cpus": cores, "include_dashboard": False, **quiet}
        for left in reversed(range(STARTS)):
            self._folder = make_temp_folder()
            try:
                _init_ray(self.ray, "Ray cannot start here", {**local, "_temp_dir": str(self._folder)})
            except BadSetting:
                if not left:
                    raise
                self.close()
            else:
                return


def warn_of_different_nodes(ray: Any) -> None:
    """Warn if the processors of a cluster differ: only equal ones produce the same bytes."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    ask = ray.remote(num_cpus=0)(describe_processor)
    strategies = (NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes.values() if len(nodes) > 1)
    try:
        processors = ray.get([ask.options(scheduling_strategy=each).remote() for each in strategies], timeout=NODES_S)
    except ray.exceptions.RayError:  # a node has just left, and its replacement is not known yet
        return
    if len(set(processors)) > 1:
        listed = "; ".join(f"{node}: {name}" for node, name in zip(nodes, processors, strict=True))
        message = f"the processors of the Ray cluster differ, so the same seed may not give the same bytes: {listed}"
        warnings.warn(message, stacklevel=2)


def make_temp_folder() -> Path:
    """Make a temporary folder for Ray, and remove those of drivers that were killed."""
    default = tempfile.gettempdir()
    parent = Path(default if len(default) <= MAX_FOLDER_LENGTH else "/tmp")  # noqa: S108 (Ray itself puts its sockets there)
    if sys.platform != "win32":
        for old in parent.glob(f"{PREFIX}*-*"):
            owner = old.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdigit() and not _is_alive(int(owner)):
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _import_ray() -> Any:
    """Import Ray, configured not to print to our stdout, for example when a worker dies."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError as error:
        raise MissingData("executor ray needs Ray; type: pip install 'fedbalancer[ray]'") from error
    return ray


def check_answers(address: str) -> None:
    """Raise `BadSetting` unless something answers at the address; Ray itself would retry for minutes."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise BadSetting(f"address = {address!r} must be auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise BadSetting(f"address = {address!r}: no Ray answers there ({error})") from error


def _init_ray(ray: Any, problem: str, options: dict[str, Any]) -> None:
    try:
        with _keep_signal_handlers():
            ray.init(**options)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        hint = "; a cluster with tokens needs RAY_AUTH_MODE=token" if isinstance(error, ConnectionError) else ""
        raise BadSetting(f"{problem} ({reason}){hint}") from error


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers on exit, because Ray replaces that of SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RayExecutor(DistributedExecutor):
    """Trains in Ray actors of one CPU each, which live until `close`.

    Weights are put into Ray's object store once per round.

    Args:
        make_trainer: Makes the trainer of each actor.
        workers: Number of actors. Default: as many as fit into the cluster.
        sizes: Number of samples of each client, to predict costs. Default: all clients are equal.
        address: Address of a cluster, or "auto" for the one of this machine. Default: start a Ray on this machine that
            ends with this process.
        gpus: GPUs of each actor.
    """

    def __init__(
        self,
        make_trainer: Callable[[], Trainer],
        workers: int | None = None,
        sizes: Mapping[str, int] | None = None,
        address: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        self._session = RaySession(address, workers if workers is not None else usable_cores())
        self._ray = self._session.ray
        warn_of_different_nodes(self._ray)
        self._actor = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(Actor)
        self._make_trainer = self._ray.put(make_trainer)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._weights: Any = None
        super().__init__(workers if workers is not None else self._session.room(1.0, gpus), sizes)

    def close(self) -> None:
        """End all actors and the connection."""
        for worker in list(self._actors):
            self._end(worker)
        self._make_trainer = self._weights = None
        self._session.close()

    def _start(self, worker: int) -> None:
        self._end(worker)
        self._actors[worker] = actor = self._actor.remote()
        self._pending[actor.start.remote([self._make_trainer], sys.path)] = worker

    def _end(self, worker: int) -> None:
        self._pending = {answer: other for answer, other in self._pending.items() if other != worker}
        if worker in self._actors:
            self._ray.kill(self._actors.pop(worker))

    @contextmanager
    def _share(self, weights: Weights | None) -> Iterator[Any]:
        if weights is None:
            yield None
            return
        if self._weights is None or not _are_equal(self._ray.get(self._weights), weights):
            self._weights = self._ray.put(weights)
        yield self._weights

    def _ask(self, worker: int, verb: str, items: Sequence[Any], shared: Any) -> None:
        self._pending[self._actors[worker].answer.remote(verb, cloudpickle.dumps(items), shared)] = worker

    def _answers(self, timeout_s: float | None) -> list[tuple[int, Answer | None]]:
        if not self._pending:
            return []
        only_starts = self._starting.keys() >= set(self._pending.values())
        patience_s = START_S if timeout_s is None and only_starts else timeout_s
        ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=patience_s)
        if not ready and timeout_s is None:
            raise FedBalancerError(f"Ray started no worker within {START_S:g} s; {self._session.describe()}")
        return [(self._pending.pop(reference), self._fetch(reference)) for reference in ready]

    def _fetch(self, reference: Any) -> Answer | None:
        try:
            answer: Answer = self._ray.get(reference)
        except self._ray.exceptions.RayError:
            return None
        return replace(answer, values=[_copy_arrays(value) for value in answer.values])


class Actor:
    """A `Worker` in a process of Ray."""

    def __init__(self) -> None:
        self._worker = Worker()

    def start(self, make_trainer: list[Any], path: list[str]) -> Answer:
        """Make the trainer; modules are found in the driver's path, as in a pool."""
        import ray

        sys.path.extend(entry for entry in path if entry not in sys.path)
        return self._worker.start(lambda: ray.get(make_trainer[0]))

    def answer(self, verb: str, items: bytes, weights: Weights | None) -> Answer:
        """Process pickled items."""
        return self._worker.answer(verb, cloudpickle.loads(items), weights)


def _are_equal(one: Weights, other: Weights) -> bool:
    """Whether two vectors are equal in every bit."""
    return one.shape == other.shape and np.array_equal(one.view(np.uint32), other.view(np.uint32))


def _copy_arrays(value: Any) -> Any:
    """Copy arrays into this process: those of Ray are read-only and occupy Ray's store."""
    if isinstance(value, TrainResult):
        copies = {name: _copy_arrays(getattr(value, name)) for name in ("update", "seen", "losses")}
        return replace(value, **copies)
    return value.copy() if isinstance(value, np.ndarray) else value
