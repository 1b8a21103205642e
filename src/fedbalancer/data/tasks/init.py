"""How the paper's models begin: TensorFlow's defaults, which differ from torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Module = TypeVar("Module", bound="torch.nn.Module")

EMBEDDING_RANGE = 0.05
"""Keras draws embeddings uniformly from minus to plus this."""


def glorot(module: Module, embedding_range: float = EMBEDDING_RANGE) -> Module:
    """The same module with Glorot-uniform weights and zero biases in its dense and convolutional layers.

    Weights are uniform within ±sqrt(6 / (fan_in + fan_out)) (X. Glorot and Y. Bengio, AISTATS 2010), where the fans of
    a convolution count its window; embeddings are uniform within ±`embedding_range`. All other layers keep what they
    were made with: a batch norm starts at scale 1 and shift 0 in both libraries, and recurrent layers need a rule of
    their own. The numbers come from torch's generator, so that a seed gives the same model.

    >>> from torch import nn
    >>> float(glorot(nn.Linear(4, 2)).bias.detach().abs().sum())
    0.0
    """
    from torch import nn

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Embedding):
            nn.init.uniform_(layer.weight, -embedding_range, embedding_range)
    return module
