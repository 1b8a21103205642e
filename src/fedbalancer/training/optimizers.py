"""Optimizers of torch: how a text or a function of the user becomes one, and which backend trains with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.optimizers import CUSTOM, SGD, read_optimizer
from fedbalancer.core.types import Arrays, ClientWork, TrainOptions

if TYPE_CHECKING:
    import torch

    from fedbalancer.core.task import BaseTask

MakeOptimizer = Callable[..., Any]
"""A `torch.optim.Optimizer` class, a partial of one, or any function (parameters, lr=...) that returns one."""


def find_optimizer(text: str, own: MakeOptimizer | None) -> MakeOptimizer | None:
    """Return the function that makes an optimizer.

    Args:
        text: The optimizer as text.
        own: Makes the optimizer whose text is `custom`.

    Returns:
        The function; None for plain SGD, which needs none.

    Raises:
        BadSetting: If this version of torch does not have the optimizer, or the function is missing.
    """
    import torch

    if text == SGD:
        return None
    if text == CUSTOM:
        if own is None:
            raise BadSetting(
                "optimizer = 'custom' is a function of your own, and there is none here; pass it as "
                "Task(optimizer=...), or on Flower to every client as client_app(optimizer=...)"
            )
        return own
    name, options = read_optimizer(text)
    kinds = {each.lower(): getattr(torch.optim, each) for each in dir(torch.optim) if each[0].isupper()}
    if name not in kinds:
        raise BadSetting(f"optimizer = {text!r}: torch {torch.__version__} has no optimizer of this name")
    return partial(kinds[name], **options)


def make_optimizer(make: MakeOptimizer, parameters: list[torch.nn.Parameter], learning_rate: float) -> Any:
    """Make an optimizer.

    Args:
        make: Makes the optimizer.
        parameters: The parameters to train.
        learning_rate: The learning rate.

    Raises:
        BadSetting: If the optimizer cannot be made or used.
    """
    import torch

    try:
        optimizer = make(parameters, lr=learning_rate)
    except (TypeError, ValueError) as error:
        raise BadSetting(f"optimizer(parameters, lr={learning_rate:g}) failed: {error}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadSetting(f"optimizer must make a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise BadSetting("optimizer LBFGS evaluates a batch several times per step, so its duration is unknown")
    return optimizer


def check_optimizer(text: str, own: MakeOptimizer | None) -> None:
    """Check before a run that an optimizer can be made.

    Args:
        text: The optimizer as text.
        own: Makes the optimizer whose text is `custom`.

    Raises:
        BadSetting: If it cannot.
        MissingData: If torch is not installed.
    """
    if text == SGD:
        return
    try:
        import torch
    except ImportError as error:
        raise MissingData("training needs torch; install it with: pip install 'fedbalancer[torch]'") from error
    make = find_optimizer(text, own)
    if make is None or text == CUSTOM:  # a user's function may need the real parameters
        return
    try:
        make_optimizer(make, [torch.nn.Parameter(torch.zeros(2, 2))], 0.01)
    except BadSetting as error:
        raise BadSetting(f"optimizer = {text!r}: {error}") from error


def begin_optimizer(work: ClientWork, own: MakeOptimizer | None, parameters: list[torch.nn.Parameter]) -> Any:
    """Return the optimizer of a training, with the client's state if it keeps one; None for plain SGD.

    Args:
        work: The client's work.
        own: Makes the optimizer whose text is `custom`.
        parameters: The parameters to train.

    Raises:
        BadSetting: If the optimizer cannot be made, or the client's state does not fit it.
    """
    make = find_optimizer(work.training.optimizer, own)
    if make is None:
        return None
    optimizer = make_optimizer(make, parameters, work.learning_rate)
    if work.training.keeps_state:
        load_state(optimizer, work.state)
    return optimizer


STATE = "optimizer."
"""Prefix of the arrays of an optimizer in a client's state: `optimizer.PARAMETER.NAME`."""
_NUMBER = ":number"
"""Suffix of a Python number among them."""


def read_state(optimizer: Any) -> dict[str, NDArray[Any]]:
    """Return an optimizer's state as named arrays.

    Args:
        optimizer: The optimizer; None has no state.

    Raises:
        BadSetting: If the state holds something else than tensors and numbers.
    """
    import torch

    arrays: dict[str, NDArray[Any]] = {}
    if optimizer is None:
        return arrays
    for parameter, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            key = f"{STATE}{parameter}.{name}"
            if isinstance(value, torch.Tensor):
                arrays[key] = value.detach().cpu().numpy().copy()
            elif isinstance(value, bool | int | float):
                arrays[key + _NUMBER] = np.array(float(value))
            elif value is not None:
                raise BadSetting(
                    f"optimizer_state = 'keep': {name} of {type(optimizer).__name__} is {type(value).__name__}; only "
                    "tensors and numbers can be kept"
                )
    return arrays


def load_state(optimizer: Any, arrays: Arrays) -> None:
    """Give a new optimizer the state of an earlier one. Its options, such as the learning rate, stay.

    Args:
        optimizer: The new optimizer.
        arrays: A client's arrays; those of other owners are ignored.

    Raises:
        BadSetting: If they do not fit the optimizer.
    """
    import torch

    state: dict[int, dict[str, Any]] = {}
    for key in sorted(key for key in arrays if key.startswith(STATE)):
        parameter, _, name = key.removeprefix(STATE).partition(".")
        is_number = name.endswith(_NUMBER)
        value = float(arrays[key]) if is_number else torch.from_numpy(np.array(arrays[key]))
        state.setdefault(int(parameter), {})[name.removesuffix(_NUMBER)] = value
    if not state:
        return
    try:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (ValueError, KeyError, RuntimeError) as error:
        raise BadSetting(f"optimizer_state = 'keep': the client's state does not fit the optimizer: {error}") from error


def why_plain(options: TrainOptions, backend: str, device: str, task: BaseTask | None = None) -> str:
    """Return why a training runs on the plain backend; an empty text if it runs on the fast one.

    Args:
        options: How batches become steps.
        backend: The requested backend.
        device: Where torch computes.
        task: The task, whose features and `forward` may need the plain backend.

    Example:
        >>> why_plain(TrainOptions("adamw"), "fast", "cpu")
        "optimizer adamw runs on torch's own step; the fast backend has SGD only"
    """
    if backend == "plain":
        return "the run asks for the backend plain"
    if device != "cpu":
        return f"the fast backend has no kernels for {device}"
    if options.optimizer.partition("(")[0] != SGD:
        return f"optimizer {options.optimizer} runs on torch's own step; the fast backend has SGD only"
    if options.accumulate > 1:
        return f"accumulate = {options.accumulate}; the fast backend takes one step per batch"
    if options.dtype != "float32":
        return f"dtype = {options.dtype}; the fast backend computes in float32"
    return "" if task is None else _why_plain_inputs(task)


def _why_plain_inputs(task: BaseTask) -> str:
    """Return why the samples of a task need the plain backend; an empty text if they do not."""
    if task.forward is not None:
        return "the task has its own forward; the fast backend calls the model itself"
    if isinstance(task.test[0], np.ndarray):
        return ""
    kind = (
        "a dictionary" if isinstance(task.test[0], dict) else "a tuple" if isinstance(task.test[0], tuple) else "ragged"
    )
    return f"the features are {kind}; the fast backend takes one array"
