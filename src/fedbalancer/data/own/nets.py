"""The built-in models, layer by layer. Each takes samples as they are read, one by one in the order of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbalancer.data.own.shapes import Reading

if TYPE_CHECKING:
    import torch
    from torch import nn


def mlp(reading: Reading, classes: int, scale: float, hidden: tuple[int, ...]) -> nn.Module:
    """Dense layers with ReLU between them; without hidden ones, logistic regression."""
    from torch import nn

    layers: list[nn.Module] = [_prepared(reading, scale), nn.Flatten()]
    width = reading.channels
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes))


def cnn1d(reading: Reading, classes: int, scale: float, filters: tuple[int, ...], width: int) -> nn.Module:
    """Convolutions over time, each with ReLU and a pooling by two, then one dense layer."""
    from torch import nn

    return _convolutions(nn.Conv1d, nn.MaxPool1d, reading, classes, scale, filters, width)


def cnn2d(reading: Reading, classes: int, scale: float, filters: tuple[int, ...], width: int) -> nn.Module:
    """Convolutions over pixels, each with ReLU and a pooling by two, then one dense layer."""
    from torch import nn

    return _convolutions(nn.Conv2d, nn.MaxPool2d, reading, classes, scale, filters, width)


def lstm(
    reading: Reading, classes: int, scale: float, hidden: int, layers: int, embedding: int = 0, vocabulary: int = 0
) -> nn.Module:
    """An LSTM over time, or over the embedding of tokens; a dense layer reads its last output."""
    from torch import nn

    class LstmNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Embedding(vocabulary, embedding) if reading.tokens else _prepared(reading, scale)
            self.lstm = nn.LSTM(embedding if reading.tokens else reading.channels, hidden, layers, batch_first=True)
            self.head = nn.Linear(hidden, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = self.first(x)
            outputs, _ = self.lstm(steps if reading.tokens else steps.transpose(1, 2))
            scores: torch.Tensor = self.head(outputs[:, -1])
            return scores

    return LstmNet()


def _convolutions(
    convolution: type[nn.Conv1d] | type[nn.Conv2d],
    pooling: type[nn.MaxPool1d] | type[nn.MaxPool2d],
    reading: Reading,
    classes: int,
    scale: float,
    filters: tuple[int, ...],
    width: int,
) -> nn.Module:
    from torch import nn

    layers: list[nn.Module] = [_prepared(reading, scale)]
    channels, extent = reading.channels, reading.extent
    for count in filters:
        layers += [convolution(channels, count, width, padding="same"), nn.ReLU()]
        channels = count
        if min(extent) >= 2:  # what is one step long already cannot be halved
            layers.append(pooling(2))
            extent = tuple(side // 2 for side in extent)
    for side in extent:
        channels *= side
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))


def _prepared(reading: Reading, scale: float) -> nn.Module:
    """Samples as (channels, extent), scaled."""
    from torch import nn

    class Prepare(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if reading.extent and len(reading.extent) == len(reading.shape):
                x = x.unsqueeze(1)
            elif reading.last:
                x = x.movedim(-1, 1)
            return x if scale == 1.0 else x * scale

    return Prepare()
