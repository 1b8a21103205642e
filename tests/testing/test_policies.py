"""check_policy(): built-in policies pass, and a policy that breaks a promise gets an error that names it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from builders import MODIFIED
from scaffold import Ditto, Doubled, FirstRows, Scaffold, ScaffoldServer

from fedbalancer.client.compress import NoCompression
from fedbalancer.client.samples import EverySample
from fedbalancer.client.summary import LossStatistics
from fedbalancer.client.training import LocalLayers
from fedbalancer.client.work import AllOrNothing
from fedbalancer.core.contracts import Aggregator, ClientSelector, LocalTraining, PacePolicy, ThresholdPolicy
from fedbalancer.core.errors import UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ClientReport, Layout, RoundResult, ServerState, Setup, Summary, Weights
from fedbalancer.methods.table import BASES, SLOTS, method
from fedbalancer.server.aggregate import WeightedMean
from fedbalancer.server.clients import Uniform
from fedbalancer.server.deadline import FixedDeadline, WaitForShare
from fedbalancer.server.pace import ConstantPace, ConstantState
from fedbalancer.server.threshold import NoThreshold
from fedbalancer.testing import PolicyError, check_policy
from fedbalancer.testing.policies import SLOT_CHECKS

NAMES = [*BASES, *MODIFIED]


def all_policies() -> list[tuple[str, Any]]:
    """Every different policy of every method, each with its slot."""
    found: dict[tuple[str, str], Any] = {}
    for name in NAMES:
        built = method(name)
        found |= {(slot, repr(getattr(built, slot))): getattr(built, slot) for slot in SLOTS}
    return [(slot, policy) for (slot, _), policy in found.items()]


@pytest.mark.parametrize(("slot", "policy"), all_policies(), ids=lambda value: str(value)[:60])
def test_every_policy_of_every_method_keeps_its_promises(slot: str, policy: Any) -> None:
    assert check_policy(policy) == slot


def test_every_slot_has_promises() -> None:
    assert set(SLOT_CHECKS) == set(SLOTS)


# Policies that break one promise each. They stand at the top of the module so that they can be pickled.


class NoMethods:
    """Fits no slot."""


class DuckTyped:
    """Has the methods of a deadline, and no base."""

    def init(self, setup: Setup) -> None:
        return None

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> None:
        return None

    def plan(self, setup: Setup, state: ServerState, cohort: Any) -> tuple[float, int]:
        return 60.0, len(cohort)


class Misspelt(NoThreshold):
    need_losses = True


class MisspeltReaction(NoThreshold):
    def __init__(self) -> None:
        self.react_to = frozenset[str]()


class MisspeltHook(NoThreshold):
    def observes(self, setup: Setup, state: ServerState, result: RoundResult) -> None:
        return None


class MethodForValue(NoThreshold):
    def needs_losses(self) -> bool:  # type: ignore[override]
        return False


class TwoSlots(NoThreshold, ClientSelector):
    def select_clients(self, setup: Setup, state: ServerState, available: Any) -> Any:
        return available[: setup.clients_per_round]


class WrongArguments(ThresholdPolicy):
    def threshold(self, setup: Setup) -> float:
        return 0.0


class Raises(NoThreshold):
    def threshold(self, setup: Setup, state: ServerState) -> float:
        return 1 / state.round


class NotCopied(NoThreshold):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there is one of me")


@dataclass(frozen=True)
class NotPickled(NoThreshold):
    loss: Callable[[], float] = lambda: 0.0


class LosesItsValue(NoThreshold):
    """A deep copy forgets what it was made with."""

    def __init__(self, loss: float = 1.0) -> None:
        self.loss = loss

    def __reduce__(self) -> Any:
        return (LosesItsValue, (2.0,))

    def threshold(self, setup: Setup, state: ServerState) -> float:
        return self.loss


class PickledAsAnother(LosesItsValue):
    """Only a pickled copy forgets what it was made with."""

    def __deepcopy__(self, memo: Any) -> Any:
        return PickledAsAnother(self.loss)


class RemembersItself(NoThreshold):
    def __init__(self) -> None:
        self.calls = 0

    def threshold(self, setup: Setup, state: ServerState) -> float:
        self.calls += 1
        return 0.0


CALLS: list[int] = []


class RemembersElsewhere(NoThreshold):
    def threshold(self, setup: Setup, state: ServerState) -> float:
        CALLS.append(1)
        return float(len(CALLS))


class ChangesLedger(NoThreshold):
    def threshold(self, setup: Setup, state: ServerState) -> float:
        state.ledger.network_s[0] += 1
        return 0.0


class ChangesLossesWhileObserving(ThresholdPolicy):
    def threshold(self, setup: Setup, state: ServerState) -> float:
        return 0.0

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> None:
        for report in result.reports:
            report.update[:] = 0


class GlobalNumpy(NoThreshold):
    def threshold(self, setup: Setup, state: ServerState) -> float:
        np.random.rand()  # noqa: NPY002
        return 0.0


class GlobalRandom(NoThreshold):
    def threshold(self, setup: Setup, state: ServerState) -> float:
        return random.random()


class PlainState(NoThreshold):
    """Keeps a dictionary, which no checkpoint takes."""

    def init(self, setup: Setup) -> Any:
        return {"round": 0}

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Any:
        return {"round": state.round}


@dataclass
class Open:
    value: float = 0.0


class OpenState(PlainState):
    def init(self, setup: Setup) -> Any:
        return Open()


@dataclass(frozen=True)
class Anything:
    value: Any = None


@dataclass(frozen=True)
class StateOf(NoThreshold):
    """Keeps the given value in a frozen dataclass."""

    value: Any = None

    def init(self, setup: Setup) -> Any:
        return Anything(self.value)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Any:
        return state.threshold


class ForgetsItsState(StateOf):
    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Any:
        return None


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (NoMethods(), r"NoMethods must derive from a base class of fedbalancer\.core\.contracts: ClientSelector "),
        (DuckTyped(), r"DuckTyped must derive from a base class .* DeadlinePolicy \(deadline\)"),
        (Misspelt(), "Misspelt.need_losses is never used; did you mean needs_losses, which ThresholdPolicy declares"),
        (MisspeltReaction(), "MisspeltReaction.react_to is never used; did you mean reacts_to"),
        (MisspeltHook(), "MisspeltHook.observes is never used; did you mean observe"),
        (MethodForValue(), "MethodForValue.needs_losses must be a value or a property, not a method"),
        (TwoSlots(), "fits several slots: clients, threshold; say which with slot="),
        (Uniform, "Uniform is a class; give a policy made from it"),
        (WrongArguments(), r"WrongArguments.threshold\(\) must take \(setup, state\)"),
        (Raises(), r"Raises raised an error in threshold\(\): ZeroDivisionError"),
        (NotCopied(), "NotCopied cannot be deep-copied: RuntimeError: there is one of me"),
        (NotPickled(), "NotPickled cannot be pickled"),
        (LosesItsValue(), "LosesItsValue is not equal to its deep copy"),
        (PickledAsAnother(), "is not deterministic: its pickled copy returns another result"),
        (RemembersItself(), r"changed itself in threshold\(\)"),
        (RemembersElsewhere(), "is not deterministic: the second call returns another result"),
        (ChangesLedger(), r"changed its argument (setup|state) in threshold\(\)"),
        (ChangesLossesWhileObserving(), r"changed its argument result in observe\(\)"),
        (GlobalNumpy(), r"draws from a global random generator in threshold\(\)"),
        (GlobalRandom(), r"draws from a global random generator in threshold\(\)"),
        (PlainState(), "neither None nor a frozen dataclass"),
        (OpenState(), "neither None nor a frozen dataclass"),
        (StateOf({1, 2}), "a state that cannot be saved in a checkpoint"),
        (StateOf([1, 2]), "a checkpoint does not restore"),
        (ForgetsItsState(1), r"returns NoneType from observe\(\) but Anything from init\(\)"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_every_policy_promises(policy: Any, told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        check_policy(policy)


@dataclass(frozen=True)
class Cached(NoThreshold):
    """A cache that says that it is one is no hidden state."""

    seen: dict[int, float] = field(default_factory=dict, compare=False)

    @cached_property
    def loss(self) -> float:
        return 0.25

    def threshold(self, setup: Setup, state: ServerState) -> float:
        return self.seen.setdefault(state.round, self.loss)


def test_a_cache_is_allowed() -> None:
    assert check_policy(Cached()) == "threshold"


def test_a_state_of_plain_values_is_allowed() -> None:
    assert check_policy(StateOf((1, math.inf, "text", (None, True)))) == "threshold"


def test_a_state_of_arrays_is_allowed() -> None:
    assert check_policy(StateOf(np.arange(3.0))) == "threshold"


def test_the_slot_may_be_named_and_then_its_methods_are_asked_for() -> None:
    assert check_policy(TwoSlots(), "clients") == "clients"
    with pytest.raises(PolicyError, match=r"Uniform is not a policy for deadline: derive Uniform .*DeadlinePolicy$"):
        check_policy(Uniform(), "deadline")
    with pytest.raises(UnknownName, match="deadline"):
        check_policy(Uniform(), "deadlin")


def test_a_policy_error_is_a_failed_assertion() -> None:
    assert issubclass(PolicyError, AssertionError)


# Promises of the single slots. A bent policy does as a good one does and then bends what comes out.


def bend(good: Any, **bent: Callable[..., Any]) -> Any:
    """A policy like `good` in which the named methods' results go through a function of (result, *arguments)."""
    kind = type(good)
    methods = {name: _bent_method(getattr(kind, name), change) for name, change in bent.items()}
    made = type(f"Bent{kind.__name__}", (kind,), {**methods, "__reduce__": _reduce_bent})
    BENT.append(made)
    return _like(made, vars(good))


def _bent_method(whole: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        return change(whole(self, *arguments), *arguments)

    return method


BENT: list[type] = []
"""Classes inside functions cannot be pickled; one in a list can be named."""


def _reduce_bent(self: Any) -> Any:
    return (_bent, (BENT.index(type(self)), vars(self)))


def _bent(number: int, values: dict[str, Any]) -> Any:
    return _like(BENT[number], values)


def _like(kind: type, values: dict[str, Any]) -> Any:
    made = object.__new__(kind)
    made.__dict__.update(values)
    return made


def nan_weights(found: tuple[Weights, Any], *_: Any) -> tuple[Weights, Any]:
    return np.full_like(found[0], np.nan), None


class FirstReportCounts(Aggregator):
    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]:
        return state.weights + reports[0].update, None


class SummedAsTheyCome(Aggregator):
    """Float32 sums in the order of arrival: right but for the last bit."""

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]:
        total = np.zeros_like(state.weights)
        for report in reports:
            total += np.float32(report.weight) * report.update
        return state.weights + total / np.float32(sum(report.weight for report in reports)), None


class RisingPace(ConstantPace):
    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> ConstantState:
        return replace(state.pace, loss_threshold_ratio=state.pace.loss_threshold_ratio + 0.3)


class NoRatios(PacePolicy):
    def init(self, setup: Setup) -> Any:
        return None

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Any:
        return None


class NanUtility(ConstantPace):
    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> ConstantState:
        return replace(state.pace, utility=math.nan)


class SendsZerosBriefly(NoCompression):
    """Its size depends on the update, which nobody knows when the clock is asked."""

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return super().encode(update, layout, seed, residual) if update.any() else (b"0", None)


class NeedsRows(NoCompression):
    """Does not think of a model of a single number."""

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        rows = layout[0][1][0]
        return update.reshape(rows, -1).tobytes(), None


class AddsToWhatItKept(NoCompression):
    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, Any]:
        kept_back = np.zeros_like(update) if residual is None else residual
        kept_back += 1
        return update.tobytes(), kept_back


BROKEN: list[tuple[str, Any, str]] = [
    (
        "clients",
        bend(Uniform(), select_clients=lambda rows, *_: rows[:-1]),
        r"chooses \d clients of \d, not at least \d",
    ),
    (
        "clients",
        bend(Uniform(), select_clients=lambda rows, s, t, available: np.tile(available, 2)),
        "chooses a client twice",
    ),
    (
        "clients",
        bend(Uniform(), select_clients=lambda rows, s, *_: np.arange(len(s.ledger.size))),
        "which are not available",
    ),
    (
        "clients",
        bend(Uniform(), select_clients=lambda rows, *_: np.repeat(rows[:1], len(rows))),
        "chooses a client twice",
    ),
    ("clients", bend(Uniform(), select_clients=lambda rows, *_: rows + 1), "which are not available"),
    ("clients", bend(Uniform(), select_clients=lambda rows, *_: rows.tolist()), "must be a 1-d array of integers"),
    ("clients", bend(Uniform(), select_clients=lambda rows, *_: rows.astype(float)), "must be a 1-d array of integers"),
    ("deadline", bend(WaitForShare(), plan=lambda plan, *_: (0.0, plan[1])), "a deadline of 0.0 s; it must be over 0"),
    ("deadline", bend(WaitForShare(), plan=lambda plan, *_: (math.nan, plan[1])), "a deadline of nan s"),
    ("deadline", bend(WaitForShare(), plan=lambda plan, *_: (5.0, 0)), "plans a quorum of 0 for 7 clients"),
    ("deadline", bend(WaitForShare(), plan=lambda plan, *_: (5.0, plan[1] + 1)), "plans a quorum of 8 for 7 clients"),
    ("deadline", bend(WaitForShare(), plan=lambda plan, *_: (5.0, float(plan[1]))), "plans a quorum of 7.0"),
    ("deadline", bend(WaitForShare(), plan=lambda plan, *_: (5.0, max(plan[1], 1))), "quorum of 1 for 0 clients"),
    ("deadline", bend(FixedDeadline(), plan=lambda plan, *_: plan[0]), r"must be \(deadline in seconds, quorum\)"),
    ("threshold", bend(NoThreshold(), threshold=lambda *_: -0.1), "gives a threshold of -0.1"),
    ("threshold", bend(NoThreshold(), threshold=lambda *_: math.nan), "gives a threshold of nan"),
    ("threshold", bend(NoThreshold(), threshold=lambda *_: math.inf), "gives a threshold of inf"),
    ("threshold", bend(NoThreshold(), threshold=lambda *_: None), "gives a threshold of None"),
    ("pace", ConstantPace(deadline_ratio=1.5), "gives a deadline_ratio of 1.5"),
    (
        "pace",
        bend(ConstantPace(), init=lambda state, *_: replace(state, loss_threshold_ratio=math.nan)),
        "gives a loss_threshold_ratio of nan",
    ),
    ("pace", RisingPace(), "gives a loss_threshold_ratio of 1.2"),
    ("pace", NanUtility(), "gives a utility of nan"),
    ("pace", NoRatios(), "gives a loss_threshold_ratio of None"),
    ("aggregate", bend(WeightedMean(), aggregate=nan_weights), "weights that are not finite"),
    (
        "aggregate",
        bend(WeightedMean(), aggregate=lambda w, *_: (w[0].astype(float), None)),
        "must be an array of float32",
    ),
    (
        "aggregate",
        bend(WeightedMean(), aggregate=lambda w, *_: (w[0][:-1], None)),
        r"aggregates to shape \(15,\), not \(16,\)",
    ),
    ("aggregate", bend(WeightedMean(), aggregate=lambda w, *_: w[0]), r"it must be \(weights, next state\)"),
    ("aggregate", bend(WeightedMean(), aggregate=lambda w, *_: (w[0], Anything())), "keeps Anything but made NoneType"),
    ("aggregate", FirstReportCounts(), "other weights if the reports come in another order"),
    ("aggregate", SummedAsTheyCome(), "other weights if the reports come in another order"),
    ("samples", bend(EverySample(), select=lambda chosen, *_: chosen[:0]), "selects no sample of 1"),
    ("samples", bend(EverySample(), select=lambda chosen, *_: chosen + 1), "selects samples outside 0 to 0"),
    ("samples", bend(EverySample(), select=lambda chosen, *_: chosen[::-1]), "selects unsorted or repeated samples"),
    ("samples", bend(EverySample(), select=lambda c, *_: np.repeat(c, 2)), "selects unsorted or repeated samples"),
    ("samples", bend(EverySample(), select=lambda *_: None), "selects None although there is a loss list"),
    ("samples", bend(EverySample(), select=lambda c, *_: c == 0), "must be a 1-d array of integers"),
    ("samples", bend(EverySample(), cap=lambda *_: 0), "gives a cap of 0"),
    ("work", bend(AllOrNothing(), batches=lambda *_: -1), "trains -1 batches"),
    ("work", bend(AllOrNothing(), batches=lambda b, *_: b + 1), r"trains \d batches"),
    ("work", bend(AllOrNothing(), batches=lambda b, *_: float(b)), r"trains \d.0 batches; it must be a whole number"),
    (
        "work",
        bend(AllOrNothing(), batches=lambda b, e, d, per, epochs: per * epochs),
        "end after the deadline of 0.1 s",
    ),
    ("work", bend(AllOrNothing(), batches=lambda *_: 0), "trains nothing although all 1 batches are in time"),
    ("summary", bend(LossStatistics(), summarize=lambda s, *_: replace(s, loss_sum=math.nan)), "loss_sum = nan"),
    ("summary", bend(LossStatistics(), summarize=lambda s, *_: replace(s, batch_s=math.inf)), "batch_s = inf"),
    ("summary", bend(LossStatistics(), summarize=lambda *_: {"loss_sum": 1.0}), "releases dict; it must be a Summary"),
    ("compress", bend(NoCompression(), encoded_bytes=lambda *_: 1.5), "gives 1.5 bytes"),
    ("compress", bend(NoCompression(), encoded_bytes=lambda size, *_: -size), "gives -64 bytes"),
    ("compress", bend(NoCompression(), encoded_bytes=lambda size, *_: size + 1), "64 bytes, but promised 65"),
    ("compress", SendsZerosBriefly(), "encodes to 1 bytes, but promised 64"),
    ("compress", bend(NoCompression(), encode=lambda sent, *_: sent[0]), "encodes to bytes; it must be"),
    ("compress", bend(NoCompression(), encode=lambda sent, u, *_: (sent[0], u[:-1])), r"keeps shape \(15,\)"),
    ("compress", bend(NoCompression(), encode=lambda sent, u, *_: (sent[0], u / 0)), "keeps values that are not"),
    ("compress", bend(NoCompression(), decode=lambda u, *_: u[:-1]), r"decodes to shape \(15,\), not \(16,\)"),
    ("compress", bend(NoCompression(), decode=lambda u, *_: u.astype(float)), "must be an array of float32"),
    ("compress", bend(NoCompression(), decode=lambda u, *_: u / np.float32(0)), "values that are not finite"),
    ("compress", NeedsRows(), r"raised an error in encode\(\): IndexError"),
    ("compress", AddsToWhatItKept(), r"changed its argument residual in encode\(\)"),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("slot", "policy", "told"), BROKEN, ids=[f"{slot}: {told}" for slot, _, told in BROKEN])
def test_what_a_slot_promises(slot: str, policy: Any, told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        check_policy(policy, slot)


class Everybody(ClientSelector):
    def select_clients(self, setup: Setup, state: ServerState, available: Any) -> Any:
        return available


def test_a_selector_may_invite_more_than_k_clients() -> None:
    assert check_policy(Everybody()) == "clients"


@pytest.mark.parametrize(
    ("slot", "good"),
    [("clients", Uniform()), ("work", AllOrNothing()), ("samples", EverySample()), ("aggregate", WeightedMean())],
    ids=["clients", "work", "samples", "aggregate"],
)
def test_bending_alone_breaks_nothing(slot: str, good: Any) -> None:
    name = next(name for name in ("select_clients", "batches", "select", "aggregate") if hasattr(good, name))
    assert check_policy(bend(good, **{name: lambda result, *_: result}), slot) == slot


class RandomSubset(EverySample):
    """Uses the generator that it is given, as it should."""

    def select(self, size: int, losses: Any, batch_s: float, order: Any, rng: np.random.Generator) -> Any:
        return np.sort(rng.choice(size, size=(size + 1) // 2, replace=False))


class NoisyLosses(LossStatistics):
    def summarize(self, losses: Any, seen: Any, batch_s: float, order: Any, rng: np.random.Generator) -> Summary:
        exact = super().summarize(losses, seen, batch_s, order, rng)
        return replace(exact, loss_sum=exact.loss_sum + rng.normal())


def test_the_given_generator_may_be_drawn_from() -> None:
    assert check_policy(RandomSubset()) == "samples"
    assert check_policy(NoisyLosses(noise_factor=0.5)) == "summary"


class FixedDraw(ClientSelector):
    """Draws with a generator of its own seed."""

    def select_clients(self, setup: Setup, state: ServerState, available: Any) -> Any:
        return np.random.default_rng(0).choice(available, min(setup.clients_per_round, len(available)), replace=False)


class DrawOfTheRound(ClientSelector):
    """Draws by the round, and not by the seed."""

    def select_clients(self, setup: Setup, state: ServerState, available: Any) -> Any:
        rng = stream(0, "clients", state.round)
        return rng.permutation(available)[: setup.clients_per_round]


class ShuffledByRandom(ClientSelector):
    """The same with the standard library."""

    def select_clients(self, setup: Setup, state: ServerState, available: Any) -> Any:
        rows = available.tolist()
        random.Random(state.round).shuffle(rows)
        return np.array(rows[: setup.clients_per_round], dtype=int)


@pytest.mark.parametrize("policy", [FixedDraw(), DrawOfTheRound(), ShuffledByRandom()])
def test_a_selector_that_draws_the_same_clients_for_every_seed_is_told(policy: Any) -> None:
    with pytest.raises(PolicyError, match=r"draws the same clients for every seed: rows \[.*stream\(setup\.seed"):
        check_policy(policy)


class Largest(ClientSelector):
    """Decides by what is known, and draws between equals only."""

    def select_clients(self, setup: Setup, state: ServerState, available: Any) -> Any:
        ties = stream(setup.seed, "ties", state.round).random(len(available))
        return available[np.lexsort((ties, -state.ledger.size[available]))][: setup.clients_per_round]


class InTurn(ClientSelector):
    """Clients take turns, whatever the seed."""

    def select_clients(self, setup: Setup, state: ServerState, available: Any) -> Any:
        return np.roll(available, -state.round * setup.clients_per_round)[: setup.clients_per_round]


@pytest.mark.parametrize("policy", [Largest(), InTurn(), Uniform()])
def test_a_selector_that_decides_without_a_draw_may_ignore_the_seed(policy: Any) -> None:
    assert check_policy(policy) == "clients"


@dataclass(frozen=True)
class SendsTooLittle(Scaffold):
    def finish(self, update: Any, run: Any) -> Any:
        return update


@dataclass(frozen=True)
class AddsInPlace(LocalTraining):
    def gradient(self, gradient: Any, weights: Any, run: Any) -> Any:
        gradient += weights
        return gradient


@dataclass(frozen=True)
class DrawsGlobally(LocalTraining):
    def gradient(self, gradient: Any, weights: Any, run: Any) -> Any:
        return gradient + np.float32(random.random())


@dataclass(frozen=True)
class BadName(LocalTraining):
    def client_state(self, layout: Layout) -> Any:
        return {"my array": (3,)}


@dataclass(frozen=True)
class EmptyPart(FirstRows):
    def mask(self, layout: Layout, client: str, rank: float, order: Any) -> Any:
        return np.zeros(layout.parameters, dtype=bool)


@dataclass(frozen=True)
class FloatPart(FirstRows):
    def mask(self, layout: Layout, client: str, rank: float, order: Any) -> Any:
        return np.ones(layout.parameters)


@dataclass(frozen=True)
class SendsDoubles(ScaffoldServer):
    def order_arrays(self, setup: Any, state: Any) -> Any:
        return {"c": np.zeros(3)}


@pytest.mark.parametrize(
    "policy", [Scaffold(), Ditto(), Doubled(), FirstRows(), LocalLayers("*bias"), ScaffoldServer()]
)
def test_policies_that_change_local_training_keep_their_promises(policy: Any) -> None:
    assert check_policy(policy) == policy.slot


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (SendsTooLittle(), "sends no array 'c', which is declared"),
        (AddsInPlace(), "changed its arguments in gradient"),
        (DrawsGlobally(), "is not deterministic"),
        (BadName(), "declares wrong arrays: client_state names an array 'my array'"),
        (EmptyPart(), "leaves nothing to train"),
        (FloatPart(), "as a mask; it must be an array of bool"),
        (SendsDoubles(), "sends array 'c' of float64, which must be float32"),
    ],
)
def test_policies_that_break_the_rules_of_local_training_are_refused(policy: Any, why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        check_policy(policy)
