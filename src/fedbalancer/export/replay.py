"""The steps of a traced function, done again with another library's tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fedbalancer.core.errors import BadData
from fedbalancer.export.layers import Refused
from fedbalancer.export.trace import Ref, Step, Traced
from fedbalancer.export.windows import Spatial


class Replay(ABC):
    """Does step by step what torch did. `tf` has the verbs of which layers are made, by TensorFlow's names."""

    whose = ""
    """Among which operations a counterpart is looked for, for people."""

    def __init__(self, tf: Any) -> None:
        self.tf, self.spatial = tf, Spatial(tf)
        self._batch: Any = None

    @abstractmethod
    def operation(self, kind: str) -> Callable[..., Any] | None:
        """The counterpart of torch's operation: (replay, what the operation is given) -> its result."""

    @abstractmethod
    def constant(self, value: Any) -> Any:
        """An array as a tensor."""

    def marked(self, step: Step) -> AbstractContextManager[Any]:
        """While a step is done, what it makes may be marked with its layer."""
        return nullcontext()

    def run(self, traced: Traced, inputs: Sequence[Any], batch: Any) -> list[Any]:
        """The outputs; `batch` is the number of samples, as `tf` has such a number."""
        self._batch, given = batch, iter(inputs)
        done: dict[str, Any] = {}
        for step in traced.steps:
            done[step.name] = next(given) if step.kind == "input" else self._done(step, done)
        return [None if output is None else done[output.name] for output in traced.outputs]

    def _done(self, step: Step, done: Mapping[str, Any]) -> Any:
        if step.kind == "constant":
            return self.constant(step.args[0])
        operation = self.operation(step.kind)
        if operation is None:
            raise BadData(f"{step.place}: the operation {step.kind} has no counterpart {self.whose}")
        args = [self._known(arg, done) for arg in step.args]
        try:
            with self.marked(step):
                return operation(self, *args, **{key: self._known(v, done) for key, v in step.options.items()})
        except Refused as reason:
            raise BadData(f"{step.place}: {step.kind} {reason}") from reason

    def _known(self, arg: Any, done: Mapping[str, Any]) -> Any:
        if isinstance(arg, Ref):
            return done[arg.name]
        return tuple(self._known(each, done) for each in arg) if isinstance(arg, tuple) else arg


def sgd_step(
    tf: Any, now: Sequence[Any], start: Sequence[Any], gradients: Sequence[Any], rate: Any, mu: Any, clip_norm: Any
) -> dict[int, Any]:
    """The weights after a step of SGD, clipped as torch clips, by their number; those without a gradient stay."""
    pairs = enumerate(zip(gradients, start, strict=True))
    moves = {n: gradient + mu * (now[n] - begun) for n, (gradient, begun) in pairs if gradient is not None}
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(move)) for move in moves.values()]))
    step = rate * tf.minimum(1.0, clip_norm / (norm + 1e-6))
    return {n: now[n] - step * move for n, move in moves.items()}
