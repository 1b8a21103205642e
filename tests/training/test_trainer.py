"""The torch trainer equals textbook SGD, and mistakes are clear errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedbalancer.client.work import batches
from fedbalancer.core.errors import BadData, BadSetting, TrainingDiverged, UnknownName
from fedbalancer.core.task import BaseTask
from fedbalancer.core.types import ClientWork

torch = pytest.importorskip("torch", reason="the torch trainer needs the extra [torch]")

from fedbalancer.training.tensors import FlatModule  # noqa: E402
from fedbalancer.training.trainer import BACKENDS, TorchTrainer  # noqa: E402

F = torch.nn.functional
SIZE, FEATURES, CLASSES = 23, 5, 3


def mlp() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 4), torch.nn.Tanh(), torch.nn.Linear(4, CLASSES))


def data(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(SIZE, FEATURES)), rng.integers(CLASSES, size=SIZE)


def task(model: Callable[[], Any] = mlp, **options: Any) -> BaseTask:
    return BaseTask(**{"clients": {"ann": data(0), "bob": data(1)}, "test": data(2), "model": model} | options)


def work(**options: Any) -> ClientWork:
    plain = {
        "client": "ann", "indices": np.arange(SIZE), "batches": 8, "batch_size": 10, "learning_rate": 0.3, "mu": 0.0,
        "clip_norm": None, "seed": 11,
    }  # fmt: skip
    return ClientWork(**plain | options)


def load(module: Any, weights: Any) -> None:
    torch.nn.utils.vector_to_parameters(torch.tensor(weights), module.parameters())


def textbook(weights: Any, job: ClientWork, penalty: float = 0.0) -> tuple[Any, dict[int, float]]:
    """The same batches through torch.optim.SGD, the proximal term as part of the loss; new weights, first losses."""
    module = mlp()
    load(module, weights.copy())
    optimizer = torch.optim.SGD(module.parameters(), job.learning_rate)
    features, labels = torch.tensor(data()[0], dtype=torch.float32), torch.tensor(data()[1])
    start, first = torch.tensor(weights), {}  # type: tuple[Any, dict[int, float]]
    for _, rows in batches(job):
        losses = F.cross_entropy(module(features[rows]), labels[rows], reduction="none")
        first = dict(zip(rows.tolist(), losses.tolist(), strict=True)) | first
        flat = torch.nn.utils.parameters_to_vector(module.parameters())
        optimizer.zero_grad()
        (losses.mean() + penalty / 2 * (flat - start).square().sum()).backward()
        if job.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), job.clip_norm)
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy(), first


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {}, {"mu": 0.7}, {"clip_norm": 0.05}, {"mu": 2.0, "clip_norm": 0.1}, {"batch_size": 23, "batches": 3},
        {"epoch_batches": 1},
    ],
    ids=["sgd", "proximal", "clipped", "proximal and clipped", "full batches", "short epochs"],
)  # fmt: skip
def test_training_equals_textbook_sgd_on_the_same_batches(options: dict[str, Any], backend: str) -> None:
    trainer, job = TorchTrainer(task(), backend), work(**options)
    weights = trainer.initial_weights(0)
    expected, first = textbook(weights, job, job.mu)
    trained = trainer.train(weights, job)
    np.testing.assert_allclose(trained.update, expected - weights, atol=1e-6)
    assert trained.update.dtype == np.float32
    assert list(trained.seen) == sorted(first)
    np.testing.assert_allclose(trained.losses, [first[row] for row in sorted(first)], rtol=1e-5)
    assert trained.losses.dtype == np.float64


def test_losses_are_those_from_before_the_step() -> None:
    trainer = TorchTrainer(task())
    weights = trainer.initial_weights(0)
    trained = trainer.train(weights, work(batch_size=SIZE, batches=1, learning_rate=5.0))
    np.testing.assert_allclose(trained.losses, trainer.losses(weights, "ann"), rtol=1e-5)
    assert abs(trainer.losses(weights + trained.update, "ann") - trained.losses).max() > 0.1


def test_only_the_samples_really_seen_are_reported() -> None:
    trainer = TorchTrainer(task())
    job = work(indices=np.array([3, 8, 1, 20, 15, 7]), batches=2, batch_size=2)
    trained = trainer.train(trainer.initial_weights(0), job)
    assert list(trained.seen) == sorted(np.concatenate([rows for _, rows in batches(job)]))
    assert len(trained.losses) == 4


def test_losses_are_those_of_the_first_time_a_sample_is_seen_in_any_epoch() -> None:
    trainer = TorchTrainer(task())
    weights = trainer.initial_weights(0)
    job = work(epoch_batches=1, batches=4, batch_size=5)
    trained = trainer.train(weights, job)
    rows = [rows for _, rows in batches(job)]
    assert list(trained.seen) == sorted({*np.concatenate(rows)})
    assert len(trained.seen) > 5
    for step in range(4):  # what is new in a step has the loss that the model has after the steps before
        before = trainer.train(weights, work(epoch_batches=1, batches=step, batch_size=5)).update
        expected = trainer.losses(weights + before, "ann")
        for row in set(rows[step]) - {*np.concatenate([np.empty(0), *rows[:step]])}:
            place = list(trained.seen).index(row)
            assert trained.losses[place] == pytest.approx(expected[row], rel=1e-4)
            assert trained.steps is not None
            assert trained.steps[place] == step


def test_steps_are_counted_alike_batch_by_batch_and_epoch_by_epoch() -> None:
    trainer, job = TorchTrainer(task()), work(batches=7, batch_size=4)
    weights = trainer.initial_weights(0)
    with trainer.model.training(weights, trainer._samples["ann"], job) as training:
        for _, rows in batches(job):
            training.step(rows)
        single = training.result()
    whole = trainer.train(weights, job)
    assert single.steps is not None
    assert whole.steps is not None
    assert single.steps.tolist() == whole.steps.tolist()
    assert whole.steps.max() > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_batches_change_nothing(backend: str) -> None:
    trainer = TorchTrainer(task(), backend)
    trained = trainer.train(trainer.initial_weights(0), work(batches=0))
    assert not trained.update.any()
    assert trained.seen.shape == trained.losses.shape == (0,)


class Noisy(torch.nn.Module):  # type: ignore[misc]
    """Dropout, and a batch norm whose running mean depends on an integer counter."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(FEATURES, 6)
        self.norm = torch.nn.BatchNorm1d(6, momentum=None)
        self.b = torch.nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.b(F.dropout(self.norm(self.a(x)), 0.5, self.training))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", [mlp, Noisy])
def test_same_work_same_bytes_whatever_was_done_before(model: Callable[[], Any], backend: str) -> None:
    trainer, other = TorchTrainer(task(model), backend), TorchTrainer(task(model), backend)
    weights = trainer.initial_weights(4)
    kept = weights.copy()
    first = trainer.train(weights, work())
    trainer.train(weights + first.update, work(client="bob", seed=9))
    trainer.evaluate(weights)
    torch.manual_seed(123)
    for again in (trainer.train(weights, work()), other.train(weights, work())):
        assert again.update.tobytes() == first.update.tobytes()
        assert again.losses.tobytes() == first.losses.tobytes()
    assert weights.tobytes() == kept.tobytes()


def test_initial_weights_depend_on_the_seed_only_and_leave_the_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    trainer = TorchTrainer(task())
    first = trainer.initial_weights(1)
    trainer.train(first, work())
    assert torch.rand(1) == expected
    assert first.tobytes() == trainer.initial_weights(1).tobytes()
    assert first.tobytes() != trainer.initial_weights(2).tobytes()
    assert first.dtype == np.float32
    assert sum(int(np.prod(shape)) for _, shape in trainer.layout) == first.size


def test_running_statistics_are_part_of_the_weights_and_counters_are_not() -> None:
    trainer = TorchTrainer(task(Noisy))
    names = [name for name, _ in trainer.layout]
    assert {"norm.running_mean", "norm.running_var"} < set(names)
    assert "norm.num_batches_tracked" not in names
    update = trainer.train(trainer.initial_weights(0), work()).update
    sizes = [int(np.prod(shape)) for _, shape in trainer.layout]
    parts = dict(zip(names, np.split(update, np.cumsum(sizes)[:-1]), strict=True))
    assert parts["norm.running_mean"].any()


def test_evaluation_counts_right_answers_and_averages_losses() -> None:
    features, labels = (np.tile(part, (30, 1) if part.ndim == 2 else 30) for part in data(2))
    trainer = TorchTrainer(task(test=(features, labels)))
    weights, module = trainer.initial_weights(0), mlp()
    load(module, weights)
    outputs = module(torch.tensor(features, dtype=torch.float32)).detach().double()
    evaluation = trainer.evaluate(weights)
    assert evaluation.samples == 30 * SIZE
    assert evaluation.accuracy == pytest.approx(float((outputs.argmax(1).numpy() == labels).mean()))
    assert evaluation.loss == pytest.approx(float(F.cross_entropy(outputs, torch.tensor(labels))), rel=1e-5)


def test_an_evaluation_in_pieces_is_the_same_however_they_are_shared_out() -> None:
    features, labels = (np.tile(part, (30, 1) if part.ndim == 2 else 30) for part in data(2))
    trainer, other = (TorchTrainer(task(test=(features, labels))) for _ in range(2))
    weights = trainer.initial_weights(0)
    count = trainer.evaluation_pieces()
    assert count == 3
    one, two = trainer.evaluate_pieces(weights, [2, 0]), other.evaluate_pieces(weights, [1])
    assert trainer.combine([one[1], two[0], one[0]]) == trainer.evaluate(weights)
    assert sum(piece[1] for piece in one + two) == len(labels)


def test_an_evaluation_of_half_of_the_pieces_does_not_depend_on_the_rest() -> None:
    trainer = TorchTrainer(task())
    weights = trainer.initial_weights(0)
    assert trainer.evaluate_pieces(weights, []) == []
    (piece,) = trainer.evaluate_pieces(weights, [0])
    assert trainer.combine([piece, piece]).loss == trainer.evaluate(weights).loss


def test_backends_and_devices_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UnknownName, match=r"unknown backend 'quick'.*fast, plain"):
        TorchTrainer(task(), backend="quick")
    with pytest.raises(BadSetting, match="device is 'abacus', but torch has only cpu"):
        TorchTrainer(task(), device="abacus")


def test_the_plain_backend_has_no_plan_and_the_fast_one_tells_how_layers_run() -> None:
    assert TorchTrainer(task(), "plain").plan is None
    plan = TorchTrainer(task()).plan
    assert plan is not None
    assert [layer.name for layer in plan.layers] == ["0", "2"]


def test_a_loss_of_your_own_may_fit_numbers() -> None:
    features, _ = data()
    pair = (features, features.sum(axis=1))
    regression = task(
        lambda: torch.nn.Linear(FEATURES, 1), clients={"ann": pair}, test=pair,
        loss=lambda outputs, labels: (outputs[:, 0] - labels) ** 2,
    )  # fmt: skip
    trainer = TorchTrainer(regression)
    weights = trainer.initial_weights(0)
    for _ in range(20):
        weights = weights + trainer.train(weights, work(learning_rate=0.05)).update
    evaluation = trainer.evaluate(weights)
    assert evaluation.loss < 0.05
    assert np.isnan(evaluation.accuracy)


@pytest.mark.parametrize("loss", [F.cross_entropy, lambda o, y: 1.0], ids=["mean", "float"])
def test_a_loss_must_give_one_value_a_sample(loss: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(BadData, match="one value per sample"):
        TorchTrainer(task(loss=loss))


def test_an_unknown_loss_is_named() -> None:
    with pytest.raises(UnknownName, match="cross_entropy"):
        TorchTrainer(task(loss="crossentropy"))


def test_divergence_names_the_client_and_what_to_change() -> None:
    features, labels = data()
    trainer = TorchTrainer(task(lambda: torch.nn.Linear(FEATURES, CLASSES), clients={"ann": (features * 1e20, labels)}))
    with pytest.raises(TrainingDiverged, match=r"client 'ann': the loss .* lower the learning rate \(now 1e\+10\)"):
        trainer.train(trainer.initial_weights(0), work(learning_rate=1e10))
    with pytest.raises(TrainingDiverged, match=r"client 'ann': the update is not finite; lower"):
        trainer.train(trainer.initial_weights(0), work(learning_rate=1e30, batches=1))


def test_losses_that_are_not_numbers_name_client_and_sample() -> None:
    trainer = TorchTrainer(task())
    weights = trainer.initial_weights(0)
    with pytest.raises(TrainingDiverged, match="client 'bob': the loss of sample 0 is nan"):
        trainer.losses(np.full_like(weights, np.nan), "bob")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": lambda: torch.nn.Linear(FEATURES + 1, 3)}, r"client 'ann': the model fails on 2 samples .*\(5,\)"),
        ({"model": lambda: torch.nn.Linear(FEATURES, 2)}, "has label 2 in sample .*2 outputs.*0 to 1"),
        ({"model": lambda: None}, "must make a torch.nn.Module, not NoneType"),
        (
            {"model": lambda: torch.nn.Sequential(torch.nn.Linear(FEATURES, CLASSES), torch.nn.Flatten(0))},
            r"returns \(\d+,\)",
        ),
        ({"test": (data()[0], np.full(SIZE, 7))}, "the test data has label 7 in sample 0"),
        ({"test": (data()[0], np.full(SIZE, 0.5))}, "the test data has labels that train as float32"),
        ({"clients": {"ann": (data()[0], np.full(SIZE, 0.5))}, "test": (data()[0], np.full(SIZE, 0.5))},
         r"client 'ann': .* one whole number per sample as labels, not float32; .* with labels.astype\(int\)"),
        ({"clients": {"ann": (data()[0], data()[1][:, None])}, "test": (data()[0], data()[1][:, None])},
         r"not int64 of shape \(1,\) per sample; use labels\[:, 0\]"),
        ({"clients": {"ann": (data()[0], np.eye(CLASSES, dtype=int)[data()[1]])},
          "test": (data()[0], np.eye(CLASSES, dtype=int)[data()[1]])}, "convert one-hot labels with labels.argmax"),
        ({"clients": {"ann": (np.ones((SIZE, FEATURES), int), data()[1])},
          "test": (np.ones((SIZE, FEATURES), int), data()[1])}, "whole numbers reach the model as int64: "),
        ({"model": lambda: torch.nn.Embedding(9, 3)}, r"an embedding needs whole numbers: .* x.astype\(int\)"),
        ({"forward": lambda model, x: model(x).mean()}, r"for 2 samples the model returns \(\); the cross-"),
        ({"forward": lambda model, x: 1 / 0}, "client 'ann': the model fails .* ZeroDivisionError: division by zero"),
        ({"loss": 3}, r"loss = 3 must be 'cross_entropy' or a function of \(outputs, labels\)"),
        ({"loss": torch.nn.CrossEntropyLoss()}, "one value per sample: .* not .*reduction='none' keeps all"),
        ({"loss": lambda outputs, labels: outputs @ labels}, r"the loss fails on outputs of shape \(2, 3\) and"),
        ({"client_tests": {"ann": (data()[0], np.full(SIZE, 7))}}, "the test data of client 'ann' has label 7 in"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_the_data_is_told_before_training(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        TorchTrainer(task(**options))


def test_a_batch_that_the_model_cannot_take_is_told() -> None:
    def without_statistics() -> Any:
        return torch.nn.Sequential(mlp(), torch.nn.BatchNorm1d(CLASSES, track_running_stats=False))

    trainer = TorchTrainer(task(without_statistics))
    with pytest.raises(BadData, match="client 'ann': the model fails on 1 samples"):
        trainer.train(trainer.initial_weights(0), work(indices=np.arange(1)))


class Normed(torch.nn.Module):  # type: ignore[misc]
    """A batch norm that sees many values per channel in every batch, and one that sees one in a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.BatchNorm1d(1), torch.nn.BatchNorm1d(FEATURES)
        self.last = torch.nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.last(self.narrow(self.wide(x[:, None])[:, 0]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [1, 2, 11, 21])
def test_a_last_batch_of_one_uses_the_running_statistics_of_a_batch_norm(count: int, backend: str) -> None:
    trainer, job = TorchTrainer(task(Normed), backend), work(indices=np.arange(count), batches=2 * (count // 10 + 1))
    weights = trainer.initial_weights(3)
    flat = FlatModule(Normed)
    flat.load(weights)
    optimizer = torch.optim.SGD(flat.module.parameters(), job.learning_rate)
    features, labels = torch.tensor(data()[0], dtype=torch.float32), torch.tensor(data()[1])
    for _, rows in batches(job):
        flat.module.train()
        flat.module.narrow.train(len(rows) > 1)
        optimizer.zero_grad()
        F.cross_entropy(flat.module(features[rows]), labels[rows]).backward()
        optimizer.step()
    trained = trainer.train(weights, job)
    np.testing.assert_allclose(trained.update, flat.read() - weights, atol=1e-5)
    assert trainer.train(weights, job).update.tobytes() == trained.update.tobytes()


@pytest.mark.parametrize("result", [{"accuracy": 0.5}, {1: 2, 3: 4}, 0.5, (1, 2, 3), ("a", "b"), None, "ab"], ids=str)
@pytest.mark.parametrize("loss", ["cross_entropy", lambda outputs, labels: outputs.sum(dim=1)])
def test_a_metric_that_returns_anything_but_two_numbers_is_told_before_training(result: Any, loss: Any) -> None:
    message = f"^the metric 'accuracy' must return two numbers: .*it returned {type(result).__name__} "
    with pytest.raises(BadData, match=message):
        TorchTrainer(task(loss=loss, metric=lambda outputs, labels: result))


@pytest.mark.parametrize("result", [(3, 4), [3.0, 4.0], np.array([3, 4]), torch.tensor([3, 4])], ids=str)
def test_a_metric_may_return_any_pair_of_numbers(result: Any) -> None:
    trainer = TorchTrainer(task(metric=lambda outputs, labels: result))
    assert trainer.evaluate(trainer.initial_weights(0)).accuracy == 0.75


@pytest.mark.parametrize("kind", [np.uint8, np.float64, np.float16, bool])
def test_images_and_any_floats_are_trained_as_float32(kind: type) -> None:
    features = (np.abs(data()[0]) * 3).astype(kind)
    features.flags.writeable = False
    trainer = TorchTrainer(task(clients={"ann": (features, data()[1].astype(np.uint8))}))
    assert trainer.train(trainer.initial_weights(0), work()).update.any()


def test_tokens_stay_whole_numbers() -> None:
    tokens = np.random.default_rng(0).integers(20, size=(SIZE, 4)).astype(np.int32)

    def bag() -> Any:
        return torch.nn.Sequential(torch.nn.EmbeddingBag(20, 6), torch.nn.Linear(6, CLASSES))

    trainer = TorchTrainer(task(bag, clients={"ann": (tokens, data()[1])}, test=(tokens, data()[1])))
    assert trainer.train(trainer.initial_weights(0), work()).update.any()


@pytest.mark.parametrize("backend", ["fast", "plain"])
def test_frozen_parameters_are_used_but_neither_trained_nor_in_the_update(backend: str) -> None:
    def frozen() -> Any:
        module = mlp()
        module[0].requires_grad_(False)
        return module

    trainer, whole = TorchTrainer(task(frozen), backend), TorchTrainer(task(), backend)
    weights, count = trainer.initial_weights(0), FEATURES * 4 + 4
    update = trainer.train(weights, work(mu=0.1)).update
    assert len(update) == len(whole.initial_weights(0)) - count
    assert update.any()
    values = [p.detach().numpy().ravel() for p in trainer.model.flat.module[0].parameters()]
    expected = whole.train(np.concatenate([*values, weights]), work(mu=0.1, batches=1)).update[count:]
    assert trainer.train(weights, work(mu=0.1, batches=1)).update == pytest.approx(expected, abs=1e-6)


def test_results_can_be_sent_to_another_process() -> None:
    trainer = TorchTrainer(task())
    trained = trainer.train(trainer.initial_weights(0), work())
    assert pickle.loads(pickle.dumps(trained)).update.tobytes() == trained.update.tobytes()
