"""The verbs of which layers are made, by TensorFlow's names, as torch has them: one way to write a layer for both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


class TorchVerbs:
    """Only operations for which ExecuTorch has a kernel that is right for every size of batch."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.int32 = torch.int32
        self.sqrt, self.square, self.transpose, self.reshape = torch.sqrt, _square, torch.permute, torch.reshape
        self.math = SimpleNamespace(rsqrt=torch.rsqrt)

    def constant(self, value: Any) -> torch.Tensor:
        return self._torch.from_numpy(np.array(value, order="C"))

    def ones(self, shape: Sequence[int]) -> torch.Tensor:
        return self._torch.ones(tuple(shape))

    def equal(self, a: torch.Tensor, b: NDArray[Any]) -> torch.Tensor:
        return a == self.constant(b.astype(np.int64))

    def where(self, chosen: torch.Tensor, a: torch.Tensor, b: float) -> torch.Tensor:
        return self._torch.where(chosen, a, self._torch.zeros(()) + b)

    def minimum(self, a: float, b: torch.Tensor) -> torch.Tensor:
        return self._torch.clamp(b, max=a)

    def add_n(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return reduce(lambda a, b: a + b, parts)

    def matmul(
        self, a: torch.Tensor, b: torch.Tensor, transpose_a: bool = False, transpose_b: bool = False
    ) -> torch.Tensor:
        return (a.t() if transpose_a else a) @ (b.t() if transpose_b else b)

    def pad(self, x: torch.Tensor, pads: Sequence[Sequence[int]], constant_values: float = 0.0) -> torch.Tensor:
        last_first = [each for pair in reversed(list(pads)) for each in pair]
        return self._torch.constant_pad_nd(x, last_first, constant_values) if any(last_first) else x

    def gather(self, x: torch.Tensor, places: Any, axis: int = 0) -> torch.Tensor:
        flat = self._torch.index_select(x, axis, self.constant(np.ravel(places)))
        shape = [*x.shape[:axis], *np.shape(places), *x.shape[axis + 1 :]]
        return flat if np.ndim(places) == 1 else flat.reshape(shape)

    def one_hot(self, rows: torch.Tensor, count: int, dtype: Any = None) -> torch.Tensor:
        return (rows[..., None] == self._torch.arange(count)).to(dtype)

    def reduce_sum(self, x: torch.Tensor, axis: Any = None) -> torch.Tensor:
        return x.sum() if axis is None else x.sum(dim=axis)

    def reduce_mean(self, x: torch.Tensor, axis: Sequence[int], keepdims: bool = False) -> torch.Tensor:
        """One axis after the other: a single sum of tens of thousands of numbers is off where torch's is not."""
        for dim in sorted(axis, reverse=True):
            x = x.mean(dim=dim, keepdim=keepdims)
        return x

    def reduce_max(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        return x.amax(dim=axis)

    def argmax(self, x: torch.Tensor, axis: int, output_type: Any = None) -> torch.Tensor:
        return x.argmax(dim=axis)


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x
