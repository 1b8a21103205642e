"""A federation on this machine: a SuperLink and SuperNodes on loopback, for tests, test beds and first trials."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fedbalancer.core.errors import MissingData

STOP_S = 5.0
START_S = 60.0


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Federation:
    """The processes of one federation. A `with` statement stops them, and all processes that they started, at its end.

    There is no TLS and no authentication. App dependencies are not installed: apps use the packages of this Python.

    Args:
        folder: Folder of the logs.
        environment: Additional environment variables.
        host: Address that the SuperLink listens on.
        cwd: Working folder of the processes. Default: `folder`.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, host: str = "127.0.0.1",
        cwd: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder = Path(folder).resolve()
        self.cwd = self.folder if cwd is None else cwd
        self.folder.mkdir(parents=True, exist_ok=True)
        self.host, self.port = host, free_port()
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\ninsecure = true\n'
        )
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Address of the SuperLink."""
        return f"{self.host}:{self.port}"

    def superlink(self, *options: str) -> None:
        """Start the SuperLink and wait until it listens.

        Raises:
            MissingData: It does not start.
        """
        self.start(
            "superlink",
            ["flower-superlink", "--insecure", "--host", self.host, "--port", str(self.port),
             "--disable-runtime-dependency-installation", *options],
        )  # fmt: skip
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex((self.host, self.port)) == 0:
                    return
            if self.processes["superlink"].poll() is not None:
                break
            time.sleep(0.2)
        raise MissingData(f"the SuperLink did not start: {self.log('superlink')[-2000:]}")

    def supernode(self, name: str, config: str = "", environment: Mapping[str, str] | None = None) -> None:
        """Start a SuperNode with a node configuration such as `partition-id=0`."""
        command = ["flower-supernode", "--insecure", "--superlink", self.address, "--port",
                   str(free_port())]  # fmt: skip
        self.start(name, [*command, "--node-config", config] if config else command, environment)

    def run(self, app: Path, *options: str) -> None:
        """Submit an app to the SuperLink.

        Raises:
            MissingData: `flwr run` fails.
        """
        done = subprocess.run(
            ["flwr", "run", str(app), *options], env=self.environment, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise MissingData(f"flwr run {app} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process in its own process group, with its output in `folder`."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**self.environment, **(environment or {})}, cwd=self.cwd, start_new_session=True,
            )  # fmt: skip

    def log(self, name: str) -> str:
        """Return the current output of a process."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self, name: str, signal: int = 15) -> None:
        """Stop a process and all processes that it started."""
        self._stop({name: _groups(self.processes[name].pid)}, signal)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Look up all groups first: the children of a process that has ended have no parent.
        self._stop({name: _groups(process.pid) for name, process in self.processes.items()}, 15)

    def _stop(self, groups: Mapping[str, set[int]], signal: int) -> None:
        for members in groups.values():
            _signal(members, signal)
        for name, members in groups.items():
            process = self.processes.pop(name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            _signal(members, 9)
            process.wait()


def _groups(pid: int) -> set[int]:
    """Return the process groups of a process and its descendants; without /proc only its own group.

    A SuperNode starts one process per message, and the SuperLink starts its ServerApp in another group.
    """
    parents = {pid}
    table = [row for file in Path("/proc").glob("[0-9]*/stat") if (row := _row(file)) is not None]
    while children := {child for child, parent, _ in table if parent in parents} - parents:
        parents |= children
    return {pid} | {group for child, _, group in table if child in parents}


def _row(stat: Path) -> tuple[int, int, int] | None:
    """Return process, parent and group; None if the process has just ended."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(stat.parent.name), int(fields[1]), int(fields[2])


def _signal(groups: set[int], signal: int) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal)
