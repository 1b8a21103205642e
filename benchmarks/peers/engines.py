"""Engines as processes that stay up: an order goes in as a line of JSON, seconds come out as another."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments import python_of

from fedbalancer.core.processes import usable_cores

HERE = Path(__file__).parent
CORES = usable_cores()
PEERS = ("flower", "pfl-threads", "pfl-processes")
TITLES = {
    "flower": f"Flower 1.41 (Ray, {CORES} actors)",
    "pfl-threads": f"pfl-research 0.6 (1 process x {CORES} threads)",
    "pfl-processes": f"pfl-research 0.6 ({CORES} processes x 1 thread)",
    "naive": f"naive torch loop ({CORES} threads)",
    "plain": f"fedbalancer, plain ({CORES} processes)",
    "fast": f"fedbalancer, fast ({CORES} processes)",
}


class Engine:
    """One engine: the first of its processes answers, the others are its helpers and get the same orders."""

    def __init__(self, name: str, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], log: Path) -> None:
        self.name = name
        self.log = log
        begun = time.perf_counter()
        with open(log, "w", encoding="utf-8") as file:
            self._processes = [
                subprocess.Popen(
                    list(command), cwd=HERE, env={**os.environ, **environment}, text=True, bufsize=1,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                )
                for command, environment in commands
            ]  # fmt: skip
        self._answers()
        self._ready_s = time.perf_counter() - begun
        self.start_s: float | None = None
        """Seconds to get ready and to obey the first order, workers started: what a user waits once."""

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Give the order, wait for the answer."""
        begun = time.perf_counter()
        for process in self._processes:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        answer = self._answers()
        if self.start_s is None:
            self.start_s = self._ready_s + time.perf_counter() - begun
        return answer

    def close(self) -> None:
        """No more orders: the processes end by themselves; one that does not is ended."""
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()

    def _answers(self) -> dict[str, Any]:
        lines = [process.stdout.readline() for process in self._processes]
        if not all(lines):
            end = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            self.close()
            raise SystemExit(f"{self.name} ended early; the end of {self.log}:\n{end}")
        return json.loads(lines[0])


def start(name: str, clients: int, cache: Path, logs: Path) -> Engine:
    """Start the named engine for at most this many clients."""
    common = {"PEERS_CORES": str(CORES), "PEERS_CLIENTS": str(clients), "PEERS_THREADS": str(CORES)}
    log = logs / f"{name}.log"
    if name == "flower":
        return Engine(name, [([str(python_of("flower", cache)), "engine_flower.py"], common)], log)
    if name == "naive":
        return Engine(name, [([sys.executable, "engine_naive.py"], common)], log)
    if name in ("plain", "fast"):
        return Engine(name, [([sys.executable, "engine_ours.py", name], common)], log)
    command = [str(python_of("pfl", cache)), "engine_pfl.py"]
    if name == "pfl-threads":
        return Engine(name, [(command, common)], log)
    addresses = ",".join(f"localhost:{port}" for port in _free_ports(CORES))
    one = {**common, "PEERS_THREADS": "1", "OMP_NUM_THREADS": "1", "PFL_WORKER_ADDRESSES": addresses}
    return Engine(name, [(command, {**one, "PFL_WORKER_RANK": str(rank)}) for rank in range(CORES)], log)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports
