"""Layers of the paper's models, with TensorFlow's initial values, which differ from PyTorch's.

An LSTM layer of TensorFlow has one bias, and one of PyTorch has two, which are only ever added. Here the second bias is
a constant instead of a parameter: 0, and at the forget gate the value that TensorFlow calls the forget bias and adds
inside the cell. The number of parameters is therefore the published one, and the trained bias starts at 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch


Module = TypeVar("Module", bound="torch.nn.Module")

EMBEDDING_RANGE = 0.05
"""Keras draws embeddings uniformly within plus and minus this value."""


def init_glorot(module: Module, embedding_range: float = EMBEDDING_RANGE) -> Module:
    """Initialize dense and convolutional layers with Glorot-uniform weights and zero biases, as Keras does.

    Weights are uniform within ±sqrt(6 / (fan_in + fan_out)) (X. Glorot and Y. Bengio, AISTATS 2010). Other layers are
    not changed. The values come from torch's generator, so the same seed gives the same model.

    Args:
        module: The module, which is changed in place.
        embedding_range: Embeddings are uniform within plus and minus this value.

    Returns:
        The same module.

    >>> from torch import nn
    >>> float(init_glorot(nn.Linear(4, 2)).bias.detach().abs().sum())
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


def make_text_model(
    *,
    symbols: int,
    embedding: int,
    hidden: int,
    layers: int = 2,
    forget_bias: float = 1.0,
    every_step: bool = False,
    uniform: float | None = None,
) -> torch.nn.Module:
    """Make a language model: an embedding, LSTM layers and a dense layer.

    It maps symbols (batch, steps) to scores of the next symbol.

    Args:
        symbols: Number of symbols.
        embedding: Size of the embedding.
        hidden: Size of the LSTM layers.
        layers: Number of LSTM layers.
        forget_bias: Constant added at the forget gate.
        every_step: Whether scores are (batch, steps, symbols) instead of (batch, symbols).
        uniform: Initial weights are uniform within plus and minus this value. None: Glorot-uniform.

    >>> sum(p.numel() for p in make_text_model(symbols=80, embedding=8, hidden=256).parameters())
    817872
    """
    from torch import nn

    class TextNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(symbols, embedding)
            self.lstm = make_one_bias_lstm(embedding, hidden, layers, forget_bias)
            self.dense = nn.Linear(hidden, symbols)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states, _ = self.lstm(self.embedding(x))
            scores: torch.Tensor = self.dense(states if every_step else states[:, -1])
            return scores

    net = TextNet()
    if uniform is None:
        return init_glorot(net, embedding_range=math.sqrt(6 / (symbols + embedding)))
    for tensor in (net.embedding.weight, net.dense.weight, net.dense.bias, *_kernels(net.lstm)):
        nn.init.uniform_(tensor, -uniform, uniform)
    return net


def make_one_bias_lstm(inputs: int, hidden: int, layers: int, forget_bias: float) -> torch.nn.LSTM:
    """Make LSTM layers with one trained bias each and TensorFlow's Glorot rule.

    In TensorFlow, the weights of inputs and state are one kernel with (inputs + hidden) rows and 4 x hidden columns.

    Args:
        inputs: Number of inputs.
        hidden: Size of the layers.
        layers: Number of layers.
        forget_bias: Constant added at the forget gate.
    """
    import torch
    from torch import nn

    lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)
    for layer in range(layers):
        nn.init.zeros_(getattr(lstm, f"bias_ih_l{layer}"))
        constant = torch.zeros(4 * hidden)
        constant[hidden : 2 * hidden] = forget_bias  # torch's order of the gates: input, forget, cell, output
        name = f"bias_hh_l{layer}"
        delattr(lstm, name)
        lstm.register_buffer(name, constant, persistent=False)
    for kernel in _kernels(lstm):
        rows = hidden + (inputs if kernel is lstm.weight_ih_l0 or kernel is lstm.weight_hh_l0 else hidden)
        limit = math.sqrt(6 / (rows + 4 * hidden))
        nn.init.uniform_(kernel, -limit, limit)
    return lstm.float()  # makes torch collect the weights for its kernel again, with the constants


def _kernels(lstm: torch.nn.LSTM) -> list[torch.Tensor]:
    return [parameter for name, parameter in lstm.named_parameters() if name.startswith("weight")]
