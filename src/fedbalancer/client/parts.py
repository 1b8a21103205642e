"""Policies of the slot `part` that train or send fewer parameters: HeteroFL, FedRolex, TimelyFL and PyramidFL."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import NOTHING, PartPolicy, Private
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.fields import Bounds
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Layout, Order, Outside

Mask = NDArray[np.bool_]
Keep = Callable[[int], Mask]
"""Maps a number of channels to those that a smaller model has."""
Shapes = Mapping[str, tuple[int, ...]]

_RECURRENT = re.compile(r"(weight|bias)_(ih|hh)_l(\d+)")


def channel_mask(layout: Layout, keep: Keep) -> Mask:
    """Return the parameters of a model with fewer channels in every hidden layer.

    The input of the model and the output of its last layer keep their size. Dense layers, convolutions, embeddings,
    LSTM and GRU layers and norms over channels are understood; so is a flattened image before a dense layer. The layers
    are those of the layout, in its order.

    Args:
        layout: Names and shapes of the model's tensors.
        keep: Returns which of a layer's channels the smaller model has.

    Raises:
        BadSetting: If the channels of a tensor are not clear.

    Example:
        >>> layout = Layout([("0.weight", (4, 3)), ("0.bias", (4,)), ("2.weight", (2, 4)), ("2.bias", (2,))])
        >>> mask = channel_mask(layout, lambda channels: np.arange(channels) < channels / 2)
        >>> {name: int(part.sum()) for name, part in layout.split(mask).items()}
        {'0.weight': 6, '0.bias': 2, '2.weight': 4, '2.bias': 2}
    """
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in layout:
        prefix, _, tensor = name.rpartition(".")
        layers.setdefault(prefix, {})[tensor] = shape
    masks = _Channels(layers, keep).masks()
    return np.concatenate([masks[name].ravel() for name, _ in layout])


class _Channels:
    """Follows the channels of a model from layer to layer.

    Args:
        layers: Shapes of the tensors of each layer, by its name.
        keep: Returns which of a layer's channels the smaller model has.
    """

    def __init__(self, layers: Mapping[str, Shapes], keep: Keep) -> None:
        self._layers, self._keep = layers, keep
        self._channels: list[int] = []
        """Numbers of channels of the layers before, the last one first."""
        self._masks: dict[str, Mask] = {}

    def masks(self) -> dict[str, Mask]:
        """Return the mask of every tensor."""
        with_matrix = [
            name for name, shapes in self._layers.items() if any(len(shape) > 1 for shape in shapes.values())
        ]
        for prefix, shapes in self._layers.items():
            if any(_RECURRENT.fullmatch(name) for name in shapes):
                self._recurrent(prefix, shapes)
            elif prefix in with_matrix:
                following = with_matrix[with_matrix.index(prefix) + 1 :]
                self._matrix(prefix, shapes, following[0] if following else None)
            else:
                self._vectors(prefix, shapes)
        return self._masks

    def _set(self, prefix: str, tensor: str, mask: Mask) -> None:
        self._masks[f"{prefix}.{tensor}" if prefix else tensor] = mask

    def _inputs(self, prefix: str, size: int) -> Mask:
        """Return which of a layer's inputs exist; each channel may have several, such as the pixels of an image."""
        if not self._channels:
            return np.ones(size, dtype=bool)
        for channels in self._channels:
            if size % channels == 0:
                return np.repeat(self._keep(channels), size // channels)
        raise self._unclear(prefix, f"its {size} inputs are no multiple of the channels before it")

    def _matrix(self, prefix: str, shapes: Shapes, following: str | None) -> None:
        weight = next((shape for name, shape in shapes.items() if name == "weight" and len(shape) > 1), None)
        if weight is None:
            raise self._unclear(prefix, f"it has the tensors {', '.join(shapes)}")
        if following is not None and self._is_embedding(shapes, weight, following):
            columns = self._keep(weight[1])
            self._set(prefix, "weight", np.broadcast_to(columns, weight))
            self._channels.insert(0, weight[1])
            return
        rows = np.ones(weight[0], dtype=bool) if following is None else self._keep(weight[0])
        kept = np.logical_and.outer(rows, self._inputs(prefix, weight[1]))
        for name, shape in shapes.items():
            if name == "weight":
                self._set(prefix, name, np.broadcast_to(kept.reshape(*kept.shape, *[1] * (len(shape) - 2)), shape))
            elif shape == (weight[0],):
                self._set(prefix, name, rows)
            else:
                raise self._unclear(prefix, f"its tensor {name} has the shape {shape}")
        if following is not None:
            self._channels.insert(0, weight[0])

    def _is_embedding(self, shapes: Shapes, weight: tuple[int, ...], following: str) -> bool:
        """Whether a layer without inputs and bias maps symbols to vectors, of which its successor takes the length."""
        if self._channels or len(weight) != 2 or "bias" in shapes:
            return False
        inputs = next(shape[1] for shape in self._layers[following].values() if len(shape) > 1)
        return inputs == weight[1] and inputs != weight[0]

    def _recurrent(self, prefix: str, shapes: Shapes) -> None:
        for number in sorted({int(match[3]) for name in shapes if (match := _RECURRENT.fullmatch(name))}):
            state = shapes.get(f"weight_hh_l{number}", (0, 0))
            if not state[1] or state[0] % state[1] or any("reverse" in name or "_hr_" in name for name in shapes):
                raise self._unclear(prefix, "only recurrent layers with one direction and no projection are understood")
            hidden = self._keep(state[1])
            rows = np.tile(hidden, state[0] // state[1])
            for name, shape in shapes.items():
                match = _RECURRENT.fullmatch(name)
                if match is None or int(match[3]) != number:
                    continue
                if match[1] == "bias":
                    self._set(prefix, name, rows)
                else:
                    columns = hidden if match[2] == "hh" else self._inputs(prefix, shape[1])
                    self._set(prefix, name, np.logical_and.outer(rows, columns))
            self._channels.insert(0, state[1])

    def _vectors(self, prefix: str, shapes: Shapes) -> None:
        """Mask a norm: one value per channel of the layer before."""
        for name, shape in shapes.items():
            if not shape:  # a counter
                self._set(prefix, name, np.ones(shape, dtype=bool))
                continue
            if self._channels and shape != (self._channels[0],):
                raise self._unclear(prefix, f"its tensor {name} has the shape {shape}")
            self._set(prefix, name, self._keep(self._channels[0]) if self._channels else np.ones(shape, dtype=bool))

    @staticmethod
    def _unclear(prefix: str, why: str) -> BadSetting:
        return BadSetting(
            f"the channels of the model's layer {prefix or '(top)'} are not clear: {why}; write a part policy for it "
            "(see docs/tutorials/heterofl.md)"
        )


Levels = Annotated[int, Bounds(ge=1, le=16)]


@dataclass(frozen=True)
class HeteroFL(PartPolicy):
    """HeteroFL: slower clients train a model with fewer channels, always the first ones of every hidden layer.

    There are `levels` widths: 1, 1/2, 1/4 and so on. The clients are divided into as many groups of the same size by
    their speed; the slowest group has the smallest width. A client with width w trains the first ceil(w C) of C
    channels. Each parameter is averaged over the clients that trained it (Diao, Ding and Tarokh, "HeteroFL:
    Computation and Communication Efficient Federated Learning for Heterogeneous Clients", ICLR 2021).

    Differences from the paper: speed decides which width a client has, instead of a random draw. A client's weight in
    the mean is its number of samples. The activations are not rescaled, and classes that a client does not have are not
    masked.

    Args:
        levels: Number of widths.

    Example:
        >>> layout = Layout([("0.weight", (4, 1)), ("2.weight", (1, 4))])
        >>> HeteroFL(levels=3).mask(layout, "ann", 0.0, None).astype(int)
        array([1, 0, 0, 0, 1, 0, 0, 0])
    """

    outside: ClassVar[Outside] = "absent"
    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    levels: Levels = 5

    def width(self, rank: float) -> float:
        """Return the width of a client.

        Args:
            rank: Share of the clients that are slower.

        Example:
            >>> HeteroFL().width(0.0), HeteroFL().width(0.99)
            (0.0625, 1.0)
        """
        return float(0.5 ** (self.levels - 1 - min(int(self.levels * rank), self.levels - 1)))

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> Mask:
        width = self.width(rank)
        return channel_mask(layout, lambda channels: np.arange(channels) < math.ceil(width * channels))


@dataclass(frozen=True)
class FedRolex(HeteroFL):
    """FedRolex: HeteroFL with a window of channels that advances by one channel in every round.

    In round r (from 1), a client with width w trains ceil(w C) channels from channel r - 1 on, modulo C. Over the
    rounds every channel is trained evenly, also if no client has the full width (Alam, Liu, Yan and Zhang, "FedRolex:
    Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022). Differences from the
    paper: those of `HeteroFL`.

    Args:
        levels: Number of widths.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedrolex").part
        FedRolex(levels=5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> Mask:
        width, first = self.width(rank), order.round - 1
        return channel_mask(layout, lambda channels: (np.arange(channels) - first) % channels < width * channels)


@dataclass(frozen=True)
class LastLayers(PartPolicy):
    """TimelyFL's partial model: a client trains the last layers, as many as fit its share, and at least one.

    The layers before are frozen at the received values: they are computed, but have no gradient and are not uploaded.
    The share of a client comes from the deadline policy (`KthFastest`, `Order.shares`). Without one, a client trains
    all layers.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("timelyfl").part
        LastLayers()
    """

    outside: ClassVar[Outside] = "frozen"
    follows_shares: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> Mask:
        share = order.shares.get(client, 1.0)
        sizes: dict[str, int] = {}
        for (name, _), size in zip(layout, layout.sizes, strict=True):
            prefix = name.rpartition(".")[0]
            sizes[prefix] = sizes.get(prefix, 0) + size
        trained, left = set[str](), share * layout.parameters * (1 + 1e-9)
        for prefix in reversed(sizes):
            left -= sizes[prefix]
            if left < 0 and trained:
                break
            trained.add(prefix)
        mask = np.zeros(layout.parameters, dtype=bool)
        for name, span in layout.spans.items():
            mask[span] = name.rpartition(".")[0] in trained
        return mask


@dataclass(frozen=True)
class DroppedUpdate(PartPolicy):
    """PyramidFL's dropout: a client trains the whole model, and sends a random share of its update.

    The share of a client comes from the deadline policy (`RankedByGradient`, `Order.shares`). Server and client draw
    the same parameters. Each parameter is averaged over the clients that sent it.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("pyramidfl").part
        DroppedUpdate()
    """

    outside: ClassVar[Outside] = "dropped"
    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> Mask:
        sent = max(math.ceil(order.shares.get(client, 1.0) * layout.parameters - 1e-9), 1)
        mask = np.zeros(layout.parameters, dtype=bool)
        mask[stream(order.seed, "dropped update", order.round, client).permutation(layout.parameters)[:sent]] = True
        return mask
