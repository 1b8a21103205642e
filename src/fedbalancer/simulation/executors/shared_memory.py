"""Sends values to other processes, with their large arrays in shared memory.

A block of shared memory is an unnamed file. Processes pass it on as a descriptor, and it disappears when the last of
them closes it or ends. On Linux it lies in memory and does not use /dev/shm, which is tiny in containers.
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
"""Smaller arrays travel in the message itself."""
_ALIGNMENT = 64
_Spans = list[tuple[int, int]]


class SharedValue:
    """A value for other processes, which may contain lambdas and functions of a script or notebook.

    Its large arrays lie in memory that all processes share: ten workers hold the data of a task only once.

    Args:
        value: The value.

    >>> SharedValue({"x": np.arange(3)}).value["x"]
    array([0, 1, 2])
    """

    def __init__(self, value: Any) -> None:
        self._data, large = _split_large(value)
        self._spans, size = _lay_out(large)
        block = self._block = make_block(size) if large else None
        if block is None:  # the message carries everything
            self._data, self._spans = cloudpickle.dumps(value, protocol=5), []
            return
        for (start, _), part in zip(self._spans, large, strict=True):
            _write(block, part.raw(), start)

    @property
    def value(self) -> Any:
        """A new copy of the value; its large arrays are shared until they are written to."""
        if self._block is None:
            return pickle.loads(self._data)
        whole = np.frombuffer(mmap.mmap(self._block, self._spans[-1][1], access=mmap.ACCESS_COPY), np.uint8)
        return pickle.loads(self._data, buffers=[whole[start:end] for start, end in self._spans])

    def close(self) -> None:
        """Release the shared memory; copies of the value stay valid."""
        if self._block is not None:
            os.close(self._block)
        self._block = None

    def send(self, pipe: Any, pid: int) -> None:
        """Send the value through a pipe; the other end calls `receive`.

        Args:
            pipe: The pipe.
            pid: The process at its other end.
        """
        pipe.send_bytes(pickle.dumps((self._data, self._spans)))
        if self._block is not None:
            reduction.send_handle(pipe, self._block, pid)

    @classmethod
    def receive(cls, pipe: Any) -> Any:
        """Receive a value from a pipe."""
        data, spans = pickle.loads(pipe.recv_bytes())
        shared = cls.__new__(cls)
        shared._data, shared._spans, shared._block = data, spans, reduction.recv_handle(pipe) if spans else None
        try:
            return shared.value
        finally:
            shared.close()

    def __getstate__(self) -> tuple[bytes, _Spans, Any]:
        """Support passing the value as an argument to a new process."""
        return self._data, self._spans, None if self._block is None else reduction.DupFd(self._block)

    def __setstate__(self, state: tuple[bytes, _Spans, Any]) -> None:
        self._data, self._spans, block = state
        self._block = None if block is None else block.detach()


def make_block(size: int) -> int | None:
    """Make a block of shared memory.

    Args:
        size: Bytes.

    Returns:
        Its descriptor; None if the platform has no such memory.
    """
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


def _split_large(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return the pickled value without its large arrays, and the large arrays."""
    large: list[pickle.PickleBuffer] = []

    def is_small(part: pickle.PickleBuffer) -> bool:
        small = len(part.raw()) < SMALL_BYTES
        if not small:
            large.append(part)
        return small

    return cloudpickle.dumps(value, protocol=5, buffer_callback=is_small), large


def _lay_out(parts: list[pickle.PickleBuffer]) -> tuple[_Spans, int]:
    """Return where each part begins and ends in the block, and the total size."""
    spans, start = [], 0
    for part in parts:
        spans.append((start, start + len(part.raw())))
        start = -(-spans[-1][1] // _ALIGNMENT) * _ALIGNMENT
    return spans, start
