"""Between Flower's named arrays and our flat vector of weights. Nothing is unpickled, and nothing is allocated before
its size is known to be right."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.types import Layout, Weights
from fedbalancer.flower.compat import Array, ArrayRecord

STYPE = "numpy.ndarray"
HEADER_BYTES = 4096
"""More than the header of an .npy file of any array with few dimensions takes."""


class Faulty(Exception):
    """What is wrong with something that was sent."""


def read_array(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers of an array that must have this shape and type; anything else is `Faulty`, at no cost."""
    if tuple(array.shape) != shape or str(array.dtype) != str(dtype):
        raise Faulty(f"array {name!r} is {array.dtype} {tuple(array.shape)} in place of {dtype} {shape}")
    if array.stype != STYPE:
        raise Faulty(f"array {name!r} is packed as {array.stype!r} in place of {STYPE!r}")
    count = math.prod(shape)
    if not 0 <= len(array.data) - count * dtype.itemsize <= HEADER_BYTES:
        raise Faulty(f"array {name!r} has {len(array.data)} bytes for {count} numbers of {dtype}")
    stream = io.BytesIO(array.data)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        found, fortran, kind = read(stream)
    except Exception as error:  # NumPy lets through what Python's own parser raises on text that is no header
        raise Faulty(f"array {name!r} has no header that can be read") from error
    # What the header says must be what the record says: a reader that believed the header would allocate by it.
    if found != shape or kind != dtype or len(array.data) - stream.tell() != count * dtype.itemsize:
        raise Faulty(f"array {name!r} says {dtype} {shape} outside and {kind} {found} inside")
    values = np.frombuffer(array.data, dtype, count, offset=stream.tell())
    return values.reshape(shape, order="F" if fortran else "C")


@dataclass(frozen=True, eq=False)
class ModelLayout:
    """Names, shapes and types of the arrays of a model. The floating ones are trained, in one vector of float32; the
    `others` (such as the counters of a batch norm) travel as they were at the start."""

    layout: Layout
    dtypes: Mapping[str, np.dtype[Any]]
    others: Mapping[str, Array]

    @classmethod
    def of(cls, record: ArrayRecord) -> ModelLayout:
        """The layout of a model's arrays."""
        floating = {name: array for name, array in record.items() if np.dtype(array.dtype).kind == "f"}
        if not floating:
            raise BadData("the model's arrays hold no floating-point numbers, so there is nothing to train")
        layout = Layout((name, tuple(array.shape)) for name, array in floating.items())
        dtypes = {name: np.dtype(array.dtype) for name, array in floating.items()}
        return cls(layout, dtypes, {name: array for name, array in record.items() if name not in floating})

    def flat(self, record: ArrayRecord) -> Weights:
        """The vector of a record; one that does not fit the layout is `Faulty`."""
        if strange := sorted(set(record) ^ {*self.dtypes, *self.others}):
            raise Faulty(f"the arrays' names differ in {', '.join(map(repr, strange[:3]))}")
        return self.layout.join(
            {name: read_array(name, record[name], shape, self.dtypes[name]) for name, shape in self.layout}
        )

    def record(self, weights: Weights) -> ArrayRecord:
        """The named arrays of a vector."""
        tensors = self.layout.split(weights)
        floating = {name: Array(tensor.astype(self.dtypes[name])) for name, tensor in tensors.items()}
        return ArrayRecord({**self.others, **floating})


def arranged(vector: Weights, order: Layout, wanted: Layout) -> Weights:
    """A vector of the tensors of one layout in the order of another, which need not be the same: a module lists its
    parameters before its buffers, its state_dict as they come."""
    if order == wanted:
        return vector
    if dict(order) != dict(wanted):
        strange = sorted({str(item) for item in set(order) ^ set(wanted)})
        raise BadData(f"the server's model differs from this client's in {', '.join(strange[:3])}")
    return wanted.join(order.split(vector))
