"""A ready client app for models in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from fedbalancer.core.task import Samples
from fedbalancer.flower.compat import ClientApp, Context
from fedbalancer.flower.model_app import Hold, model_app
from fedbalancer.flower.mods import Mod
from fedbalancer.training.sgd import MakeOptimizer
from fedbalancer.training.torch_model import TorchModel

EXAMPLE = 10
"""Samples on which the layers of the model are tried."""


def client_app(
    model: Callable[[], Any],
    data: Callable[[Context], Samples],
    *,
    test: Callable[[Context], Samples] | None = None,
    method: Any = None,
    loss: str | Callable[[Any, Any], Any] = "cross_entropy",
    metric: str | Callable[[Any, Any], tuple[float, float]] = "accuracy",
    optimizer: MakeOptimizer | None = None,
    backend: str = "fast",
    device: str = "cpu",
    threads: int | None = None,
    mods: Sequence[Mod] = (),
    hold: Hold | None = None,
) -> ClientApp:
    """A `ClientApp` that trains `model()` on `data(context)`, a pair (features, labels) with one row per sample.

    Epochs, batch size, learning rate and method are the server's, sent with every order (`method` only for an object of
    your own, given on both sides). The client stops itself at the deadline. `optimizer` is a class of torch.optim, or a
    partial of one, in place of plain SGD; the learning rate is the server's. `backend` is fast or plain, as in `run`.
    `test(context)` is what evaluate messages look at, by default the training data. `mods` are Flower's (`LocalDpMod`),
    around training; the model is then sent under its names, for them to see. `hold` makes this machine behave
    like a slower device: every batch is held to its seconds, and its download and upload are slept.
    """

    @cache
    def ready() -> TorchModel:
        """The model of the app; made when it is first needed, because an app is imported more often than it trains."""
        built = TorchModel(
            model, loss=loss, metric=metric, backend=backend, device=device, optimizer=optimizer,
            example=lambda: example[0],
        )  # fmt: skip
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        _ = built.plan  # so that no round pays for trying the layers
        return built

    example: list[Any] = []

    def tried(samples: Samples) -> TorchModel:
        example[:] = [samples[0][:EXAMPLE]]
        return ready()

    return model_app(tried, data, test=test, method=method, mods=mods, hold=hold)
