"""Values on their way to other processes, their large arrays in memory that the processes share.

A block of such memory is a file without a name: processes hand it on as a descriptor, and it is gone when the last of
them lets go, however that process ended. On Linux it lies in memory and needs no room in /dev/shm, which is tiny in
containers.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
from multiprocessing import reduction
from typing import Any

import cloudpickle
import numpy as np

SMALL_BYTES = 64 * 1024
"""What is smaller travels in the message itself."""
_ALIGNED = 64
_Spans = list[tuple[int, int]]


class SharedValue:
    """A value for other processes, lambdas and functions of a script or notebook included. Its large arrays lie in
    memory that all of them share: ten workers that open it hold the data of a task once.

    >>> SharedValue({"x": np.arange(3)}).value["x"]
    array([0, 1, 2])
    """

    def __init__(self, value: Any) -> None:
        self._data, large = _taken_apart(value)
        self._spans, size = _laid_out(large)
        block = self._block = make_block(size) if large else None
        if block is None:  # then the message carries everything
            self._data, self._spans = cloudpickle.dumps(value, protocol=5), []
            return
        for (start, _), part in zip(self._spans, large, strict=True):
            _write(block, part.raw(), start)

    @property
    def value(self) -> Any:
        """The value, made anew; its large arrays are shared until they are written to."""
        if self._block is None:
            return pickle.loads(self._data)
        whole = np.frombuffer(mmap.mmap(self._block, self._spans[-1][1], access=mmap.ACCESS_COPY), np.uint8)
        return pickle.loads(self._data, buffers=[whole[start:end] for start, end in self._spans])

    def close(self) -> None:
        """Let go of the shared memory; what was opened before stays."""
        if self._block is not None:
            os.close(self._block)
        self._block = None

    def send(self, pipe: Any, pid: int) -> None:
        """Send it to the process `pid` at the other end of a pipe, which calls `receive`."""
        pipe.send_bytes(pickle.dumps((self._data, self._spans)))
        if self._block is not None:
            reduction.send_handle(pipe, self._block, pid)

    @classmethod
    def receive(cls, pipe: Any) -> Any:
        """The value that comes through a pipe."""
        data, spans = pickle.loads(pipe.recv_bytes())
        shared = cls.__new__(cls)
        shared._data, shared._spans, shared._block = data, spans, reduction.recv_handle(pipe) if spans else None
        try:
            return shared.value
        finally:
            shared.close()

    def __getstate__(self) -> tuple[bytes, _Spans, Any]:
        """For a process that starts with it."""
        return self._data, self._spans, None if self._block is None else reduction.DupFd(self._block)

    def __setstate__(self, state: tuple[bytes, _Spans, Any]) -> None:
        self._data, self._spans, block = state
        self._block = None if block is None else block.detach()


def make_block(size: int) -> int | None:
    """A descriptor of `size` bytes, or None where there is no such thing: then messages carry everything."""
    if sys.platform == "win32":
        return None
    try:
        if sys.platform == "linux":
            block = os.memfd_create("fedbalancer")
        else:
            with tempfile.TemporaryFile() as file:
                block = os.dup(file.fileno())
        os.ftruncate(block, size)
    except OSError:
        return None
    return block


def _write(block: int, rest: memoryview, start: int) -> None:
    while len(rest):
        done = os.pwrite(block, rest, start)
        rest, start = rest[done:], start + done


def _taken_apart(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """The pickled value without its large arrays, and these."""
    large: list[pickle.PickleBuffer] = []

    def stays(part: pickle.PickleBuffer) -> bool:
        small = len(part.raw()) < SMALL_BYTES
        if not small:
            large.append(part)
        return small

    return cloudpickle.dumps(value, protocol=5, buffer_callback=stays), large


def _laid_out(parts: list[pickle.PickleBuffer]) -> tuple[_Spans, int]:
    """Where each part begins and ends in the block, and the size of all."""
    spans, start = [], 0
    for part in parts:
        spans.append((start, start + len(part.raw())))
        start = -(-spans[-1][1] // _ALIGNED) * _ALIGNED
    return spans, start
