"""A value on its way to worker processes, its large arrays in memory that all of them share."""

from __future__ import annotations

import os
import pickle
from multiprocessing import reduction
from typing import Any

import cloudpickle
import numpy as np

from fedbalancer.engine.executors import blocks

_ALIGNED = 64


class Parcel:
    """A value for worker processes; lambdas and functions of a script or notebook included. Ten workers that open it
    hold the data of a task once.

    >>> Parcel({"x": np.arange(3)}).value["x"]
    array([0, 1, 2])
    """

    def __init__(self, value: Any) -> None:
        self._data, large = _taken_apart(value)
        self._spans, size = _spans(large)
        block = self._block = blocks.make_block(size) if large else None
        if block is None:  # then the message carries everything
            self._data, self._spans = cloudpickle.dumps(value, protocol=5), []
            return
        for (start, _), part in zip(self._spans, large, strict=True):
            blocks.write(block, np.frombuffer(part.raw(), np.uint8), start)

    @property
    def value(self) -> Any:
        """The value, made anew; its large arrays are shared until they are written to."""
        if self._block is None:
            return pickle.loads(self._data)
        whole = blocks.mapped(self._block, self._spans[-1][1], np.uint8, own=True)
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
        small = len(part.raw()) < blocks.SMALL_BYTES
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
