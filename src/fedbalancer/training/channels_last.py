"""How images lie in memory. Imported late: it needs torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChannelsLast(nn.Module):
    """The same images with the channels of a pixel side by side in memory, which torch's convolutions keep."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)
