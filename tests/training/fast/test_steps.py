"""Training on the rewritten module is training on the plain one, within float error; and it repeats itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch trainer needs the extra [torch]")

from fedbalancer.core.errors import BadData  # noqa: E402
from fedbalancer.core.types import ClientWork, TrainOptions, TrainResult  # noqa: E402
from fedbalancer.data import Task  # noqa: E402
from fedbalancer.data.tasks import celeba, femnist, har, reddit, shakespeare, watch  # noqa: E402
from fedbalancer.training.fast import layers  # noqa: E402
from fedbalancer.training.tensors import masked_loss  # noqa: E402
from fedbalancer.training.trainer import TorchTrainer  # noqa: E402

SIZE, NEAR = 13, 1e-3
"""Samples; and how far an update may be, relative to its norm. After one step it is a thousandth of that, but steps on
large losses make differences grow, and where two values of a window are equal the gradient may go to either."""


def task(model: Callable[[], Any], shape: tuple[int, ...], classes: int, kind: str = "f", **options: Any) -> Task:
    rng = np.random.default_rng(0)
    made: dict[str, Callable[[], Any]] = {
        "f": lambda: rng.random((SIZE, *shape), dtype=np.float32),
        "u": lambda: rng.integers(256, size=(SIZE, *shape), dtype=np.uint8),
        "i": lambda: rng.integers(classes, size=(SIZE, *shape)),
    }
    labels = (SIZE, *shape) if "loss" in options else (SIZE,)
    data = [(made[kind](), rng.integers(classes, size=labels)) for _ in range(3)]
    return Task(clients={"ann": data[0], "bob": data[1]}, test=data[2], model=model, batch_size=5, **options)


TASKS: dict[str, tuple[Callable[[], Task], float, float | None]] = {
    "femnist": (lambda: task(partial(femnist.make_model, dense=64), (1, 28, 28), 62), 0.03, None),
    "har": (lambda: task(har.make_model, (9, 128), 6), 0.005, None),
    "celeba": (lambda: task(celeba.make_model, (3, 84, 84), 2, "u"), 0.01, None),
    "shakespeare": (lambda: task(partial(shakespeare.make_model, 48), (80,), 80, "i"), 0.8, None),
    "reddit": (
        lambda: task(partial(reddit.make_model, 300, 32), (10,), 300, "i", loss=masked_loss, metric=reddit.count_hits),
        5.0,
        5.0,
    ),
    "watch": (lambda: task(watch.make_model, (6, 128), 7), 0.03, None),
}


def work(**options: Any) -> ClientWork:
    usual = {
        "client": "ann", "indices": np.arange(SIZE), "batches": 5, "batch_size": 5, "learning_rate": 0.01, "mu": 0.0,
        "clip_norm": None, "seed": 3,
    }  # fmt: skip
    return ClientWork(**usual | options)


BOUND = {"celeba": 5e-3}
"""Where NEAR is too near: a change of CelebA's starting weights by one part in ten million moves the plain update by
2.6e-3 of its norm."""


def far(one: TrainResult, other: TrainResult) -> float:
    return float(np.linalg.norm(one.update - other.update) / np.linalg.norm(other.update))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def fuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small dense layers too take their own steps, as the large ones of the paper's scale do."""
    monkeypatch.setattr(layers, "FUSED_FROM", 1)


@pytest.mark.parametrize("name", TASKS)
def test_the_models_of_all_tasks_train_as_the_plain_ones(name: str) -> None:
    make, rate, clip = TASKS[name]
    fast, plain = (TorchTrainer(make(), backend) for backend in ("fast", "plain"))
    weights = plain.initial_weights(0)
    momentum = TrainOptions("sgd(momentum=0.5,weight_decay=0.01)")
    for options in (
        {"mu": 0.0, "clip_norm": clip}, {"mu": 0.5, "clip_norm": clip}, {"mu": 0.1, "clip_norm": 0.01},
        {"mu": 0.0, "clip_norm": clip, "training": momentum},
    ):  # fmt: skip
        job = work(learning_rate=rate, **options)
        expected, found = plain.train(weights, job), fast.train(weights, job)
        assert far(found, expected) < BOUND.get(name, NEAR)
        assert list(found.seen) == list(expected.seen)
        np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fast.losses(weights, "bob"), plain.losses(weights, "bob"), rtol=1e-4, atol=1e-5)
    assert fast.evaluate(weights).loss == pytest.approx(plain.evaluate(weights).loss, rel=1e-5)


@pytest.mark.parametrize("name", ["femnist", "celeba", "shakespeare", "reddit"])
def test_the_same_bytes_whatever_was_trained_before(name: str) -> None:
    make, rate, _ = TASKS[name]
    trainer, other = TorchTrainer(make()), TorchTrainer(make())
    weights = trainer.initial_weights(1)
    job = work(learning_rate=rate, mu=0.1)
    first = trainer.train(weights, job)
    trainer.train(weights + first.update, work(client="bob", learning_rate=rate, batches=7))
    trainer.train(weights, work(client="bob", learning_rate=rate, clip_norm=0.1))
    trainer.evaluate(weights)
    for again in (trainer.train(weights, job), other.train(weights, job)):
        assert again.update.tobytes() == first.update.tobytes()
        assert again.losses.tobytes() == first.losses.tobytes()


def test_momentum_is_computed_by_the_kernels_and_may_be_kept() -> None:
    """The backend keeps its own layers, torch takes the step, and the next training starts plainly."""
    make, rate, _ = TASKS["har"]
    fast, plain = (TorchTrainer(make(), backend) for backend in ("fast", "plain"))
    weights, options = plain.initial_weights(0), TrainOptions("sgd(momentum=0.9,nesterov=True)", optimizer_state="keep")
    one, reference = (trainer.train(weights, work(learning_rate=rate, training=options)) for trainer in (fast, plain))
    assert one.update.tobytes() != reference.update.tobytes(), "the kernels did not run"
    assert one.state.keys() == reference.state.keys()
    assert one.state
    later = [
        trainer.train(weights, work(learning_rate=rate, training=options, state=first.state))
        for trainer, first in ((fast, one), (plain, reference))
    ]
    assert far(*later) < NEAR
    assert far(later[0], one) > 10 * NEAR, "the state of the first training was not used"
    assert far(*(trainer.train(weights, work(learning_rate=rate)) for trainer in (fast, plain))) < NEAR


def test_a_training_that_an_error_ended_leaves_nothing_behind() -> None:
    class Picky(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            if len(x) == 3:
                raise ValueError("not three, please")
            return self.dense(x)

    trainer, plain = (TorchTrainer(task(Picky, (4,), 3), backend) for backend in ("fast", "plain"))
    weights = trainer.initial_weights(0)
    expected = trainer.evaluate(weights), trainer.train(weights, work(batches=2)), trainer.losses(weights, "bob")
    assert trainer.plan is not None
    assert trainer.plan.fused
    with pytest.raises(BadData, match="not three, please"):
        trainer.train(weights, work(batches=3, learning_rate=10.0))
    assert trainer.evaluate(weights) == expected[0]
    with pytest.raises(BadData, match="not three, please"):
        trainer.train(weights, work(batches=3, learning_rate=10.0))
    clipped = work(batches=2, clip_norm=0.01)
    assert far(trainer.train(weights, clipped), plain.train(weights, clipped)) < NEAR
    assert trainer.train(weights, work(batches=2)).update.tobytes() == expected[1].update.tobytes()
    assert trainer.losses(weights, "bob").tobytes() == expected[2].tobytes()


WITHOUT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import test_steps as t
from fedbalancer.training.fast import kernels, layers
layers.FUSED_FROM = 1
assert kernels.load("conv") is kernels.load("dense") is None
make, rate, _ = t.TASKS["femnist"]
trainer = t.TorchTrainer(make())
found = trainer.train(trainer.initial_weights(0), t.work(learning_rate=rate, mu=0.5))
print(json.dumps([[layer.how for layer in trainer.plan.layers], found.update.tolist()]))
"""


def test_without_kernels_torch_alone_gives_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(Path(__file__).parent)], env=os.environ | {"FEDBALANCER_KERNELS": "off"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    how, update = json.loads(done.stdout)
    assert how == ["torch", "torch", layers.DENSE, layers.DENSE]
    make, rate, _ = TASKS["femnist"]
    plain = TorchTrainer(make(), "plain")
    expected = plain.train(plain.initial_weights(0), work(learning_rate=rate, mu=0.5)).update
    assert np.linalg.norm(np.array(update) - expected) < NEAR * np.linalg.norm(expected)
