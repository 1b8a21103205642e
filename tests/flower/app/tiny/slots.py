"""SCAFFOLD with a frozen first weight: state on the clients, arrays both ways, and a part of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from scaffold import Scaffold, ScaffoldServer

import fedbalancer as fb
from fedbalancer.core.contracts import PartPolicy
from fedbalancer.core.types import Layout, Order, Outside
from fedbalancer.flower import client_app
from tiny.model import FEATURES, data


@dataclass(frozen=True)
class WithoutFirst(PartPolicy):
    """The first weight is frozen."""

    outside: ClassVar[Outside] = "frozen"

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> NDArray[np.bool_]:
        return np.arange(layout.parameters) > 0


@dataclass(frozen=True)
class PartScaffoldServer(ScaffoldServer):
    """SCAFFOLD's server, which averages parts."""

    handles_parts: ClassVar[bool] = True


METHOD = fb.method("fedavg+wfa", train=Scaffold(), aggregate=PartScaffoldServer(), part=WithoutFirst())


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


def floats(part: int) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = data(part)
    return x.astype(np.float32), y.astype(np.float32)


def square(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs - labels) ** 2


def make_app() -> ClientApp:
    def samples(context: Context) -> tuple[NDArray[Any], NDArray[Any]]:
        return floats(int(context.node_config["partition-id"]))

    return client_app(Line, samples, method=METHOD, loss=square, metric="mae")
