"""Memory that several processes share.

A block is a file without a name: processes hand it on as a descriptor, and it is gone when the last of them lets go,
however that process ended. On Linux it lies in memory and needs no room in /dev/shm, which is tiny in containers.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALL_BYTES = 64 * 1024
"""What is smaller travels in the message itself."""


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
