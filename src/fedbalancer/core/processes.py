"""Worker processes and signals: start, end, hang detection and Ctrl-C."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from fedbalancer.core.errors import BadSetting

EXIT_INTERRUPTED = 130
TRIES = 3
"""Workers that may die during the same work, or at their start, before it is an error."""
DIED = "a worker process died; fewer of them need less memory"
LEAST_MEMORY, LEAST_MEMORY_OF_CORE = 1500 * 2**20, 150 * 2**20
"""Bytes of address space that a process needs, and more for each core. Measured with two cores: one run aborts with
1,300 MiB, two parallel runs with 1,500 MiB; both succeed with 1,800 MiB."""


def check_memory_limit() -> None:
    """Check that the address space limit (`ulimit -v`) is high enough: below it, polars and BLAS abort or hang.

    Raises:
        BadSetting: If the limit is too low.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    least = LEAST_MEMORY + usable_cores() * LEAST_MEMORY_OF_CORE
    if limit != resource.RLIM_INFINITY and limit < least:
        raise BadSetting(
            f"a process may use only {limit / 2**20:,.0f} MiB of memory here (ulimit -v), but training with "
            f"{usable_cores()} cores needs at least {least / 2**20:,.0f} MiB; raise the limit with: ulimit -v unlimited"
        )


def process_context(preload: str) -> Any:
    """Return the multiprocessing context in which worker processes start.

    Workers start from a clean server process that has already imported `preload` and torch. They are never forked from
    this process: libraries with threads (polars, OpenMP) may hang in a forked child.

    Args:
        preload: Module to import in the server process.
    """
    check_memory_limit()
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload, "torch"])
    return context


@contextmanager
def without_main() -> Iterator[None]:
    """Start processes within this block without running the user's script again.

    The script may lack `if __name__ == "__main__":`, and stdin or a notebook has no file. The workers do not need it:
    what it defines is sent by value.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def become_worker() -> None:
    """Prepare a worker process: leave Ctrl-C to the parent, exit when the parent ends, and keep freed memory.

    A killed driver leaves no workers behind.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_freed_memory()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def keep_freed_memory() -> None:
    """Let the C library keep the memory that this process frees, for its next batch.

    By default glibc returns large blocks to the system, which has to clear them again for every batch: 5% of the time
    of a ResNet-18. Other C libraries are left as they are.
    """
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's settings
_NEVER, _LARGEST_IN_HEAP = 2**31 - 1, 2**25


def usable_cores() -> int:
    """Return the cores that this process may use: its CPU affinity, limited by the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def one_thread_here() -> None:
    """Compute on one thread in this process: same bytes on any machine load, and no contention between workers."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # for what is not loaded yet
        os.environ[name] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


class StopFlag:
    """A context in which SIGINT and SIGTERM request a stop after the current round.

    A second signal exits immediately.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(EXIT_INTERRUPTED)
        self.requested = True
        os.write(2, b"\nstopping after this round; press Ctrl-C again to exit at once\n")


LOOK_EVERY_S = 1.0
STOPPED_LOOKS = 10
"""Consecutive observations of a stopped process after which it is killed."""
IDLE_LOOKS = 120
"""Consecutive observations of an idle process with work after which it is killed. This may hit a process that waits for
a slow disk; its work is repeated with the same result."""


class Watchdog:
    """Kills worker processes that hang.

    It counts observations, not seconds. A machine that sleeps, or a driver that is stopped with its workers, makes no
    observations and kills nobody. It requires /proc; elsewhere it does nothing. Observations are `LOOK_EVERY_S` apart.
    """

    def __init__(self) -> None:
        self._looked_at_s = time.monotonic()
        self._stopped: dict[int, int] = {}
        self._idle: dict[int, tuple[int, int]] = {}

    def look(self, processes: Iterable[int], working: Iterable[int] = ()) -> list[int]:
        """Kill hung processes and return their ids.

        Args:
            processes: Ids of all processes. One that is stopped in `STOPPED_LOOKS` consecutive observations is killed.
            working: Ids of processes with work. One that uses no CPU in `IDLE_LOOKS` consecutive observations is
                killed.
        """
        now_s = time.monotonic()
        if now_s - self._looked_at_s < LOOK_EVERY_S:
            return []
        self._looked_at_s = now_s
        seen = {pid: state for pid in processes if (state := _state(pid)) is not None}
        self._stopped = {pid: self._stopped.get(pid, 0) + 1 for pid, (letter, _) in seen.items() if letter == "T"}
        self._idle = {pid: self._looks_without(pid, seen[pid][1]) for pid in working if pid in seen}
        hung = [pid for pid, looks in self._stopped.items() if looks >= STOPPED_LOOKS]
        hung += [pid for pid, (looks, _) in self._idle.items() if looks >= IDLE_LOOKS and pid not in hung]
        for pid in hung:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)  # also ends a stopped process
        return hung

    def _looks_without(self, pid: int, ticks: int) -> tuple[int, int]:
        """Return the number of consecutive observations with the same CPU time, and that time."""
        looks, before = self._idle.get(pid, (0, ticks))
        return (looks + 1, ticks) if before == ticks else (0, ticks)


def _state(pid: int) -> tuple[str, int] | None:
    """Return the state letter and the CPU ticks of a process, or None if they cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
