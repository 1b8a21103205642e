"""Training with torch: `TorchModel` for anyone who has samples, and `TorchTrainer` for the clients of a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.client.work import epochs
from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.core.metrics import Metrics, read_metrics
from fedbalancer.core.randomness import integer_seed
from fedbalancer.core.samples import take
from fedbalancer.core.task import BaseTask, MadeOnDemand, Samples, check_client
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, IndexArray, Layout, TrainResult, Weights
from fedbalancer.training.metrics import Piece, combine_pieces, make_measures
from fedbalancer.training.model_check import check_model, check_no_batch_norm
from fedbalancer.training.sgd import PlainSteps, RecordedTraining, Steps, check_finite
from fedbalancer.training.tensors import (
    FlatModule,
    SampleCache,
    build_module,
    count_labelled,
    make_batch,
    prepare_samples,
    resolve_loss,
    split_batch,
    to_device,
)

if TYPE_CHECKING:
    import torch

    from fedbalancer.training.fast.plan import FastPlan
    from fedbalancer.training.optimizers import MakeOptimizer

BACKENDS = ("fast", "plain")
FORWARD_BATCH = 256
"""Samples per forward pass without gradients, which is one piece of an evaluation."""


class TorchModel:
    """A `torch.nn.Module` with its loss and metrics, as pure functions of weights and samples.

    Samples must be as `prepare_samples` returns them. One module is reused for all calls; each call first loads its
    weights. The backend `plain` is the reference, by torch's own operations; `fast` agrees with it within float error.
    On the CPU of one machine, each backend always produces the same bytes. Trainings with other options than SGD
    (`TrainOptions.has_kernels`) use the steps of the plain backend.

    Args:
        make: Returns a new `torch.nn.Module`.
        loss: "cross_entropy", or a function of (outputs, labels) that returns one value per sample.
        metric: One or several metrics, as in `BaseTask`.
        backend: `fast` or `plain`.
        device: `cpu`, `cuda`, `cuda:1` or `mps`. Other devices than the CPU use the plain backend.
        optimizer: Makes the optimizer of trainings whose optimizer is `custom`, as `optimizer(parameters, lr=...)`.
        forward: Function of (model, features) that returns the outputs, which uses the plain backend. Default: the
            model is called with the features.
        example: Returns the features of a few samples, on which the fast backend tries the model's layers.

    Raises:
        MissingData: If torch is not installed.
        UnknownName: If there is no such backend.
        BadSetting: If there is no such device.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        loss: str | Callable[[Any, Any], Any] = "cross_entropy",
        metric: Metrics = "accuracy",
        backend: str = "fast",
        device: str = "cpu",
        optimizer: MakeOptimizer | None = None,
        forward: Callable[[Any, Any], Any] | None = None,
        example: Callable[[], Any],
    ) -> None:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingData("training needs torch; install it with: pip install 'fedbalancer[torch]'") from error
        if backend not in BACKENDS:
            raise UnknownName("backend", backend, BACKENDS)
        self._device = check_device(device)
        self._backend = backend if device == "cpu" and forward is None else "plain"
        self._optimizer = optimizer
        self.forward = forward
        self._example = example
        self._loss_name, self.loss = loss, resolve_loss(loss)
        self.measures = make_measures(read_metrics(metric))
        self.flat = FlatModule(make, device)

    @cached_property
    def plan(self) -> FastPlan | None:
        """The plan of how each layer runs, made at first use with the example; None for the plain backend."""
        if self._backend == "plain":
            return None
        from fedbalancer.training.fast.plan import make_plan

        example = self._example()
        if not isinstance(example, np.ndarray):  # kernels take one array
            return None
        return make_plan(self.flat.module, make_batch(example, slice(None)), self._loss_name)

    @cached_property
    def _steps(self) -> Steps:
        if self.plan is None:
            return self._plain_steps
        from fedbalancer.training.fast.steps import FastSteps

        return FastSteps(self.flat, self.loss, self.plan, self._optimizer)

    @cached_property
    def _plain_steps(self) -> PlainSteps:
        return PlainSteps(self.flat, self.loss, self._optimizer, self.forward)

    @cached_property
    def _policy_steps(self) -> Steps:
        """Steps for methods with a policy in slot `train` or `part`, which the fast backend does not run."""
        from fedbalancer.training.policy_steps import PolicySteps

        return PolicySteps(self.flat, self.loss, self._optimizer, self.forward)

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters, then of the floating-point buffers."""
        return self.flat.layout

    def initial_weights(self, seed: int) -> Weights:
        """Return the weights of a new module under this seed."""
        return self.flat.initial(integer_seed(seed, "initial weights"))

    @contextmanager
    def training(self, weights: Weights, samples: Samples, work: ClientWork) -> Iterator[TorchTraining]:
        """Open a training that runs step by step.

        A step of plain SGD is w <- w - lr * clip(grad f(w) + mu * (w - w_global)), where f is the mean loss of the
        batch. The recorded losses come from the forward passes of the training: for each sample the first, just before
        its step.

        Args:
            weights: The global model.
            samples: The client's samples.
            work: The client's work.

        Raises:
            BadSetting: If the optimizer cannot be made.
            BadData: If the model has batch norms, and the work forbids them.
        """
        if work.training.batch_norm == "forbid":
            check_no_batch_norm(self.flat.module)
        steps = self._steps if work.training.has_kernels else self._plain_steps
        if work.train is not None or work.part is not None:
            steps = self._policy_steps
        with self._seed_generator(integer_seed(work.seed, "torch", 0, work.client)):
            steps.begin(weights, work)
            yield TorchTraining(steps, self._batch, samples, work)

    def train(self, weights: Weights, samples: Samples, work: ClientWork) -> TrainResult:
        """Run all `work.batches` steps of a training.

        Args:
            weights: The global model.
            samples: The client's samples.
            work: The client's work.

        Raises:
            TrainingDiverged: If a loss or the update is not finite.
        """
        with self.training(weights, samples, work) as training:
            for rows in epochs(work):
                training.epoch(rows)
            return training.result()

    def losses(self, weights: Weights, samples: Samples, client: str) -> FloatArray:
        """Return the loss of every sample, in evaluation mode.

        Args:
            weights: The model.
            samples: The client's samples.
            client: The client's id, for error messages.
        """
        self._steps.load(weights)
        batches = [self._forward(samples, start)[2] for start in range(0, len(samples[1]), FORWARD_BATCH)]
        losses = _to_array(batches)
        check_finite(client, np.arange(len(losses)), losses)
        return losses

    def evaluate(self, weights: Weights, samples: Samples) -> Evaluation:
        """Return the metrics and the mean loss; the accuracy is NaN if the labels are not classes."""
        return self.combine(self.evaluate_pieces(weights, samples, range(count_pieces(samples))))

    def combine(self, pieces: Sequence[Piece]) -> Evaluation:
        """Combine all pieces of an evaluation, in their order."""
        return combine_pieces(self.measures, pieces)

    def evaluate_pieces(self, weights: Weights, samples: Samples, pieces: Sequence[int]) -> list[Piece]:
        """Evaluate some pieces; a piece does not depend on the others or on the process."""
        self._steps.load(weights)
        return [self._piece(samples, number * FORWARD_BATCH) for number in pieces]

    def time_batches(self, samples: Samples, batch_size: int, count: int) -> list[float]:
        """Measure the seconds of `count` training batches, after one to warm up."""
        weights, rows = self.flat.read(), np.arange(len(samples[1]))
        work = ClientWork("timing", rows, count + 1, batch_size, 1e-6, 0.0, None, 0)
        seconds = []
        with self.training(weights, samples, work) as training:
            for number in range(count + 1):
                begin_s = time.monotonic()
                training.step(np.arange(number * batch_size, (number + 1) * batch_size) % len(rows))
                seconds.append(max(time.monotonic() - begin_s, 1e-6))
        self._steps.load(weights)
        return seconds[1:]

    def _piece(self, samples: Samples, start: int) -> Piece:
        outputs, labels, losses = self._forward(samples, start)
        parts = tuple(measure.part(outputs, labels) for measure in self.measures)
        return float(losses.double().sum()), count_labelled(labels), parts

    def _forward(self, samples: Samples, start: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Return outputs, labels and per-sample losses of the piece that begins at `start`, on the CPU."""
        import torch

        features, labels = (self._batch(part, slice(start, start + FORWARD_BATCH)) for part in samples)
        with torch.no_grad():
            outputs = self._steps.apply(features)
            losses = self.loss(outputs, labels)
        if self._device == "cpu":
            return outputs, labels, losses
        return to_device(outputs, "cpu"), labels.cpu(), losses.cpu()

    def _batch(self, part: Any, rows: IndexArray | slice) -> Any:
        batch = make_batch(part, rows)
        return batch if self._device == "cpu" else to_device(batch, self._device)

    @contextmanager
    def _seed_generator(self, seed: int) -> Iterator[None]:
        """A context in which torch's own generator, which dropout uses, starts from a seed."""
        import torch

        generator = torch.default_generator
        before = generator.get_state()
        (generator.manual_seed if self._device == "cpu" else torch.manual_seed)(seed)
        try:
            yield
        finally:
            generator.set_state(before)


class TorchTraining(RecordedTraining):
    """A training in progress.

    Args:
        steps: Trains batches.
        batch: Makes the tensors of some rows.
        samples: The client's samples.
        work: The client's work.
    """

    def __init__(self, steps: Steps, batch: Callable[..., Any], samples: Samples, work: ClientWork) -> None:
        super().__init__(len(samples[1]), work, steps.update, steps.finish)
        self._steps, self._batch, self._samples = steps, batch, samples

    def _current_run(self) -> Any:
        """Return a copy of the policy's run, None for plain training, and the optimizer's state if it is kept."""
        steps: Any = self._steps
        run = None if self._work.train is None and self._work.part is None else steps.run.copy()
        return run, steps.optimizer_arrays() if self._work.training.keeps_state else {}

    def _result(self, update: Weights, pieces: int, run: Any) -> TrainResult:
        trained = super()._result(update, pieces, run)
        policy_run, arrays = run
        if policy_run is not None:
            from fedbalancer.training.policy_steps import finish

            trained = finish(trained, policy_run)
        return replace(trained, state={**trained.state, **arrays}) if arrays else trained

    def step(self, rows: IndexArray) -> None:
        """Train one batch of these samples."""
        losses = self._steps.step(*(self._batch(part, rows) for part in self._samples))
        self.record(rows, lambda: _to_array([losses]))

    def epoch(self, rows: IndexArray) -> None:
        """Train these samples batch by batch, which is faster than separate calls of `step`."""
        split = (split_batch(part, rows, self._work.batch_size, self._batch) for part in self._samples)
        losses = [self._steps.step(*batch) for batch in zip(*split, strict=True)]
        self.record(rows, lambda: _to_array(losses))


def count_pieces(samples: Samples) -> int:
    """Return the number of pieces of an evaluation of these samples."""
    return -(-len(samples[1]) // FORWARD_BATCH)


def _to_array(losses: list[torch.Tensor]) -> FloatArray:
    import torch

    values: FloatArray = torch.cat(losses).cpu().numpy().astype(np.float64)
    return values


def check_device(name: str) -> str:
    """Check that torch has this device here.

    Args:
        name: `cpu`, `cuda`, `cuda:1` or `mps`.

    Returns:
        The name.

    Raises:
        BadSetting: If there is no such device.

    >>> check_device("cpu")
    'cpu'
    """
    present = ["cpu"] if name == "cpu" else _list_devices()  # searching takes a while
    if name not in present:
        raise BadSetting(f"device is {name!r}, but torch has only {', '.join(present)} here")
    return name


def _list_devices() -> list[str]:
    import torch

    cards = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    metal = ["mps"] if torch.backends.mps.is_available() else []
    return ["cpu", *(["cuda"] if cards else []), *cards, *metal]


class TorchTrainer:
    """The `Trainer` of any task whose model is a `torch.nn.Module`; its methods are pure functions.

    Args:
        task: The task.
        backend: `fast` or `plain`.
        device: `cpu`, `cuda`, `cuda:1` or `mps`.

    Raises:
        BadData: If model, loss and data do not fit together.
    """

    def __init__(self, task: BaseTask, backend: str = "fast", device: str = "cpu") -> None:
        self._task = task
        self.model = TorchModel(
            task.model, loss=task.loss, metric=task.metrics, backend=backend, device=device,
            optimizer=task.optimizer if callable(task.optimizer) else None, forward=task.forward,
            example=lambda: take(self._samples[next(iter(task.clients))][0], slice(task.batch_size)),
        )  # fmt: skip
        on_cpu = self.model.flat.module if device == "cpu" else build_module(task.model)
        self._classes = check_model(task, on_cpu, self.model.loss, self.model.measures)
        self._samples = SampleCache(self._load)
        self._tests = SampleCache(self._load_test)
        self._test = prepare_samples(task.test)

    @property
    def plan(self) -> FastPlan | None:
        """The plan of how each layer runs; None for the plain backend."""
        return self.model.plan

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters, then of the floating-point buffers."""
        return self.model.layout

    def prepare(self) -> None:
        """Decide how the layers run now instead of at the first training."""
        _ = self.plan

    def initial_weights(self, seed: int) -> Weights:
        """Return the weights of a new module under this seed."""
        return self.model.initial_weights(seed)

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        """Train `work.batches` batches from `weights`."""
        return self.model.train(weights, self._samples[work.client], work)

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Return the loss of every sample of the client, in evaluation mode."""
        return self.model.losses(weights, self._samples[client], client)

    def evaluate(self, weights: Weights) -> Evaluation:
        """Return the metrics and the mean loss on the test data."""
        return self.model.evaluate(weights, self._test)

    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        """Return the metrics and the mean loss on the client's test data or, if it has none, its training data."""
        samples = self._tests[client] if client in self._task.client_tests else self._samples[client]
        return self.model.evaluate(weights, samples)

    def evaluation_pieces(self) -> int:
        """Return the number of pieces of an evaluation on the test data."""
        return count_pieces(self._test)

    def evaluate_pieces(self, weights: Weights, pieces: Sequence[int]) -> list[Piece]:
        """Evaluate some pieces; a piece does not depend on the others or on the process."""
        return self.model.evaluate_pieces(weights, self._test, pieces)

    def combine(self, pieces: Sequence[Piece]) -> Evaluation:
        """Combine all pieces of an evaluation, in their order."""
        return self.model.combine(pieces)

    def _load_test(self, client: str) -> Samples:
        task = self._task
        given = _find(task.client_tests, client, "client_tests")
        return check_client(given, client, self._test, self._classes, task.collate_fn)

    def _load(self, client: str) -> Samples:
        task = self._task
        given = _find(task.clients, client, "clients")
        samples = check_client(given, client, self._test, self._classes, task.collate_fn)
        if isinstance(task.clients, MadeOnDemand) and len(samples[1]) != task.clients.sizes[client]:
            size = task.clients.sizes[client]
            raise BadData(f"client {client!r} has {len(samples[1])} samples, but `sizes` of the clients has {size}")
        return samples


def _find(clients: Mapping[str, Any], client: str, name: str) -> Any:
    try:
        return clients[client]
    except KeyError as error:
        raise BadData(f"`{name}` has no samples of client {client!r}, although `sizes` or its ids name it") from error
