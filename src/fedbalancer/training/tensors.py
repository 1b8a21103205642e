"""Conversion between a task's arrays and torch: samples, losses, metrics, and a module's weights as one vector."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, FedBalancerError, UnknownName
from fedbalancer.core.task import Samples, as_array
from fedbalancer.core.types import IndexArray, Layout, Weights

if TYPE_CHECKING:
    import torch

    Tensors = tuple[torch.Tensor, torch.Tensor]
    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    Metric = Callable[[torch.Tensor, torch.Tensor], tuple[float, float]]

CACHE_BYTES = 512 * 1024**2
"""Maximum bytes of samples that a trainer keeps ready."""


def to_tensors(samples: Samples) -> Tensors:
    """Convert all features and labels to tensors."""
    features, labels = prepare_samples(samples)
    return make_batch(features, slice(None)), make_batch(labels, slice(None))


def prepare_samples(samples: Samples) -> Samples:
    """Convert samples to the types that trainers use.

    Floats become float32, wider integers int64. Bytes (images) and booleans among the features stay small until
    `make_batch` converts them. Arrays that have the right type already are not copied.

    Args:
        samples: Features and labels.

    Returns:
        Features and labels as arrays.
    """
    features, labels = map(as_array, samples)
    if features.dtype.kind == "f":
        features = features.astype(np.float32, copy=False)
    elif features.dtype != np.uint8 and features.dtype.kind != "b":
        features = features.astype(np.int64, copy=False)
    return features, labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64, copy=False)


def make_batch(array: NDArray[Any], rows: IndexArray | slice) -> torch.Tensor:
    """Copy some rows of a prepared array to a tensor; bytes and booleans become float32.

    Args:
        array: Features or labels, as `prepare_samples` returns them.
        rows: The rows.
    """
    import torch

    chosen = array[rows]
    if chosen.dtype in (np.uint8, np.bool_):
        chosen = chosen.astype(np.float32, order="C")
    elif isinstance(rows, slice):
        chosen = chosen.copy()
    return torch.from_numpy(np.ascontiguousarray(chosen))


class SampleCache:
    """The prepared samples of the most recently used clients.

    Args:
        load: Returns the samples of a client.
        max_bytes: Maximum bytes; beyond it the least recently used clients are removed.
    """

    def __init__(self, load: Callable[[str], Samples], max_bytes: int = CACHE_BYTES) -> None:
        self._load = load
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Samples] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, client: str) -> Samples:
        if client in self._kept:
            self._kept.move_to_end(client)
            return self._kept[client]
        samples = self._kept[client] = prepare_samples(self._load(client))
        self._bytes += _count_bytes(samples)
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            self._bytes -= _count_bytes(self._kept.popitem(last=False)[1])
        return samples


def _count_bytes(samples: Samples) -> int:
    return sum(part.nbytes for part in samples)


def resolve_loss(loss: str | Callable[[Any, Any], Any]) -> Loss:
    """Return a task's loss as a checked function of outputs and labels that returns one value per sample.

    Args:
        loss: "cross_entropy", or a custom function.

    Raises:
        UnknownName: If there is no loss of this name.
    """
    import torch

    if isinstance(loss, str) and loss != "cross_entropy":
        raise UnknownName("loss", loss, ["cross_entropy"])

    def compute(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if callable(loss):
            losses = loss(outputs, labels)
        else:
            losses = torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
        if not isinstance(losses, torch.Tensor) or losses.shape != (len(labels),):
            got = f"shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise BadData(f"the loss must return one value per sample: a tensor of shape ({len(labels)},), not {got}")
        return losses

    return compute


def masked_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over the steps of each sample; masked steps count as 0.

    The fast backend has a kernel for this loss.

    Args:
        outputs: Scores of shape (samples, steps, words).
        labels: Words of shape (samples, steps); the number of words marks a masked step.
    """
    from torch.nn.functional import cross_entropy

    words = outputs.shape[2]
    losses = cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=words, reduction="none")
    return losses.view(labels.shape).mean(dim=1)


def resolve_metric(metric: str | Callable[[Any, Any], tuple[float, float]]) -> Metric:
    """Return a task's metric as a function of outputs and labels.

    The function returns the number of correct answers and their possible number.

    Args:
        metric: "accuracy", or a custom function.

    Raises:
        UnknownName: If there is no metric of this name.
    """
    if callable(metric):
        return lambda outputs, labels: _check_two_numbers(metric(outputs, labels))
    if metric != "accuracy":
        raise UnknownName("metric", metric, ["accuracy"])
    return lambda outputs, labels: (count_correct(outputs, labels), float(len(labels)))


def _check_two_numbers(result: Any) -> tuple[float, float]:
    """Check that a custom metric returned two numbers."""
    if not isinstance(result, Mapping):
        with suppress(TypeError, ValueError):
            right, counted = result
            return float(right), float(counted)
    raise BadData(
        "the metric must return two numbers: how many samples are right, and of how many; "
        f"it returned {type(result).__name__} {str(result)[:80]!r}"
    )


def count_correct(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Count the correctly classified samples; NaN if the labels are not classes.

    A sample with several labels counts by its share of correct ones.
    """
    if labels.is_floating_point() or outputs.ndim != labels.ndim + 1:
        return float("nan")
    right = (outputs.argmax(dim=1) == labels).double()
    return float(right.reshape(len(labels), -1).mean(dim=1).sum())


FROZEN_SEED = 0
"""Seed of torch's generator while a module is built, so that frozen values drawn at random are the same everywhere."""


def trained_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that training can change, which are those that travel between server and clients.

    These are the parameters with `requires_grad=True`, then the saved floating-point buffers. The buffers include the
    running statistics of batch norms, also of frozen ones, because torch updates them in training. A constant that must
    not travel is a frozen parameter or a buffer with `persistent=False`.

    Args:
        module: The module.
    """
    saved = module.state_dict().keys()
    parameters = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    buffers = {name: tensor for name, tensor in module.named_buffers() if name in saved}
    return {name: tensor for name, tensor in {**parameters, **buffers}.items() if tensor.is_floating_point()}


class FlatModule:
    """A module whose trained tensors are read and written as one float32 vector.

    The vector holds `trained_tensors`, which are views of it, so that loading is one copy. Frozen parameters are not in
    the vector and must not change. Other buffers, such as counters, are reset at every load, so that no trace of
    earlier training is left.

    Args:
        make: Returns a new `torch.nn.Module`.
        device: Where the module computes.
        seed: Seed of torch's generator while the module is built.

    Raises:
        BadData: If the module has parameters but all are frozen.
    """

    def __init__(self, make: Callable[[], Any], device: str = "cpu", seed: int = FROZEN_SEED) -> None:
        import torch

        self.make = make
        self.module = build_module(make, seed).to(device)
        kept = trained_tensors(self.module)
        self.parameters = [tensor for tensor in self.module.parameters() if tensor.requires_grad]
        if not self.parameters and next(self.module.parameters(), None) is not None:
            raise BadData("every parameter of the task's model has requires_grad=False, so there is nothing to train")
        self.layout = Layout((name, tuple(tensor.shape)) for name, tensor in kept.items())
        self._vector = torch.empty(self.layout.parameters, device=device)
        self.spans = {id(kept[name]): span for name, span in self.layout.spans.items()}
        """Position of each tensor of the module in the vector, by the tensor's id."""
        for tensor in kept.values():
            view = self._vector[self.spans[id(tensor)]].view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
        others = [buffer for name, buffer in self.module.named_buffers() if name not in kept]
        self._others = [(buffer, buffer.detach().clone()) for buffer in others]
        frozen = [(name, each) for name, each in self.module.named_parameters() if not each.requires_grad]
        self._frozen = [(name, each, _state_of(each)) for name, each in frozen]

    def initial(self, seed: int) -> Weights:
        """Return the weights of a new module under this seed; torch's global generators are left unchanged."""
        return FlatModule(self.make, seed=seed).read()

    def load(self, weights: Weights) -> None:
        """Write a vector into the module.

        Raises:
            ValueError: If the vector has the wrong length.
            BadData: If a frozen parameter has changed since the module was built.
        """
        import torch

        for name, parameter, state in self._frozen:
            if _state_of(parameter) != state:
                raise BadData(
                    f"the model changes its parameter {name!r}, which has requires_grad=False and does not travel; "
                    "register it as a buffer instead"
                )
        if weights.shape != tuple(self._vector.shape):
            raise ValueError(f"expected a vector of {len(self._vector)} weights, got shape {weights.shape}")
        if self._vector.device.type == "cpu":
            self._vector.numpy()[:] = weights
        else:
            self._vector.copy_(torch.tensor(weights))
        for tensor, original in self._others:
            tensor.data.copy_(original)

    def read(self) -> Weights:
        """Return a copy of the module's weights."""
        vector: Weights = self._vector.cpu().numpy().copy()
        return vector

    def update(self, weights: Weights) -> Weights:
        """Return the module's weights minus these."""
        update: Weights = np.empty_like(weights)
        self.update_into(update, weights, [slice(None)])
        return update

    def update_into(self, update: Weights, weights: Weights, spans: Iterable[slice]) -> None:
        """Write the module's weights minus `weights` into these parts of `update`."""
        vector = self._vector.cpu().numpy()
        for span in spans:
            np.subtract(vector[span], weights[span], out=update[span])


def _state_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return what differs after a tensor was written to: torch's counter of writes, and the address of its data."""
    return tensor._version, tensor.data_ptr()


def build_module(make: Callable[[], Any], seed: int = FROZEN_SEED) -> torch.nn.Module:
    """Build a new module from the user's function, in float32 on the CPU.

    Args:
        make: Returns a new `torch.nn.Module`.
        seed: Seed of torch's generator meanwhile; afterwards the generator is as before.

    Raises:
        BadData: If the function fails or returns something else.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _call_factory(make)
    if not isinstance(module, torch.nn.Module):
        raise BadData(f"the task's model must make a torch.nn.Module, not {type(module).__name__}")
    return module.float().cpu()


def _call_factory(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except FedBalancerError:
        raise
    except Exception as error:  # the user's code may raise anything
        name = getattr(make, "__qualname__", repr(make))
        raise BadData(f"the task's model {name}() raised {type(error).__name__}: {error}") from error
