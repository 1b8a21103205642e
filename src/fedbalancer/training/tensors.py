"""Conversion between a task's arrays and torch: samples, losses, and a module's weights as one vector."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import BadData, FedBalancerError, UnknownName
from fedbalancer.core.samples import IGNORED, Ragged, as_features, as_labels, count_bytes, count_rows, map_columns
from fedbalancer.core.task import Samples
from fedbalancer.core.types import IndexArray, Layout, Weights

if TYPE_CHECKING:
    import torch

    Tensors = tuple[Any, torch.Tensor]
    Loss = Callable[[Any, torch.Tensor], torch.Tensor]

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
    features, labels = samples
    if not isinstance(features, np.ndarray):
        return map_columns(as_features(features), _prepare_column), _prepare_labels(labels, count_rows(features))
    return _prepare_column(features), _prepare_labels(labels, len(features))


def _prepare_column(column: Any) -> Any:
    kind = column.values.dtype if isinstance(column, Ragged) else column.dtype
    if kind.kind == "f":
        return column.astype(np.float32) if isinstance(column, Ragged) else column.astype(np.float32, copy=False)
    if kind == np.uint8 or kind.kind == "b":
        return column
    return column.astype(np.int64) if isinstance(column, Ragged) else column.astype(np.int64, copy=False)


def _prepare_labels(labels: Any, count: int) -> Any:
    column = labels if isinstance(labels, np.ndarray) else as_labels(labels, count)
    if isinstance(column, Ragged):
        return column.astype(np.float32 if column.values.dtype.kind == "f" else np.int64)
    return column.astype(np.float32 if column.dtype.kind == "f" else np.int64, copy=False)


def make_batch(part: Any, rows: IndexArray | slice) -> Any:
    """Copy some rows of prepared samples to tensors; bytes and booleans become float32.

    Args:
        part: Features or labels, as `prepare_samples` returns them.
        rows: The rows.

    Returns:
        A tensor, or a dictionary or tuple of tensors. Ragged rows are padded to the longest one.
    """
    import torch

    if not isinstance(part, np.ndarray):
        return _make_batches(part, rows)
    chosen = part[rows]
    if chosen.dtype in (np.uint8, np.bool_):
        chosen = chosen.astype(np.float32, order="C")
    elif isinstance(rows, slice):
        chosen = chosen.copy()
    return torch.from_numpy(np.ascontiguousarray(chosen))


def _make_batches(part: Any, rows: IndexArray | slice) -> Any:
    """Make a batch of ragged rows, or of several columns, with the masks that they ask for."""
    if isinstance(part, Ragged):
        return make_batch(part[rows].pad(), slice(None))
    batch = map_columns(part, lambda column: make_batch(column, rows))
    if isinstance(batch, dict):
        for name, column in part.items():
            if isinstance(column, Ragged) and column.mask is not None and column.mask not in part:
                present = column[rows].present(batch[name].shape[1])
                batch[column.mask] = make_batch(present.astype(np.int64), slice(None))
    return batch


def split_batch(part: Any, rows: IndexArray, size: int, make: Callable[[Any, IndexArray], Any]) -> Iterable[Any]:
    """Return the batches of an epoch. Arrays are copied at once and split, which is faster.

    Args:
        part: Features or labels.
        rows: The samples of the epoch in their order.
        size: Samples per batch.
        make: Makes the tensors of some rows.
    """
    if isinstance(part, np.ndarray):
        batches: Iterable[Any] = make(part, rows).split(size)
        return batches
    return (make(part, rows[start : start + size]) for start in range(0, len(rows), size))


def call_model(model: Callable[..., Any], features: Any, forward: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return a model's outputs: `model(features)`, `model(**features)` or `model(*features)`.

    Args:
        model: The module.
        features: A tensor, or a dictionary or tuple of tensors.
        forward: The task's own function of (model, features).
    """
    if forward is not None:
        return forward(model, features)
    if isinstance(features, dict):
        return model(**features)
    return model(*features) if isinstance(features, tuple) else model(features)


def map_tensors(values: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a function to a tensor, and to those in dictionaries, tuples, lists and objects with outputs.

    Args:
        values: Features or outputs of a model.
        change: The function.
    """
    import torch

    if isinstance(values, torch.Tensor):
        return change(values)
    if isinstance(values, Mapping):
        changed = {name: map_tensors(value, change) for name, value in values.items()}
        return changed if type(values) is dict else type(values)(**changed)  # keeps `.logits`
    if type(values) in (tuple, list):
        return type(values)(map_tensors(value, change) for value in values)
    if isinstance(values, tuple):  # with names
        return type(values)(*(map_tensors(value, change) for value in values))
    if not hasattr(values, "logits") and not hasattr(values, "loss"):
        return values
    copied = copy(values)
    for name, value in vars(values).items():
        object.__setattr__(copied, name, map_tensors(value, change))
    return copied


def to_device(values: Any, device: str) -> Any:
    """Move the tensors of features or outputs to a device."""
    return map_tensors(values, lambda tensor: tensor.to(device))


def to_float32(values: Any) -> Any:
    """Convert the floating-point tensors of outputs to float32."""
    return map_tensors(values, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)


def find_logits(outputs: Any) -> Any:
    """Return the scores among a model's outputs: `.logits`, the entry "logits", or the first of a tuple.

    Args:
        outputs: What the model returns.
    """
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    if isinstance(outputs, tuple) and outputs and not hasattr(outputs, "logits"):
        return outputs[0]
    return getattr(outputs, "logits", outputs)


def _find_losses(outputs: Any) -> Any:
    """Return the per-sample losses among the outputs of a model without labels."""
    if isinstance(outputs, Mapping):
        return outputs.get("loss", outputs)
    return getattr(outputs, "loss", outputs[0] if isinstance(outputs, tuple) and outputs else outputs)


def has_labels(labels: Any) -> bool:
    """Whether there are labels. Absent ones have the shape (samples, 0)."""
    return not (labels.ndim == 2 and labels.shape[1] == 0)


def class_axis(labels: torch.Tensor) -> int:
    """Return the axis of the classes in the outputs.

    Sequences have the shape (samples, steps, classes), as transformers return them. Images have the shape (samples,
    classes, height, width), as torch's cross-entropy takes them.
    """
    return 2 if labels.ndim == 2 else 1


def sample_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each sample: the mean over its positions that are not ignored, or 0.

    Args:
        outputs: Scores of the classes; see `class_axis`.
        labels: Classes of shape (samples,) or (samples, ...); -100 is ignored.
    """
    from torch.nn.functional import cross_entropy

    if labels.ndim == 1:
        return cross_entropy(outputs, labels, reduction="none", ignore_index=IGNORED)
    losses = cross_entropy(outputs.movedim(class_axis(labels), 1), labels, reduction="none", ignore_index=IGNORED)
    counted = (labels != IGNORED).flatten(1).sum(dim=1)
    return losses.flatten(1).sum(dim=1) / counted.clamp(min=1)


def count_labelled(labels: torch.Tensor) -> int:
    """Return the number of samples with at least one label that is not ignored. Samples without labels all count."""
    if labels.is_floating_point() or not labels.numel() or int(labels.min()) >= 0:
        return len(labels)
    return int(_are_labelled(labels).sum())


def _are_labelled(labels: torch.Tensor) -> torch.Tensor:
    return (labels != IGNORED).reshape(len(labels), -1).any(dim=1)


def mean_loss(losses: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the samples that have a label which is not ignored.

    Args:
        losses: Per-sample losses, 0 for samples that are ignored.
        labels: Their labels.
    """
    if labels.is_floating_point():
        return losses.mean()
    if not labels.is_cpu:  # the number stays on the device, so that nothing waits for it
        return losses.sum() / _are_labelled(labels).sum().clamp(min=1)
    counted = count_labelled(labels)
    return losses.mean() if counted == len(losses) else losses.sum() / max(counted, 1)


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
    return sum(part.nbytes if isinstance(part, np.ndarray) else count_bytes(part) for part in samples)


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
    if not isinstance(loss, str) and not callable(loss):
        raise BadData(f"loss = {loss!r} must be 'cross_entropy' or a function of (outputs, labels)")

    def compute(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        if callable(loss):
            losses = loss(outputs, labels)
        elif not has_labels(labels):
            losses = _find_losses(outputs)
        else:
            losses = sample_losses(find_logits(outputs), labels)
        if not isinstance(losses, torch.Tensor) or losses.shape != (len(labels),):
            got = f"shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else type(losses).__name__
            whose = "the loss" if callable(loss) or has_labels(labels) else "a model without labels"
            mean = "; reduction='none' keeps all values" if callable(loss) and getattr(losses, "ndim", 1) == 0 else ""
            needed = f"one value per sample: a tensor of shape ({len(labels)},)"
            raise BadData(f"{whose} must return {needed}, not {got}{mean}")
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


def count_correct(outputs: Any, labels: torch.Tensor) -> float:
    """Count the correctly classified samples; NaN if the labels are not classes.

    A sample with several labels counts by its share of correct ones. Ignored labels do not count.
    """
    scores = find_logits(outputs)
    if labels.is_floating_point() or getattr(scores, "ndim", 0) != labels.ndim + 1:
        return float("nan")
    at = class_axis(labels) if scores.shape[:-1] == labels.shape else 1
    right = (scores.argmax(dim=at) == labels).double().reshape(len(labels), -1)
    kept = (labels != IGNORED).reshape(len(labels), -1)
    if bool(kept.all()):
        return float(right.mean(dim=1).sum())
    return float((right.sum(dim=1) / kept.sum(dim=1).clamp(min=1)).sum())


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
        if not self.parameters:
            any_there = next(self.module.parameters(), None) is not None
            why = "every parameter has requires_grad=False" if any_there else "it has none"
            raise BadData(f"the task's model has no parameter to train: {why}")
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

    if isinstance(make, torch.nn.Module):
        raise BadData(f"the task's model is a {type(make).__name__}; give a function that makes it, without arguments")
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
        function = make.func if isinstance(make, partial) else make
        name = getattr(function, "__qualname__", repr(function))
        raise BadData(f"the task's model {name}() raised {type(error).__name__}: {error}") from error
