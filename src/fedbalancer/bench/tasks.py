"""The tasks at their published size with random data: a benchmark needs no data set, speed does not look at values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.errors import UnknownName
from fedbalancer.randomness import stream
from fedbalancer.task import Samples
from fedbalancer.tasks import Task, celeba, femnist, har, reddit, shakespeare, watch
from fedbalancer.tasks.losses import masked_loss


@dataclass(frozen=True)
class Shape:
    """What decides the speed of a task. `samples` is about what a client has in the data set; floats are normal, bytes
    and tokens uniform below `features_below`; `label_shape` is that of one sample's labels. `end_early` is the share of
    sequences that do so, anywhere; labels after the end do not count."""

    model: Callable[[], Any]
    samples: int
    shape: tuple[int, ...]
    classes: int
    dtype: str = "float32"
    features_below: int = 0
    label_shape: tuple[int, ...] = ()
    end_early: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, count: int, rng: np.random.Generator) -> Samples:
        """`count` random samples."""
        labels = rng.integers(self.classes, size=(count, *self.label_shape))
        if self.end_early:
            labels = self._cut(labels, rng)
        size = (count, *self.shape)
        if self.features_below:
            return rng.integers(self.features_below, size=size).astype(self.dtype), labels
        return rng.normal(size=size).astype(self.dtype), labels

    def _cut(self, labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        steps = labels.shape[1]
        ends = np.where(rng.random(len(labels)) < self.end_early, rng.integers(1, steps, len(labels)), steps)
        return np.where(np.arange(steps) < ends[:, None], labels, self.classes)


def _settings(published: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
    """Batch size and what else changes the work of a step."""
    return {"batch_size": published["batch_size"], **more}


_REDDIT_LOSS = {"loss": masked_loss, "metric": reddit.masked_hits, "clip_norm": 5.0}
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "femnist": Shape(femnist.make_model, 180, (1, 28, 28), 62, settings=_settings(femnist.PAPER)),
        "har": Shape(har.make_model, 350, (9, 128), 6, settings=_settings(har.PAPER)),
        "celeba": Shape(celeba.make_model, 20, (3, 84, 84), 2, "uint8", 256, settings=_settings(celeba.PAPER)),
        "shakespeare": Shape(
            shakespeare.make_model, 400, (80,), 80, "int64", 80, settings=_settings(shakespeare.SETTINGS["paper"])
        ),
        "reddit": Shape(
            reddit.make_model, 40, (10,), 10_000, "int16", 10_000, (10,), end_early=0.49,
            settings=_settings(reddit.SETTINGS["paper"], **_REDDIT_LOSS),
        ),
        "watch": Shape(watch.make_model, 180, (watch.CHANNELS, watch.WINDOW), watch.EXERCISES),
    }
)  # fmt: skip


def known(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each of which must be one of `SHAPES`."""
    names = tuple(names)
    for name in names:
        if name not in SHAPES:
            raise UnknownName("task of the benchmark", name, SHAPES)
    return names


def bench_task(name: str, clients: int) -> Task:
    """The task with so many clients of its usual size, one local epoch, and a learning rate that cannot diverge.

    >>> task = bench_task("har", clients=2)
    >>> task.sizes, task.batch_size
    ({'c0000': 350, 'c0001': 350}, 10)
    """
    shape = SHAPES[name]
    data = {f"c{row:04d}": shape.draw(shape.samples, stream(0, f"bench {name}", row)) for row in range(clients)}
    return Task(
        clients=data,
        test=next(iter(data.values())),
        model=shape.model,
        name=name,
        epochs=1,
        learning_rate=1e-4,
        classes=None if shape.label_shape else shape.classes,
        **shape.settings,
    )
