"""Memory that several processes share, and values on their way through it.

A block is a file without a name: processes hand it on as a descriptor, and it is gone when the last of them lets go,
however that process ended. On Linux it lies in memory and needs no room in /dev/shm, which is tiny in containers.
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
from numpy.typing import NDArray

SMALL_BYTES = 64 * 1024
"""What is smaller travels in the message itself."""
_ALIGNED = 64


def make_block(size: int) -> int | None:
    """A descriptor of `size` bytes of zeros, or None where there is no such thing: then messages carry everything."""
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


def mapped(block: int, count: int, dtype: Any = np.float32, *, own: bool = False) -> NDArray[Any]:
    """The first `count` values of a block. With `own`, what is written to them stays in this process."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(block, size, access=mmap.ACCESS_COPY if own else mmap.ACCESS_WRITE), dtype)


def write(block: int, array: NDArray[Any], start: int = 0) -> None:
    """The array's bytes into the block."""
    rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while len(rest):
        done = os.pwrite(block, rest, start)
        rest, start = rest[done:], start + done


class SharedValue:
    """A value for worker processes, lambdas and functions of a script or notebook included. Its large arrays lie in
    memory that all of them share: ten workers that open it hold the data of a task once.

    >>> SharedValue({"x": np.arange(3)}).value["x"]
    array([0, 1, 2])
    """

    def __init__(self, value: Any) -> None:
        self._data, large = _taken_apart(value)
        self._spans, size = _spans(large)
        block = self._block = make_block(size) if large else None
        if block is None:  # then the message carries everything
            self._data, self._spans = cloudpickle.dumps(value, protocol=5), []
            return
        for (start, _), part in zip(self._spans, large, strict=True):
            write(block, np.frombuffer(part.raw(), np.uint8), start)

    @property
    def value(self) -> Any:
        """The value, made anew; its large arrays are shared until they are written to."""
        if self._block is None:
            return pickle.loads(self._data)
        whole = mapped(self._block, self._spans[-1][1], np.uint8, own=True)
        return pickle.loads(self._data, buffers=[whole[start:end] for start, end in self._spans])

    def close(self) -> None:
        """Let go of the shared memory; what was opened before stays."""
        if self._block is not None:
            os.close(self._block)
        self._block = None

    def __getstate__(self) -> tuple[bytes, list[tuple[int, int]], Any]:
        return self._data, self._spans, None if self._block is None else reduction.DupFd(self._block)

    def __setstate__(self, state: tuple[bytes, list[tuple[int, int]], Any]) -> None:
        self._data, self._spans, block = state
        self._block = None if block is None else block.detach()


def _taken_apart(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """The pickled value without its large arrays, and these."""
    large: list[pickle.PickleBuffer] = []

    def stays(part: pickle.PickleBuffer) -> bool:
        small = len(part.raw()) < SMALL_BYTES
        if not small:
            large.append(part)
        return small

    return cloudpickle.dumps(value, protocol=5, buffer_callback=stays), large


def _spans(parts: list[pickle.PickleBuffer]) -> tuple[list[tuple[int, int]], int]:
    """Where each part begins and ends in the block, and the size of all."""
    spans, start = [], 0
    for part in parts:
        spans.append((start, start + len(part.raw())))
        start = -(-spans[-1][1] // _ALIGNED) * _ALIGNED
    return spans, start
