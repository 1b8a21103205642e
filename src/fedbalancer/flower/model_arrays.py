"""The arrays of a model in messages. Nothing is unpickled, and headers are checked before memory is allocated."""

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
"""Upper bound on the header of an .npy file."""


class InvalidMessage(Exception):
    """A received message is invalid; the text says why."""


def read_array(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of an array.

    Args:
        name: Name of the array, for messages.
        array: The array as it was sent.
        shape: Required shape.
        dtype: Required type.

    Raises:
        InvalidMessage: Shape, type or size differ. They are checked before anything is allocated.
    """
    if tuple(array.shape) != shape or str(array.dtype) != str(dtype):
        raise InvalidMessage(f"array {name!r} is {array.dtype} {tuple(array.shape)} in place of {dtype} {shape}")
    if array.stype != STYPE:
        raise InvalidMessage(f"array {name!r} is packed as {array.stype!r} in place of {STYPE!r}")
    count = math.prod(shape)
    if not 0 <= len(array.data) - count * dtype.itemsize <= HEADER_BYTES:
        raise InvalidMessage(f"array {name!r} has {len(array.data)} bytes for {count} numbers of {dtype}")
    stream = io.BytesIO(array.data)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        inner_shape, fortran, inner_dtype = read(stream)
    except Exception as error:  # NumPy does not catch errors of Python's parser
        raise InvalidMessage(f"array {name!r} has no header that can be read") from error
    # The header must agree with the record: NumPy would allocate what the header says.
    if inner_shape != shape or inner_dtype != dtype or len(array.data) - stream.tell() != count * dtype.itemsize:
        raise InvalidMessage(f"array {name!r} says {dtype} {shape} outside and {inner_dtype} {inner_shape} inside")
    values = np.frombuffer(array.data, dtype, count, offset=stream.tell())
    return values.reshape(shape, order="F" if fortran else "C")


@dataclass(frozen=True, eq=False)
class ModelLayout:
    """Names, shapes and types of the arrays of a model.

    Floating-point arrays are trained, as one vector of float32. Others, such as the counters of a batch norm, are sent
    as they were at the start.

    Args:
        layout: Names and shapes of the floating-point arrays.
        dtypes: Their types.
        others: All other arrays.
    """

    layout: Layout
    dtypes: Mapping[str, np.dtype[Any]]
    others: Mapping[str, Array]

    @classmethod
    def of(cls, record: ArrayRecord) -> ModelLayout:
        """Return the layout of a model.

        Raises:
            BadData: No array holds floating-point numbers.
        """
        floating = {name: array for name, array in record.items() if np.dtype(array.dtype).kind == "f"}
        if not floating:
            raise BadData("the model's arrays hold no floating-point numbers, so there is nothing to train")
        layout = Layout((name, tuple(array.shape)) for name, array in floating.items())
        dtypes = {name: np.dtype(array.dtype) for name, array in floating.items()}
        return cls(layout, dtypes, {name: array for name, array in record.items() if name not in floating})

    def flat(self, record: ArrayRecord) -> Weights:
        """Return the floating-point arrays as one vector.

        Raises:
            InvalidMessage: The arrays do not fit the layout.
        """
        if different := sorted(set(record) ^ {*self.dtypes, *self.others}):
            raise InvalidMessage(f"the arrays' names differ in {', '.join(map(repr, different[:3]))}")
        return self.layout.join(
            {name: read_array(name, record[name], shape, self.dtypes[name]) for name, shape in self.layout}
        )

    def record(self, weights: Weights) -> ArrayRecord:
        """Return the named arrays of a vector."""
        tensors = self.layout.split(weights)
        floating = {name: Array(tensor.astype(self.dtypes[name])) for name, tensor in tensors.items()}
        return ArrayRecord({**self.others, **floating})


def trained_arrays(module: Any) -> ArrayRecord:
    """Return the arrays of a torch module that travel: what training can change.

    For a model without frozen parameters, Flower's `ArrayRecord(module.state_dict())` works as well. A module reads
    the arrays of the strategy's result with `module.load_state_dict(arrays.to_torch_state_dict(), strict=False)`.

    Args:
        module: The `torch.nn.Module` that training starts from.

    Returns:
        The parameters with `requires_grad=True` and the saved floating-point buffers, for `Strategy.start`.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3).requires_grad_(False), torch.nn.Linear(3, 2))
        >>> sorted(trained_arrays(net))
        ['1.bias', '1.weight']
    """
    from fedbalancer.training.tensors import trained_tensors

    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in trained_tensors(module).items()})


def reorder(vector: Weights, order: Layout, wanted: Layout) -> Weights:
    """Reorder a vector from one layout to another.

    The orders can differ: a module lists parameters before buffers, its `state_dict` in order of definition.

    Args:
        vector: The weights.
        order: Layout of `vector`.
        wanted: Layout of the result.

    Raises:
        BadData: The layouts have different tensors.
    """
    if order == wanted:
        return vector
    if dict(order) != dict(wanted):
        different = sorted({str(item) for item in set(order) ^ set(wanted)})
        hint = "; frozen parameters do not travel, so start the strategy from trained_arrays(model)"
        more = hint if set(wanted) < set(order) else ""
        raise BadData(f"the server's model differs from this client's in {', '.join(different[:3])}{more}")
    return wanted.join(order.split(vector))
