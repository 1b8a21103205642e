"""Training steps of methods with a policy in slot `train` or `part`, by torch's own operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.client.training import LOCAL, start_model
from fedbalancer.core.contracts import LocalRun, LocalTraining
from fedbalancer.core.errors import BadSetting, TrainingDiverged
from fedbalancer.core.types import Arrays, ClientWork, Shapes, TrainResult, Weights
from fedbalancer.core.types.layout import find_array_fault
from fedbalancer.training.sgd import Batch, PlainSteps
from fedbalancer.training.tensors import mean_loss

if TYPE_CHECKING:
    import torch


class PolicySteps(PlainSteps):
    """Plain steps along the direction that the method's policies choose.

    The policy's functions work on vectors of NumPy. On a graphics card every step therefore copies the gradient to the
    main memory and back.
    """

    run: LocalRun

    def begin(self, weights: Weights, work: ClientWork) -> None:
        """Begin a training from these weights."""
        start = start_model(weights, work.part, work.state)
        super().begin(start, work)
        layout, train = self._flat.layout, self._train
        declared = train.client_state(layout)
        kept = {name: work.state[name] for name in declared if name in work.state}
        state = {name: kept.get(name, np.zeros(shape, dtype=np.float32)) for name, shape in declared.items()}
        _check(f"client {work.client!r}: the saved state has", state, declared)
        _check(f"client {work.client!r}: the order has", work.arrays, train.down_arrays(layout))
        self.run = LocalRun(
            work, layout, start, {name: array.copy() for name, array in state.items()}, work.arrays, not kept,
            module=self._flat.module,
        )  # fmt: skip
        self._fixed = None if work.part is None or work.part.outside in ("local", "dropped") else ~work.part.mask

    @property
    def _train(self) -> LocalTraining:
        from fedbalancer.client.training import PlainTraining

        return PlainTraining() if self._work.train is None else self._work.train

    def _objective(self, losses: torch.Tensor, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        loss = super()._objective(losses, outputs, labels)
        objective: torch.Tensor = self._train.objective(loss, outputs, labels, self.run)
        if getattr(objective, "ndim", None) != 0:
            raise BadSetting(f"{type(self._train).__name__}.objective must return a scalar of torch")
        return objective

    def _adjust_gradients(self, group: list[Batch]) -> None:
        """Let the policy change the gradients of a step, and clear those of parameters outside the part."""
        policy, run = self._train, self.run
        if type(policy).gradient is not LocalTraining.gradient:
            run.gradient_at = self._gradient_at(group)
            direction: Any = policy.gradient(self._read_gradients(), self._flat.read(), run)
            run.gradient_at = None
            direction = np.asarray(direction, dtype=np.float32)
            if direction.shape != run.start.shape:
                raise BadSetting(
                    f"{type(policy).__name__}.gradient returned shape {direction.shape}; it must be {run.start.shape}"
                )
            self._write_gradients(direction)
        if self._fixed is not None:
            self._write_gradients(np.where(self._fixed, np.float32(0), self._read_gradients()))
        run.steps += 1

    def _after_step(self) -> None:
        """Restore the parameters outside the part, which weight decay or running statistics may have changed."""
        if self._fixed is not None:
            self._flat.load(np.where(self._fixed, self.run.start, self._flat.read()))

    def _gradient_at(self, group: list[Batch]) -> Callable[[Weights], Weights]:
        """Return the function that computes the gradient of the step's batches at other weights."""

        def compute(weights: Weights) -> Weights:
            import torch

            flat, now = self._flat, self._flat.read()
            grads = [parameter.grad for parameter in flat.parameters]
            flat.load(np.asarray(weights, dtype=np.float32))
            for parameter in flat.parameters:
                parameter.grad = None
            counted = max(sum(samples for *_, samples in group), 1)
            with torch.enable_grad():
                for features, labels, samples in group:
                    losses = self._loss(self._outputs(features), labels)
                    torch.autograd.backward(mean_loss(losses, labels) * (samples / counted))
            gradient = self._read_gradients()
            flat.load(now)
            for parameter, grad in zip(flat.parameters, grads, strict=True):
                parameter.grad = grad
            return gradient

        return compute

    def _read_gradients(self) -> Weights:
        """Return the gradients as one vector, 0 where there is none."""
        vector = np.zeros(self._flat.layout.parameters, dtype=np.float32)
        for parameter in self._flat.parameters:
            if parameter.grad is not None:
                vector[self._flat.spans[id(parameter)]] = parameter.grad.detach().cpu().numpy().ravel()
        return vector

    def _write_gradients(self, vector: Weights) -> None:
        import torch

        for parameter in self._flat.parameters:
            values = torch.from_numpy(vector[self._flat.spans[id(parameter)]].reshape(tuple(parameter.shape)))
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(values)


def finish(trained: TrainResult, run: LocalRun) -> TrainResult:
    """Return a result with the arrays that the client keeps and sends.

    Args:
        trained: The result of the steps.
        run: The training, as of the last step that counts.

    Raises:
        BadSetting: If the policy leaves arrays that differ from the declared ones.
        TrainingDiverged: If one of them is not finite.
    """
    work, layout, update = run.work, run.layout, trained.update
    state: dict[str, Weights] = {}
    if work.train is not None:
        policy: LocalTraining = work.train
        update = np.asarray(policy.finish(update, run), dtype=np.float32)
        name = type(policy).__name__
        if update.shape != trained.update.shape:
            raise BadSetting(f"{name}.finish returned shape {update.shape}; it must be {trained.update.shape}")
        run.state = _as_arrays(run.state)
        run.sent = _as_arrays(run.sent)
        _check(f"client {work.client!r}: {name} keeps", run.state, policy.client_state(layout))
        _check(f"client {work.client!r}: {name} sends", run.sent, policy.up_arrays(layout))
        state = run.state
    if work.part is not None:
        if work.part.outside == "local":
            state = {**state, LOCAL: (run.start + update)[~work.part.mask]}
        update = np.where(work.part.mask, update, np.float32(0))
    return replace(trained, update=update, state=state, arrays=dict(run.sent))


def _as_arrays(values: Arrays) -> dict[str, Weights]:
    return {name: np.array(value, dtype=np.float32) for name, value in values.items()}


def _check(what: str, arrays: Arrays, shapes: Shapes) -> None:
    problem = find_array_fault(arrays, shapes)
    if problem is None:
        return
    raise (TrainingDiverged if "finite" in problem else BadSetting)(f"{what} {problem}")
