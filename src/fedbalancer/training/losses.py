"""Losses of tasks; the fast backend knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def masked_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over the steps of the cross-entropy, 0 at steps that do not count: their label is the number of words."""
    from torch.nn.functional import cross_entropy

    words = outputs.shape[2]
    losses = cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=words, reduction="none")
    return losses.view(labels.shape).mean(dim=1)
