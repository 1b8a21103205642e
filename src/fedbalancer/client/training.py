"""Policies of the slots `train` and `part`, and the model that a client starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import NOTHING, LocalRun, LocalTraining, PartPolicy, Private
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.fields import Count, Rounds, Step
from fedbalancer.core.types import Arrays, Layout, Order, Outside, Part, Shapes, Weights
from fedbalancer.core.types.layout import find_array_fault

STATISTICS = "*running_mean *running_var"
"""Names of the running statistics of batch norms."""
LOCAL = "part.local"
"""Name in a client's state of the parameters that it keeps to itself."""


@dataclass(frozen=True)
class PlainTraining(LocalTraining):
    """Trains as the task says: SGD or the task's optimizer on the mean loss, with the method's proximal term.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t").train
        PlainTraining()
    """

    is_plain: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = NOTHING


@dataclass(frozen=True)
class FineTuning(LocalTraining):
    """Trains plainly, and fine-tunes the model on a client's data before it is evaluated there.

    Args:
        epochs: Epochs of fine-tuning.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t", train=FineTuning(epochs=2)).train
        FineTuning(epochs=2)
    """

    is_plain: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    epochs: Count = 1

    @property
    def tuning_epochs(self) -> int:
        """The number of epochs."""
        return self.epochs


@dataclass(frozen=True)
class CachedTraining(LocalTraining):
    """FLUDE on the clients: a client keeps the training that the end of a round interrupts, and continues it.

    A client that is selected again within `rounds` rounds of the one in which it received its model downloads nothing:
    it trains the batches that are left, from its own model, and sends the model. After that it is too stale and gets
    the new model (Wang et al., "A Robust Federated Learning Framework for Undependable Devices at Scale",
    arXiv 2412.19991). Training itself is the task's.

    The server averages models: an update counts relative to the current model, also if the client started from an
    earlier one. The remaining batches come from a new shuffle. With a forward pass in every round, which needs the new
    model, every client starts over.

    The paper's equations were not available to us. It adapts the bound of staleness during the run; here it is fixed.

    Args:
        rounds: Rounds for which a client keeps an interrupted training.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("flude").train
        CachedTraining(rounds=5)
    """

    is_plain: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    rounds: Rounds = 5

    @property
    def cache_rounds(self) -> int:
        """The number of rounds."""
        return self.rounds

    def refuses(self, method: Any) -> str | None:
        """Refuse policies that need the model that a client has not received."""
        if not method.part.is_whole:
            return "train CachedTraining works with the whole model only"
        if not method.compress.is_identity:
            return f"train CachedTraining sends a model, which compress {type(method.compress).__name__} cannot encode"
        if method.late.rule() != "lost":
            return f"late {type(method.late).__name__} counts late reports, so CachedTraining has nothing to continue"
        return None


def _requires(method: Any, aggregator: str) -> str | None:
    """Return why a policy that works with one aggregator only cannot work with the one of a method, or None."""
    name = type(method.aggregate).__name__
    if name != aggregator:
        return f"train {type(method.train).__name__} works with aggregate {aggregator} only, not with {name}"
    return None if method.part.is_whole else f"train {type(method.train).__name__} works with the whole model only"


@dataclass(frozen=True)
class Scaffold(LocalTraining):
    """SCAFFOLD on the clients: every step is corrected by the difference of two control variates.

    A step follows g - c_i + c, where g is the gradient, c_i the client's control variate and c the server's. After the
    last of n steps, c_i becomes c_i - c + (x - y) / (n rate), where x is the received and y the trained model. The
    client sends the change of c_i with its update (Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for
    Federated Learning", ICML 2020, Algorithm 1 with option II). Its server is `ScaffoldServer`.

    The formula assumes plain SGD. With another optimizer, or where gradients are clipped, (x - y) / (n rate) is not the
    mean gradient.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("scaffold").train
        Scaffold()
    """

    def refuses(self, method: Any) -> str | None:
        return _requires(method, "ScaffoldServer")

    def client_state(self, layout: Layout) -> Shapes:
        return {"variate": (layout.parameters,)}

    def down_arrays(self, layout: Layout) -> Shapes:
        return {"variate": (layout.parameters,)}

    def up_arrays(self, layout: Layout) -> Shapes:
        return {"variate": (layout.parameters,)}

    def gradient(self, gradient: Weights, weights: Weights, run: LocalRun) -> Weights:
        return gradient - run.state["variate"] + run.arrays["variate"]

    def finish(self, update: Weights, run: LocalRun) -> Weights:
        own = run.state["variate"] - run.arrays["variate"] - update / np.float32(run.steps * run.work.learning_rate)
        run.sent["variate"] = own - run.state["variate"]
        run.state["variate"] = own
        return update


@dataclass(frozen=True)
class FedDyn(LocalTraining):
    """FedDyn on the clients: each client's loss has a linear and a quadratic term that change in every round.

    Client i minimises f_i(y) - <l_i, y> + alpha / 2 |y - x|^2, where x is the received model. After training, l_i
    becomes l_i - alpha (y - x), which estimates its gradient at y. Nothing but the model travels (Acar et al.,
    "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1). Its server is `FedDynServer`.

    Args:
        alpha: Strength of the quadratic term.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("feddyn").train
        FedDyn(alpha=0.01)
    """

    alpha: Step = 0.01

    def refuses(self, method: Any) -> str | None:
        return _requires(method, "FedDynServer")

    def client_state(self, layout: Layout) -> Shapes:
        _refuse_statistics(layout, "FedDyn")
        return {"linear": (layout.parameters,)}

    def gradient(self, gradient: Weights, weights: Weights, run: LocalRun) -> Weights:
        return gradient - run.state["linear"] + np.float32(self.alpha) * (weights - run.start)

    def finish(self, update: Weights, run: LocalRun) -> Weights:
        run.state["linear"] = run.state["linear"] - np.float32(self.alpha) * update
        return update


@dataclass(frozen=True)
class MIFA(LocalTraining):
    """MIFA on the clients: a client remembers its last update, and sends how the new one differs from it.

    An update is divided by the learning rate of its round, as in the paper (Gu et al., "Fast Federated Learning in the
    Presence of Arbitrary Device Unavailability", NeurIPS 2021). Its server is `MIFAServer`.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("mifa").train
        MIFA()
    """

    def refuses(self, method: Any) -> str | None:
        return _requires(method, "MIFAServer")

    def client_state(self, layout: Layout) -> Shapes:
        _refuse_statistics(layout, "MIFA")
        return {"last": (layout.parameters,)}

    def finish(self, update: Weights, run: LocalRun) -> Weights:
        fresh = update / np.float32(run.work.learning_rate)
        change: Weights = fresh - run.state["last"]
        run.state["last"] = fresh
        return change


def _refuse_statistics(layout: Layout, method: str) -> None:
    """Refuse models with running statistics, which are not gradients and must not be corrected like parameters."""
    for name, _ in layout:
        if name.endswith(("running_mean", "running_var")):
            raise BadSetting(
                f"{method} cannot train a model with running statistics ({name}); use a norm without them, for example "
                "GroupNorm or BatchNorm(track_running_stats=False)"
            )


@dataclass(frozen=True)
class WholeModel(PartPolicy):
    """Every client trains the whole model.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t").part
        WholeModel()
    """

    is_whole: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> NDArray[np.bool_]:
        """Return a mask of all parameters."""
        return np.ones(layout.parameters, dtype=bool)


@dataclass(frozen=True)
class LocalLayers(PartPolicy):
    """Some layers stay on the client: they are trained there, do not travel, and are not averaged.

    With the last layers this is FedPer (Arivazhagan et al., "Federated Learning with Personalization Layers", 2019).
    With the batch norms it is FedBN (Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization", ICLR 2021). Before its first report, a client uses the layers of the initial model.

    Args:
        names: Names of tensors, separated by spaces, with `*` for any text, for example "head.* norm.*".

    Example:
        >>> layout = Layout([("body.weight", (2, 2)), ("head.bias", (2,))])
        >>> LocalLayers("head.*").mask(layout, "ann", 0.0, None)
        array([ True,  True,  True,  True, False, False])
    """

    outside: ClassVar[Outside] = "local"
    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    names: str = "head.*"

    def __post_init__(self) -> None:
        names: Any = self.names
        if isinstance(names, list | tuple):
            object.__setattr__(self, "names", " ".join(map(str, names)))
        super().__post_init__()
        if not self.names.split():
            raise BadSetting("part LocalLayers: names is empty; name at least one tensor, for example head.*")

    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> NDArray[np.bool_]:
        """Return a mask of all tensors that match none of the names."""
        patterns = self.names.split()
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name, _ in layout):
                tensors = ", ".join(name for name, _ in layout[:8])
                place = "batch_norm = 'local'" if self.names == STATISTICS else "part LocalLayers"
                raise BadSetting(f"{place}: no tensor of the model matches {pattern!r}; it has {tensors}")
        shared = np.ones(layout.parameters, dtype=bool)
        for name, span in layout.spans.items():
            shared[span] = not any(fnmatchcase(name, pattern) for pattern in patterns)
        return shared


def check_order_arrays(arrays: Arrays, train: LocalTraining, layout: Layout) -> None:
    """Check the arrays that the aggregator sends to the clients.

    Args:
        arrays: The arrays of an order.
        train: The policy that declares the arrays that clients need.
        layout: Names and shapes of the model's tensors.

    Raises:
        BadSetting: If they differ from the declared ones.
    """
    if problem := find_array_fault(arrays, train.down_arrays(layout)):
        name = type(train).__name__
        raise BadSetting(
            f"the aggregator's order_arrays returned {problem}; {name}.down_arrays declares what the clients need"
        )


def make_part(
    policy: PartPolicy,
    layout: Layout,
    client: str,
    rank: float,
    order: Order,
    flops: Mapping[str, float] | None = None,
) -> Part | None:
    """Return the part of the model that a client trains; None for the whole model.

    Args:
        policy: The policy.
        layout: Names and shapes of the model's tensors.
        client: The client's id.
        rank: Share of the clients that are slower.
        order: What the server asks for.
        flops: Share of a batch's FLOPs that each tensor causes. Default: unknown.

    Raises:
        BadSetting: If the policy does not return one truth value per parameter, an empty part, or an invalid share.
    """
    if policy.is_whole:
        return None
    mask: Any = policy.mask(layout, client, rank, order)
    name = type(policy).__name__
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (layout.parameters,):
        got = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise BadSetting(f"{name}.mask returned {got} for client {client!r}; it must be {layout.parameters} booleans")
    if not mask.any():
        raise BadSetting(f"{name}.mask leaves nothing to train for client {client!r}")
    share: Any = policy.batch_share(layout, mask, flops or {})
    if not 0 < share < math.inf:
        raise BadSetting(f"{name}.batch_share returned {share!r}; it must be over 0")
    return Part(mask, policy.outside, float(share))


def rank_speeds(batch_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each client the share of clients that are slower.

    Args:
        batch_s: Seconds per batch of every client.

    Example:
        >>> rank_speeds(np.array([3.0, 1.0, 2.0, 2.0]))
        array([0.  , 0.75, 0.25, 0.25])
    """
    slowest_first = np.sort(-batch_s)
    return np.searchsorted(slowest_first, -batch_s, side="left") / max(len(batch_s), 1)


def start_model(weights: Weights, part: Part | None, state: Arrays) -> Weights:
    """Return the model that a client starts from.

    Args:
        weights: The global model.
        part: The part that the client trains. None: all of it.
        state: The client's arrays, with its local parameters if it has any.
    """
    if part is None or part.outside in ("frozen", "dropped"):
        return weights
    if part.outside == "local" and LOCAL not in state:
        return weights
    start = weights.copy()
    start[~part.mask] = state[LOCAL] if part.outside == "local" else 0.0
    return start
