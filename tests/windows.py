"""Windows of a max-pooling whose largest value float error cannot change."""

from __future__ import annotations

from typing import Any

from fedbalancer.training.fast.conv import Shape

NEAR = 1e-5
"""Of the largest value. Where two values of a window are nearer than this, either may be taken for the largest."""


def clear(sums: Any, shape: Shape) -> Any:
    """Windows whose largest value is so by more than float error and is not that near to 0."""
    import torch

    far = float(sums.abs().max()) * NEAR
    rows, columns = shape.pool
    height, width = (-side % pool if shape.ceil else 0 for side, pool in zip(sums.shape[2:], shape.pool, strict=True))
    filled = torch.nn.functional.pad(sums, (0, width, 0, height), value=-1e30)
    windows = filled.unfold(2, rows, rows).unfold(3, columns, columns).flatten(4)
    best = windows.topk(min(2, windows.shape[-1]), dim=-1).values
    apart = best[..., 0] - best[..., -1] > far if windows.shape[-1] > 1 else True
    return (best[..., 0].abs() > far) & apart
