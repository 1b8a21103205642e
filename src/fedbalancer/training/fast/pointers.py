"""What a kernel is given: the only place where the address of a tensor is taken.

A kernel in C believes the sizes that it is told. So an address is given out only for a tensor of exactly the expected
shape and type in the processor's memory. Anything else is a `ValueError`, before a byte is read or written.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor


def pointer(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """The address of a tensor of this shape and type whose values lie row by row without gaps."""
    if not tensor.is_contiguous():
        raise ValueError(f"a kernel needs its values without gaps, not with strides {tensor.stride()}")
    return strided(tensor, shape, dtype)


def strided(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """The address of a tensor of this shape and type, for a kernel that is told the strides too."""
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_cpu:
        raise ValueError(
            f"a kernel needs {shape} of {dtype} on the cpu, not {tuple(tensor.shape)} of {tensor.dtype} on "
            f"{tensor.device}"
        )
    return tensor.data_ptr()


_memory = threading.local()


def scratch(floats: int) -> int:
    """The address of memory for the time of one call. It is kept: fresh memory comes from the system page by page."""
    if getattr(_memory, "kept", torch.empty(0)).numel() < floats:
        _memory.kept = torch.empty(floats)
    kept: Tensor = _memory.kept
    return kept.data_ptr()
