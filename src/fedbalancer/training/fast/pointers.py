"""Addresses of tensors for kernels; nothing else takes the address of a tensor.

A kernel in C does not check sizes. An address is therefore returned only for a tensor of exactly the expected shape and
type in main memory. Anything else is a `ValueError`, before a byte is read or written.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor


def pointer(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """Return the address of a contiguous tensor.

    Args:
        tensor: The tensor.
        shape: The expected shape.
        dtype: The expected type.

    Raises:
        ValueError: If the tensor is different.
    """
    if not tensor.is_contiguous():
        raise ValueError(f"a kernel needs contiguous values, not strides {tensor.stride()}")
    return strided(tensor, shape, dtype)


def strided(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """Return the address of a tensor for a kernel that gets the strides as well.

    Args:
        tensor: The tensor.
        shape: The expected shape.
        dtype: The expected type.

    Raises:
        ValueError: If the tensor is different.
    """
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_cpu:
        raise ValueError(
            f"a kernel needs {shape} of {dtype} on the cpu, not {tuple(tensor.shape)} of {tensor.dtype} on "
            f"{tensor.device}"
        )
    return tensor.data_ptr()


_memory = threading.local()


def scratch(floats: int) -> int:
    """Return the address of memory for one call; it is reused, because new memory is slow.

    Args:
        floats: Number of floats.
    """
    if getattr(_memory, "kept", torch.empty(0)).numel() < floats:
        _memory.kept = torch.empty(floats)
    kept: Tensor = _memory.kept
    return kept.data_ptr()
