"""Runs the steps of a traced function with another library's tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fedbalancer.core.errors import BadData
from fedbalancer.export.layers import Spatial, Unsupported
from fedbalancer.export.trace import Ref, Step, TracedFunction


class Replay(ABC):
    """Runs traced steps one by one. `tf` provides the operations that layers use, under TensorFlow's names."""

    supported = ""
    """Description of the available operations, for error messages."""

    def __init__(self, tf: Any) -> None:
        self.tf, self.spatial = tf, Spatial(tf)
        self._batch: Any = None

    @abstractmethod
    def operation(self, kind: str) -> Callable[..., Any] | None:
        """Return the counterpart of a torch operation, called as f(replay, *args, **options), or None."""

    @abstractmethod
    def constant(self, value: Any) -> Any:
        """Convert an array to a tensor."""

    def mark_layer(self, step: Step) -> AbstractContextManager[Any]:
        """Return a context in which created operations may be marked with the step's layer."""
        return nullcontext()

    def run(self, traced: TracedFunction, inputs: Sequence[Any], batch: Any) -> list[Any]:
        """Run all steps.

        Args:
            traced: The traced function.
            inputs: Its inputs.
            batch: Number of samples, as a number of `tf`.

        Returns:
            The outputs.
        """
        self._batch, remaining = batch, iter(inputs)
        results: dict[str, Any] = {}
        for step in traced.steps:
            results[step.name] = next(remaining) if step.kind == "input" else self._run_step(step, results)
        return [None if output is None else results[output.name] for output in traced.outputs]

    def _run_step(self, step: Step, results: Mapping[str, Any]) -> Any:
        if step.kind == "constant":
            return self.constant(step.args[0])
        operation = self.operation(step.kind)
        if operation is None:
            raise BadData(f"{step.place}: the operation {step.kind} has no counterpart {self.supported}")
        args = [self._resolve(arg, results) for arg in step.args]
        try:
            with self.mark_layer(step):
                return operation(self, *args, **{key: self._resolve(v, results) for key, v in step.options.items()})
        except Unsupported as reason:
            raise BadData(f"{step.place}: {step.kind} {reason}") from reason

    def _resolve(self, arg: Any, results: Mapping[str, Any]) -> Any:
        if isinstance(arg, Ref):
            return results[arg.name]
        return tuple(self._resolve(each, results) for each in arg) if isinstance(arg, tuple) else arg


def sgd_step(
    tf: Any, now: Sequence[Any], start: Sequence[Any], gradients: Sequence[Any], rate: Any, mu: Any, clip_norm: Any
) -> dict[int, Any]:
    """Return the weights after an SGD step with torch's gradient clipping, by tensor number.

    Tensors without a gradient are not returned.
    """
    pairs = enumerate(zip(gradients, start, strict=True))
    moves = {n: gradient + mu * (now[n] - begun) for n, (gradient, begun) in pairs if gradient is not None}
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(move)) for move in moves.values()]))
    step = rate * tf.minimum(1.0, clip_norm / (norm + 1e-6))
    return {n: now[n] - step * move for n, move in moves.items()}
