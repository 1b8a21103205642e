"""Every verb: one Protocol per slot of a method, and one per seam to the world.

Policies are frozen dataclasses. What a server policy remembers is its field of `ServerState`: `init` makes it,
`observe` returns the next one; both default to nothing in `Stateless`. No policy changes an argument or keeps
hidden state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from fedbalancer.core.types import (
    ClientReport,
    ClientWork,
    Evaluation,
    FloatArray,
    IndexArray,
    LateRule,
    Layout,
    Order,
    RoundPlan,
    RoundResult,
    ServerState,
    Setup,
    Summary,
    TrainResult,
    Weights,
)

Private: TypeAlias = Literal["losses", "updates"]
"""Parts of a report that depend on the client's data: the statistics of its losses, and its update."""
NOTHING: frozenset[Private] = frozenset()
LOSSES: frozenset[Private] = frozenset({"losses"})
EVERYTHING: frozenset[Private] = frozenset({"losses", "updates"})


class Traits:
    """Every optional question about a policy, with the answer for a policy that does not define it.

    A policy answers by an attribute or method of the same name; `trait` asks. `Wrapping` forwards every question to the
    wrapped policy.
    """

    needs_losses: bool = False
    """Whether the policy cannot work where clients release nothing about their losses."""

    needs_counts: bool = False
    """Whether it needs the number of local steps or samples, which a private summary withholds."""

    needs_fractions: bool = False
    """Whether it needs the shares that the summary `FractionTracker` releases."""

    counts_votes: bool = False
    """Whether it aggregates signs by a majority vote."""

    reacts_to: frozenset[Private] = EVERYTHING
    """Which private parts of one client's report may change what the policy decides about other clients: who is
    selected, their order, or how their updates count. Of a sample selector: what the number of selected samples depends
    on. Asked by `reactions`, which takes no inherited answer."""

    model_noise_multiplier: float | None = None
    """The noise that an aggregator adds to the model, over its sensitivity to one client; None for no noise. An
    aggregator with noise is also called in rounds without reports."""

    noise_is_known: bool = False
    """Whether everybody who knows the seed can remove that noise."""

    strategy: Any = None
    """The Flower strategy that aggregates, if one does."""

    def refuses(self, method: Any) -> str | None:
        """Why the policy cannot work beside the other choices of a method, in a sentence; None if it can."""
        return None

    def between(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float] | None:
        """dl and dh of a deadline policy (Algorithm 4), where it has them."""
        return None

    def cohort_faults(self, state: ServerState, reports: Sequence[ClientReport]) -> Mapping[str, str]:
        """Faults of reports that show only beside the others of their round, by client."""
        return {}


_UNDEFINED = Traits()


def trait(policy: Any, question: str) -> Any:
    """The policy's answer to a question of `Traits`, or the default answer.

    >>> trait(Stateless(), "needs_losses")
    False
    """
    return getattr(policy, question, getattr(_UNDEFINED, question))


def reactions(policy: Any) -> frozenset[Private]:
    """Return what a policy reacts to, as its own class declares it.

    A policy that does not declare it is assumed to react to everything, so that no epsilon is claimed for it. So is a
    subclass that does not declare it again: it may decide by other things than its base class.
    """
    declared = "own_reactions" if isinstance(policy, Wrapping) else "reacts_to"
    return frozenset(trait(policy, "reacts_to")) if declared in vars(type(policy)) else EVERYTHING


def _forwarded(question: str) -> Any:
    return property(lambda self: trait(self.inner, question))


class Wrapping:
    """Base of server policies that change what another policy, `inner`, decides.

    Every question of `Traits` is forwarded to `inner`, so that a wrapped policy keeps its properties. The state of a
    wrapper is a dataclass whose field `inner` is the state of the wrapped policy.
    """

    slot: ClassVar[str]
    """The slot of `ServerState` that holds the policy's state."""

    own_reactions: ClassVar[frozenset[Private]] = EVERYTHING
    """What the wrapper itself reacts to, in addition to `inner`."""

    inner: Any

    needs_losses = _forwarded("needs_losses")
    needs_counts = _forwarded("needs_counts")
    needs_fractions = _forwarded("needs_fractions")
    counts_votes = _forwarded("counts_votes")
    model_noise_multiplier = _forwarded("model_noise_multiplier")
    noise_is_known = _forwarded("noise_is_known")
    strategy = _forwarded("strategy")
    refuses = _forwarded("refuses")

    @property
    def reacts_to(self) -> frozenset[Private]:
        """What the wrapper or the wrapped policy reacts to."""
        return self.own_reactions | reactions(self.inner)

    def between(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float] | None:
        """dl and dh of the wrapped policy."""
        found: tuple[float, float] | None = trait(self.inner, "between")(setup, self.unwrapped(state), cohort)
        return found

    def cohort_faults(self, state: ServerState, reports: Sequence[ClientReport]) -> Mapping[str, str]:
        """The faults that the wrapped policy finds."""
        found: Mapping[str, str] = trait(self.inner, "cohort_faults")(self.unwrapped(state), reports)
        return found

    def unwrapped(self, state: ServerState) -> ServerState:
        """The server's state as the wrapped policy knows it."""
        return replace(state, **{self.slot: getattr(state, self.slot).inner})


class Stateless:
    """A server policy that remembers nothing."""

    def init(self, setup: Setup) -> Any:
        return None

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Any:
        return None


class ServerPolicy(Protocol):
    """What all server slots share. `observe` sees the state before the round, with the ledger already updated."""

    def init(self, setup: Setup) -> Any: ...
    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Any: ...


@runtime_checkable
class ClientSelector(ServerPolicy, Protocol):
    """Who takes part."""

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Ledger rows of the cohort: different ones of `available`, min(K, available) of them, or more where the method
        invites more than it will wait for."""


@runtime_checkable
class ThresholdPolicy(ServerPolicy, Protocol):
    """The loss threshold of the next round."""

    def threshold(self, setup: Setup, state: ServerState) -> float: ...


class Ratios(Protocol):
    """What the state of a pace policy offers to threshold and deadline."""

    @property
    def loss_threshold_ratio(self) -> float: ...
    @property
    def deadline_ratio(self) -> float: ...
    @property
    def utility(self) -> float | None: ...


@runtime_checkable
class PacePolicy(ServerPolicy, Protocol):
    """Moves the two ratios; its state is a `Ratios`."""

    def init(self, setup: Setup) -> Ratios: ...
    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Ratios: ...


@runtime_checkable
class DeadlinePolicy(ServerPolicy, Protocol):
    """When the round closes."""

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        """Deadline in seconds (may be infinite) and quorum for this cohort."""


@runtime_checkable
class Aggregator(Protocol):
    """New global weights from the reports that made it, and what the policy remembers next. There is at least one
    report, unless the policy adds noise (`Traits.model_noise_multiplier`): then it is also called without reports."""

    def init(self, setup: Setup) -> Any: ...
    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]: ...


@runtime_checkable
class ModelAverage(Protocol):
    """Which model is evaluated and handed out; clients always train from the weights of the last round."""

    def init(self, setup: Setup) -> Any: ...
    def after(self, setup: Setup, state: ServerState, weights: Weights) -> Any:
        """What the policy remembers when a round has made these weights; `state` is from before it."""

    def model(self, state: ServerState) -> Weights: ...


@runtime_checkable
class LatePolicy(ServerPolicy, Protocol):
    """What becomes of a report that comes after its round has closed. `observe` sees every report of a round."""

    def rule(self) -> LateRule:
        """Whether such a report is lost, joins the round in which it comes, or counts for its quorum as well."""

    def room(self, setup: Setup, state: ServerState) -> int:
        """How many clients to ask anew, K unless the policy counts those that are under way."""

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        """The reports to close with, where the deadline policy has this quorum."""

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        """The reports as they are aggregated: those that are stale with less weight."""


@runtime_checkable
class SampleSelector(Protocol):
    """What a client trains on."""

    def cap(self, sizes: IndexArray) -> int | None:
        """Asked once on the server, before the first round: a size to tell all clients, or None."""

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        """Sorted sample numbers, at least one; None if the loss list is needed and there is none yet."""


@runtime_checkable
class WorkPolicy(Protocol):
    """How much a client does before the deadline."""

    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        """How many of the `per_epoch * epochs` batches to train, 0 for none in time. `elapsed_s(b)` is when a client
        that trains `b` batches has finished its upload; it never decreases."""


@runtime_checkable
class Summarizer(Protocol):
    """What a client releases; noise is added here, on the client.

    A summary may have a half on the server, `read(summaries, order)`, that makes statistics of what the clients of a
    round `released`, after `fault(released, size)` found nothing in it that a client of `size` samples could not have
    sent; tell by `by_steps(trained, rng)` more of a training than its losses, which becomes what is `released`; and say
    by `release(fresh)` what an accountant has to know of it. If that is an epsilon, the client withholds how many
    samples it trained and for how many epochs.
    """

    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary: ...


def is_private(summary: Any) -> bool:
    """Whether a summary claims an epsilon: nothing else in a report may then depend on the client's losses."""
    release = getattr(summary, "release", None)
    return release is not None and release(True).noise_multiplier > 0


@runtime_checkable
class Compressor(Protocol):
    """How an update travels. The clock of a round is known before its training, so the size may depend on the layout
    only; `seed` is known to both sides, who draw the same random numbers from it.

    `residual` is what the client has kept back so far (error feedback): None at first, and for ever where nothing is.
    """

    def encoded_bytes(self, layout: Layout) -> int:
        """Exactly the length of what `encode` gives."""

    def encode(
        self, update: Weights, layout: Layout, seed: int, residual: Weights | None
    ) -> tuple[bytes, Weights | None]:
        """What is sent, and the next residual."""

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        """The update as the server takes it."""


class Training(Protocol):
    """A local training while it goes on, batch by batch."""

    def step(self, rows: IndexArray) -> None:
        """Train the batch of these samples."""

    def keep(self) -> None:
        """Remember the model as it is now."""

    def kept(self) -> TrainResult:
        """The result at the last `keep`."""

    def result(self) -> TrainResult:
        """The result of all steps; the training is over."""


class Trainer(Protocol):
    """Local training and evaluation of one task: pure functions of their arguments."""

    @property
    def layout(self) -> Layout: ...
    def initial_weights(self, seed: int) -> Weights: ...
    def train(self, weights: Weights, work: ClientWork) -> TrainResult: ...
    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Loss of every sample of the client, by a forward pass in evaluation mode."""

    def evaluate(self, weights: Weights) -> Evaluation: ...
    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        """How well a model does on the client's own samples."""


class Executor(Protocol):
    """Spreads a trainer's work; results come back in the order of the work."""

    @property
    def layout(self) -> Layout: ...
    def initial_weights(self, seed: int) -> Weights: ...
    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]: ...
    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]: ...
    def evaluate(self, weights: Weights) -> Evaluation: ...
    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]: ...
    def close(self) -> None: ...


class Draw(Protocol):
    """One device in one round."""

    @property
    def batch_s(self) -> float: ...
    @property
    def download_s(self) -> float: ...
    @property
    def upload_s(self) -> float: ...


class DeviceModel(Protocol):
    """How fast every client's device is. Modelled here, measured on real devices."""

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Download plus upload at mean speed."""

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """`count` batch latencies sampled before training starts."""

    def draw(self, client: str, round: int, down_bytes: int, up_bytes: int) -> Draw:
        """Batch latency and transfer times of one client in one round."""


class Availability(Protocol):
    """When a client's device may work."""

    def is_available(self, client: str, at_s: float) -> bool: ...
    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        """Seconds on the clock until `busy_s` seconds of work are done that begin at `start_s`; inf if never."""


class Engine(Protocol):
    """Runs plans: on a virtual clock, or on real devices."""

    def available(self, clock_s: float) -> IndexArray:
        """Ledger rows of the clients that can be selected for a round that starts now."""

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float) -> RoundResult: ...
    def evaluate(self, weights: Weights) -> Evaluation: ...


SLOTS: dict[str, type] = {
    "clients": ClientSelector,
    "samples": SampleSelector,
    "deadline": DeadlinePolicy,
    "work": WorkPolicy,
    "aggregate": Aggregator,
    "model_average": ModelAverage,
    "late": LatePolicy,
    "threshold": ThresholdPolicy,
    "pace": PacePolicy,
    "summary": Summarizer,
    "compress": Compressor,
}
"""The slots of a method, and the contract of each."""
