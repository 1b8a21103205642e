"""Processes and signals: how workers start, how they end with their parent, and what Ctrl-C does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

EXIT_INTERRUPTED = 130


def process_context() -> Any:
    """Fork where it is safe, so that a task with lambdas needs no pickling; elsewhere spawn."""
    return multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")


def become_worker() -> None:
    """Called first in a worker process: leave Ctrl-C to the parent, and end when the parent is gone, however that
    went. A killed driver leaves no workers behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class StopFlag:
    """A context in which SIGINT and SIGTERM ask to stop after the round instead of ending the process; a second one
    exits at once."""

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
