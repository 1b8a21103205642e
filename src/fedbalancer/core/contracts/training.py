"""Base classes of the slots that change local training: `train` (how a client trains) and `part` (what it trains)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts.policy import Policy
from fedbalancer.core.types import Arrays, ClientWork, Layout, Order, Outside, Shapes, Weights


@dataclass(eq=False)
class LocalRun:
    """One local training of one client, as the policy in slot `train` sees it.

    All vectors have one float32 value per parameter, in the order of `layout`. A policy may replace the values of
    `state` and `sent`; it must not change anything else.

    Args:
        work: The client's work: its id, batch size, learning rate and so on.
        layout: Names and shapes of the model's tensors.
        start: The weights that the training starts from.
        state: The arrays that the client keeps, as `client_state` declares them. All zero before the first report.
        arrays: The arrays from the server, as `down_arrays` declares them.
        is_first: Whether the client has no state of an earlier round.
        steps: Number of steps done.
        sent: The arrays for the server. Fill it in `finish`, as `up_arrays` declares them.
        gradient_at: `gradient_at(weights)` returns the gradient of the current batch's mean loss at other weights.
            Available in `gradient`.
        module: The `torch.nn.Module` that is trained. Its parameters must not be changed.
    """

    work: ClientWork
    layout: Layout
    start: Weights
    state: dict[str, Weights] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    is_first: bool = True
    steps: int = 0
    sent: dict[str, Weights] = field(default_factory=dict)
    gradient_at: Callable[[Weights], Weights] | None = None
    module: Any = None

    def copy(self) -> LocalRun:
        """Return a copy with its own state."""
        return replace(self, state={name: array.copy() for name, array in self.state.items()}, sent={})


class LocalTraining(Policy):
    """Decides how a client trains: the direction of every step, and what it keeps and sends besides the update.

    A step is w <- w - learning_rate * clip(gradient), or the step of the task's optimizer. The policy changes the
    gradient before it is clipped. It runs on the client, in any process, so it keeps nothing itself: what a client
    remembers is in `LocalRun.state`, which is saved with its memory. What the server remembers is the state of the
    aggregator, which sends it to all clients by `Aggregator.order_arrays`.
    """

    slot = "train"

    @property
    def is_plain(self) -> bool:
        """Whether training is the task's own, so that the fast kernels may run it."""
        return False

    @property
    def passes(self) -> float:
        """Gradients per batch, by which the simulated seconds of a batch are multiplied."""
        return 1.0

    @property
    def tuning_epochs(self) -> int:
        """Epochs that a client trains on its own data before the final model is evaluated on it. 0: none."""
        return 0

    @property
    def cache_rounds(self) -> int | None:
        """Rounds for which a client keeps a training that was interrupted, and continues it without a new model.

        None: it starts over from the new model.
        """
        return None

    def client_state(self, layout: Layout) -> Shapes:
        """Return names and shapes of the arrays that a client keeps between its rounds.

        Args:
            layout: Names and shapes of the model's tensors.
        """
        return {}

    def down_arrays(self, layout: Layout) -> Shapes:
        """Return names and shapes of the arrays that a client needs from the server.

        An array of shape `(layout.parameters,)` is a vector in the order of the model.

        Args:
            layout: Names and shapes of the model's tensors.
        """
        return {}

    def up_arrays(self, layout: Layout) -> Shapes:
        """Return names and shapes of the arrays that a client sends with its report.

        Args:
            layout: Names and shapes of the model's tensors.
        """
        return {}

    def objective(self, loss: Any, outputs: Any, labels: Any, run: LocalRun) -> Any:
        """Return the value to minimise in one step, as a torch scalar. Default: the mean loss.

        Args:
            loss: Mean loss of the batch, a torch scalar.
            outputs: The model's outputs.
            labels: The labels.
            run: The training.
        """
        return loss

    def gradient(self, gradient: Weights, weights: Weights, run: LocalRun) -> Weights:
        """Return the gradient to step along. Default: the gradient of the objective.

        Args:
            gradient: Gradient of the objective for this batch; 0 for buffers and frozen parameters.
            weights: The current weights.
            run: The training.
        """
        return gradient

    def finish(self, update: Weights, run: LocalRun) -> Weights:
        """Return the update to send, and set `run.state` and `run.sent`. Default: the update.

        Args:
            update: The final weights minus `run.start`.
            run: The training; `run.steps` is the number of steps that count.
        """
        return update


class PartPolicy(Policy):
    """Decides which part of the model a client trains and sends. Server and client compute it alike.

    Each parameter is averaged over the clients that trained it. The bytes of a part and its seconds are charged.
    """

    slot = "part"

    @property
    def is_whole(self) -> bool:
        """Whether every client trains the whole model."""
        return False

    @property
    def outside(self) -> Outside:
        """State of the parameters outside the part on the client: "absent", "frozen", "local" or "dropped"."""
        return "absent"

    @abstractmethod
    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> NDArray[np.bool_]:
        """Return for each parameter whether the client trains and sends it.

        Args:
            layout: Names and shapes of the model's tensors.
            client: The client's id.
            rank: Share of the clients that are slower than this one, from 0 (the slowest) to below 1.
            order: What the server asks for in this round.
        """

    @property
    def follows_shares(self) -> bool:
        """Whether the part of a client follows from `Order.shares`, so that it differs from round to round.

        The ledger then records the seconds of a batch of the whole model, from which the next share is computed.
        """
        return False

    def batch_share(self, layout: Layout, mask: NDArray[np.bool_], flops: Mapping[str, float]) -> float:
        """Return the seconds of a batch as a share of the whole model's.

        Default: the share of the FLOPs of trained parameters for a smaller model; a third for the forward pass plus two
        thirds of that share for a model with frozen parameters; 1 if all parameters are trained.

        Args:
            layout: Names and shapes of the model's tensors.
            mask: The part.
            flops: Share of a batch's FLOPs that each tensor causes, by its name. Empty if they were not counted: all
                parameters then count equally.
        """
        share = float(mask.mean()) if len(mask) else 1.0
        if flops and len(mask):
            share = sum(flops[name] * float(mask[span].mean()) for name, span in layout.spans.items() if flops[name])
            share = min(share, 1.0)
        return {"absent": share, "frozen": (1 + 2 * share) / 3}.get(self.outside, 1.0)
