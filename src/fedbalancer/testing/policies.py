"""`check_policy`: the contract that every policy must fulfil, custom policies included, and the rules of each slot."""

from __future__ import annotations

import copy
import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, get_args

import numpy as np

from fedbalancer.core.contracts import SLOTS, LocalRun
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import (
    ClientReport,
    ClientWork,
    FloatArray,
    LateRule,
    Layout,
    Order,
    Outside,
    Shapes,
    Summary,
    Weights,
)
from fedbalancer.core.types.layout import check_shapes, find_array_fault
from fedbalancer.core.wrapping import questions
from fedbalancer.methods.policy_registry import base_advice
from fedbalancer.testing.checked import Checked, PolicyError, is_indices, is_integer, is_real, kind, same
from fedbalancer.testing.scenes import LAYOUT, PARAMETERS, first_state, make_setup, order, reports, scenes

PACE_ROUNDS = 60
"""Enough rounds for the paper's control (w = 20) to move twice."""
SEEDS = 8
"""Seeds to try a selector with: two independent draws of 5 of 20 clients agree once in 15,504 times."""
GENERATORS = {"default_rng", "Generator", "RandomState", "Random", "stream", "integer_seed", "uniforms", "tickets"}
"""Names of sources of random numbers."""


def check_clients(checked: Checked) -> None:
    """Check a client selector: at least min(K, available) different rows of `available`."""
    for scene in scenes(checked, "clients"):
        everybody = np.arange(len(scene.setup.ledger.clients))
        for available in (everybody, everybody[::2], everybody[-1:], everybody[:0]):
            rows = checked.call("select_clients", scene.setup, scene.state, available)
            checked.require(is_indices(rows), f"chooses {rows!r}; ledger rows must be a 1-d array of integers")
            wanted = min(scene.setup.clients_per_round, len(available))
            checked.require(
                len(rows) >= wanted, f"chooses {len(rows)} clients of {len(available)}, not at least {wanted}"
            )
            checked.require(len(set(rows.tolist())) == len(rows), f"chooses a client twice: rows {rows.tolist()}")
            strange = sorted(set(rows.tolist()) - set(available.tolist()))
            checked.require(not strange, f"chooses rows {strange}, which are not available")
    _check_seeds(checked)


def _check_seeds(checked: Checked) -> None:
    """Check that a selector that draws random numbers uses the seed of the run."""
    if not _draws(type(checked.policy)):
        return

    def first_choice(seed: int, reverse: bool = False) -> list[int]:
        setup = make_setup(20, 5, seed, reverse)
        state = first_state(checked, "clients", setup)
        return sorted(checked.policy.select_clients(setup, state, np.arange(20)).tolist())

    choices = [first_choice(seed) for seed in range(SEEDS)]
    fixed = all(choice == choices[0] for choice in choices) and first_choice(0, reverse=True) == choices[0]
    checked.require(
        not fixed,
        f"draws the same clients for every seed: rows {choices[0]} with each of {SEEDS} seeds; draw from "
        "fedbalancer.core.randomness.stream(setup.seed, ...)",
    )


def _draws(kind: type) -> bool:
    """Whether the code of a class, apart from the defaults of its contract, names a source of random numbers."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith("fedbalancer.core.contracts")]
    codes = [each.__code__ for base in own for each in vars(base).values() if inspect.isfunction(each)]
    while codes:
        code = codes.pop()
        if GENERATORS.intersection(code.co_names):
            return True
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return False


def check_threshold(checked: Checked) -> None:
    """Check a threshold policy: a finite loss of at least 0."""
    for scene in scenes(checked, "threshold"):
        loss = checked.call("threshold", scene.setup, scene.state)
        checked.require(is_real(loss) and math.isfinite(loss) and loss >= 0, f"gives a threshold of {loss!r}")


def check_pace(checked: Checked) -> None:
    """Check a pace policy: two ratios from 0 to 1, and a utility or None."""
    for scene in scenes(checked, "pace", PACE_ROUNDS):
        pace = scene.state.pace
        for name in ("loss_threshold_ratio", "deadline_ratio"):
            ratio: Any = getattr(pace, name, None)
            checked.require(is_real(ratio) and 0 <= ratio <= 1, f"gives a {name} of {ratio!r}; it must be in [0, 1]")
        checked.require(hasattr(pace, "utility"), "keeps a state without utility")
        finite = pace.utility is None or (is_real(pace.utility) and math.isfinite(pace.utility))
        checked.require(finite, f"gives a utility of {pace.utility!r}; it must be a finite number or None")


def check_deadline(checked: Checked) -> None:
    """Check a deadline policy: seconds over 0 (may be infinite), and a quorum from 1 to n; 0 for no clients."""
    for scene in scenes(checked, "deadline"):
        everybody = np.arange(len(scene.setup.ledger.clients))
        for cohort in (everybody, everybody[-1:], everybody[:0]):
            planned = checked.call("plan", scene.setup, scene.state, cohort)
            pair = isinstance(planned, tuple) and len(planned) == 2
            checked.require(pair, f"plans {planned!r}; it must be (deadline in seconds, quorum)")
            seconds, quorum = planned
            checked.require(is_real(seconds) and seconds > 0, f"plans a deadline of {seconds!r} s; it must be over 0")
            within = is_integer(quorum) and min(1, len(cohort)) <= quorum <= len(cohort)
            checked.require(within, f"plans a quorum of {quorum!r} for {len(cohort)} clients")


def check_aggregate(checked: Checked) -> None:
    """Check an aggregator: finite float32 weights of the same shape, independent of the order of reports.

    Every array of a report has one value per parameter, whatever its name.
    """
    for scene in scenes(checked, "aggregate"):
        arrays = checked.call("order_arrays", scene.setup, scene.state)
        shapes = {name: np.shape(value) for name, value in arrays.items()}
        checked.require((problem := find_array_fault(arrays, shapes)) is None, f"sends {problem}")
        clients = scene.setup.ledger.clients
        for heard in (clients, clients[:1]):
            arrived = reports(scene.setup, heard, scene.state.round + 1)
            result = checked.call("aggregate", scene.setup, scene.state, arrived)
            pair = isinstance(result, tuple) and len(result) == 2
            checked.require(pair, f"aggregates to {kind(result)}; it must be (weights, next state)")
            weights, own = result
            same_kind = type(own) is type(scene.state.aggregate)
            checked.require(
                same_kind, f"keeps {type(own).__name__} but made {type(scene.state.aggregate).__name__} in init()"
            )
            array = isinstance(weights, np.ndarray) and weights.dtype == np.float32
            checked.require(array, f"aggregates to {kind(weights)}; it must be an array of float32")
            shape = scene.state.weights.shape
            checked.require(weights.shape == shape, f"aggregates to shape {weights.shape}, not {shape}")
            checked.require(bool(np.isfinite(weights).all()), "aggregates to weights that are not finite")
            _check_fold(checked, scene, arrived, result)
            for reordered in (arrived[::-1], arrived[1:] + arrived[:1]):
                again = checked.call("aggregate", scene.setup, scene.state, reordered)
                checked.require(same(result, again), "aggregates to other weights if the reports come in another order")


def _check_fold(checked: Checked, scene: Any, arrived: Sequence[ClientReport], result: Any) -> None:
    """Check that a policy with a fold computes the same bytes by it."""
    fold = checked.policy.fold(scene.setup, scene.state)
    if fold is not None:
        for report in sorted(arrived, key=lambda report: report.client):
            fold.add(report)
        checked.require(same(result, fold.finish()), "computes other weights or another state by its fold")


def check_model_average(checked: Checked) -> None:
    """Check a model average: finite float32 weights of the same shape, before the first round and after any."""
    for scene in scenes(checked, "model_average"):
        own = checked.call("after", scene.setup, scene.state, scene.state.weights + np.float32(1))
        same_kind = type(own) is type(scene.state.model_average)
        checked.require(
            same_kind, f"keeps {type(own).__name__} but made {type(scene.state.model_average).__name__} in init()"
        )
        model, shape = checked.call("model", scene.state), scene.state.weights.shape
        array = isinstance(model, np.ndarray) and model.dtype == np.float32 and model.shape == shape
        checked.require(array, f"returns {kind(model)}; it must be an array of float32 of shape {shape}")
        checked.require(bool(np.isfinite(model).all()), "returns a model that is not finite")


def check_late(checked: Checked) -> None:
    """Check a late policy: a rule, integers for clients and reports, and the same clients with weights over 0."""
    rule = checked.call("rule")
    checked.require(rule in get_args(LateRule), f"has the rule {rule!r}; it must be one of {get_args(LateRule)}")
    for scene in scenes(checked, "late"):
        setup, state = scene.setup, scene.state
        room, quorum = checked.call("room", setup, state), checked.call("quorum", setup, state, 1)
        checked.require(is_integer(room) and room <= setup.clients_per_round, f"has room for {room!r} clients")
        checked.require(is_integer(quorum) and quorum >= 1, f"closes with {quorum!r} reports")
        fresh = reports(setup, setup.ledger.clients, state.round + 1)
        for arrived in (fresh, tuple(replace(each, staleness=n) for n, each in enumerate(fresh))):
            sent = checked.call("weighted", setup, state, arrived)
            same_clients = [each.client for each in sent] == [each.client for each in arrived]
            checked.require(same_clients, "weighs other clients than those that reported")
            sound = all(is_real(each.weight) and 0 < each.weight < math.inf for each in sent)
            checked.require(sound, "gives a report a weight that is no finite number over 0")
            checked.require(all(np.isfinite(each.update).all() for each in sent), "makes an update that is not finite")


SERVER_CHECKS: dict[str, Callable[[Checked], None]] = {
    "clients": check_clients,
    "threshold": check_threshold,
    "pace": check_pace,
    "deadline": check_deadline,
    "aggregate": check_aggregate,
    "model_average": check_model_average,
    "late": check_late,
}


def check_samples(checked: Checked) -> None:
    """Check a sample selector: sorted, different sample numbers, at least one; None only without a loss list."""
    cap = checked.call("cap", np.array([1, 7, 40, 95]))
    checked.require(cap is None or (is_integer(cap) and cap >= 1), f"gives a cap of {cap!r}; it must be 1 or more")
    for size in (1, 7, 95):
        for losses in (None, *_loss_lists(size)):
            for asked in _orders():
                capped = replace(asked, sample_cap=None if cap is None else int(cap))
                chosen = checked.call("select", size, losses, 0.7, capped, stream(size, "samples"))
                if chosen is None:
                    checked.require(losses is None, "selects None although there is a loss list")
                else:
                    _check_indices(checked, chosen, size)


def check_work(checked: Checked) -> None:
    """Check a work policy: 0 to all batches, in time; at least one if all are in time."""
    for per_epoch, epochs in ((1, 1), (4, 5)):
        everything = per_epoch * epochs
        most = everything * (1 + checked.policy.repeats)
        for before_s, batch_s in ((0.0, 1.0), (3.5, 0.4), (math.inf, 1.0)):
            elapsed_s = partial(_elapsed_s, before_s, batch_s)
            for deadline_s in (0.1, 5.0, 8.5, 20.0, math.inf):
                done = checked.call("batches", elapsed_s, deadline_s, per_epoch, epochs)
                within = is_integer(done) and 0 <= done <= most
                checked.require(within, f"trains {done!r} batches; it must be a whole number from 0 to {most:g}")
                late = done > 0 and elapsed_s(done) > deadline_s
                checked.require(not late, f"trains {done} batches, which end after the deadline of {deadline_s} s")
                idle = done == 0 and elapsed_s(everything) <= deadline_s and math.isfinite(before_s)
                checked.require(not idle, f"trains nothing although all {everything} batches are in time")


def check_summary(checked: Checked) -> None:
    """Check a summarizer: a `Summary` of finite numbers."""
    for size in (1, 40):
        for losses in _loss_lists(size):
            for asked in _orders():
                seen = np.flatnonzero(~np.isnan(losses))
                summary = checked.call("summarize", losses, seen, 0.7, asked, stream(size, "noise"))
                checked.require(isinstance(summary, Summary), f"releases {kind(summary)}; it must be a Summary")
                listed = isinstance(summary.released, tuple) and all(map(math.isfinite, summary.released))
                checked.require(listed, f"releases {summary.released!r}; it must be a tuple of finite numbers")
                for field in (
                    each for each in fields(Summary) if each.name not in ("released", "read_by_server", "estimated")
                ):
                    value = getattr(summary, field.name)
                    finite = is_real(value) and math.isfinite(value)
                    checked.require(finite, f"releases {field.name} = {value!r}; it must be a finite number")


def check_compress(checked: Checked) -> None:
    """Check a compressor: the promised number of bytes, and a finite float32 update of the same shape."""
    for layout in (LAYOUT, Layout([("scale", ())]), Layout()):
        size = checked.call("encoded_bytes", layout)
        checked.require(is_integer(size) and size >= 0, f"gives {size!r} bytes; it must be a whole number from 0 on")
        residual = None
        for seed, scale in enumerate((0.0, 0.01, 100.0)):
            drawn = stream(0, "update").normal(size=layout.parameters)
            residual = _check_sent(checked, (scale * drawn).astype(np.float32), layout, seed, residual, size)


def _check_sent(checked: Checked, update: Weights, layout: Layout, seed: int, residual: Any, size: int) -> Any:
    """Send one update and return the residual."""
    sent = checked.call("encode", update, layout, seed, residual)
    pair = isinstance(sent, tuple) and len(sent) == 2 and isinstance(sent[0], bytes)
    checked.require(pair, f"encodes to {kind(sent)}; it must be (bytes, residual or None)")
    payload, kept_back = sent
    checked.require(len(payload) == size, f"encodes to {len(payload)} bytes, but promised {size}")
    if kept_back is not None:
        _check_vector(checked, kept_back, update, "keeps")
    _check_vector(checked, checked.call("decode", payload, layout, seed), update, "decodes to")
    return kept_back


def _check_vector(checked: Checked, vector: Any, update: Weights, does: str) -> None:
    array = isinstance(vector, np.ndarray) and vector.dtype == np.float32
    checked.require(array, f"{does} {kind(vector)}; it must be an array of float32")
    checked.require(vector.shape == update.shape, f"{does} shape {vector.shape}, not {update.shape}")
    checked.require(bool(np.isfinite(vector).all()), f"{does} values that are not finite")


def check_train(checked: Checked) -> None:
    """Check local training: declared arrays, finite float32 vectors, and a pure function of the run."""
    for layout in (LAYOUT, Layout([("scale", ())])):
        for question in ("client_state", "down_arrays", "up_arrays"):
            try:
                check_shapes(question, checked.call(question, layout))
            except BadSetting as error:
                checked.broken(f"declares wrong arrays: {error}")
        results = [_train_twice(checked, policy, layout) for _, policy in (("", checked.policy), *checked.twins)]
        for result in results[1:]:
            checked.require(same(results[0], result), "is not deterministic: a copy of it trains differently")


def _train_twice(checked: Checked, policy: Any, layout: Layout) -> Any:
    """Train two steps in each of two rounds; return the directions, updates and arrays of both."""
    rng, size = stream(0, "training"), layout.parameters
    results: list[Any] = []
    state: dict[str, Weights] = {}
    for number in range(2):
        work = ClientWork("ann", np.arange(20), 2, 10, 0.1, 0.0, None, number, train=policy)
        start, now = (rng.normal(size=size).astype(np.float32) for _ in range(2))
        arrays = _normals(rng, policy.down_arrays(layout))
        zeros = {name: np.zeros(shape, dtype=np.float32) for name, shape in policy.client_state(layout).items()}
        run = LocalRun(work, layout, start, zeros | state, arrays, not state, gradient_at=lambda weights: 2 * weights)
        for step in range(2):
            gradient = rng.normal(size=size).astype(np.float32)
            before = copy.deepcopy((gradient, now, run.start, run.arrays))
            direction = _call(checked, policy.gradient, gradient, now, run)
            _check_vector(checked, np.asarray(direction), start, "steps along")
            unchanged = same(before, (gradient, now, run.start, run.arrays))
            checked.require(unchanged, "changed its arguments in gradient(); return a new vector")
            results.append(direction)
            run.steps = step + 1
        update = _call(checked, policy.finish, now - start, run)
        _check_vector(checked, update, start, "sends")
        for does, got, shapes in (
            ("keeps", run.state, policy.client_state(layout)),
            ("sends", run.sent, policy.up_arrays(layout)),
        ):
            made = {name: np.asarray(value) for name, value in got.items()}
            checked.require((problem := find_array_fault(made, shapes)) is None, f"{does} {problem}")
        state = dict(run.state)
        results.append((update, state, dict(run.sent)))
    return results


def _normals(rng: np.random.Generator, shapes: Shapes) -> dict[str, Weights]:
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _call(checked: Checked, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        checked.broken(f"raised an error in {function.__name__}()", error)


def check_part(checked: Checked) -> None:
    """Check a part policy: one truth value per parameter, at least one of them true, and a share over 0."""
    checked.require(
        checked.policy.outside in get_args(Outside), f"has outside = {checked.policy.outside!r}; {get_args(Outside)}"
    )
    for client in ("ann", "bob"):
        for rank in (0.0, 0.5, 0.99):
            mask = checked.call("mask", LAYOUT, client, rank, order())
            truths = isinstance(mask, np.ndarray) and mask.dtype == np.bool_
            checked.require(truths, f"returns {kind(mask)} as a mask; it must be an array of bool")
            checked.require(mask.shape == (PARAMETERS,), f"returns a mask of shape {mask.shape}, not ({PARAMETERS},)")
            checked.require(bool(mask.any()), "leaves nothing to train")
            for flops in ({}, {name: 1 / len(LAYOUT) for name, _ in LAYOUT}):
                share = checked.call("batch_share", LAYOUT, mask, flops)
                sound = is_real(share) and 0 < share < math.inf
                checked.require(sound, f"gives a batch share of {share!r}; it must be over 0")


CLIENT_CHECKS: dict[str, Callable[[Checked], None]] = {
    "samples": check_samples,
    "work": check_work,
    "summary": check_summary,
    "compress": check_compress,
    "train": check_train,
    "part": check_part,
}


def _elapsed_s(before_s: float, batch_s: float, batches: int) -> float:
    return before_s + batch_s * batches


def _loss_lists(size: int) -> Iterator[FloatArray]:
    """Yield different losses, equal losses, and losses that are partly unknown."""
    losses = stream(size, "losses").exponential(size=size)
    yield losses
    yield np.ones(size)
    if size > 1:
        yield np.where(np.arange(size) % 3 == 0, np.nan, losses)


def _orders() -> Iterator[Order]:
    """Yield orders with low, medium and high thresholds and deadlines."""
    for loss_threshold in (0.0, 0.5, 1000.0):
        for deadline_s in (0.5, 6.0, math.inf):
            yield order(loss_threshold=loss_threshold, deadline_s=deadline_s)


def _check_indices(checked: Checked, chosen: Any, size: int) -> None:
    checked.require(is_indices(chosen), f"selects {kind(chosen)}; sample numbers must be a 1-d array of integers")
    checked.require(len(chosen) > 0, f"selects no sample of {size}")
    inside = chosen.min() >= 0 and chosen.max() < size
    checked.require(bool(inside), f"selects samples outside 0 to {size - 1}: {chosen.tolist()}")
    checked.require(bool((np.diff(chosen) > 0).all()), f"selects unsorted or repeated samples: {chosen.tolist()}")


SLOT_CHECKS = {**SERVER_CHECKS, **CLIENT_CHECKS}
"""A check for every slot; it raises `PolicyError` if a policy breaks the contract."""
SIMILAR = 0.85
"""Similarity of two names (0 to 1) from which on one is taken for a misspelling of the other."""


def check_policy(policy: Any, slot: str | None = None) -> str:
    """Check a policy on small made-up runs.

    Every policy derives from the base class of its slot, is deterministic, changes neither its arguments nor itself,
    draws from no global generator, and can be copied and pickled. `fedbalancer.core.contracts` documents what each slot
    requires in addition.

    Args:
        policy: The policy to check.
        slot: The slot to check it for. Default: the slot whose base class it derives from.

    Returns:
        The slot.

    Raises:
        PolicyError: If the policy breaks the contract.

    >>> from fedbalancer.server.deadline import FixedDeadline
    >>> check_policy(FixedDeadline(1.5))
    'deadline'
    """
    if slot is not None and slot not in SLOTS:
        raise UnknownName("slot", slot, SLOTS)
    if inspect.isclass(policy):
        raise PolicyError(f"{policy.__name__} is a class; give a policy made from it, as in {policy.__name__}()")
    slot = _find_slot(policy) if slot is None else slot
    if not isinstance(policy, SLOTS[slot]):
        raise PolicyError(f"{type(policy).__name__} is not a policy for {slot}: {base_advice(slot, policy)}")
    _check_answers(policy, slot)
    _check_names(policy, slot)
    SLOT_CHECKS[slot](Checked.of(policy))
    return slot


def _find_slot(policy: Any) -> str:
    """Return the slot whose base class the policy derives from."""
    fitting = [slot for slot, base in SLOTS.items() if isinstance(policy, base)]
    if len(fitting) == 1:
        return fitting[0]
    who = type(policy).__name__
    if fitting:
        raise PolicyError(f"{who} fits several slots: {', '.join(fitting)}; say which with slot=")
    bases = ", ".join(f"{base.__name__} ({slot})" for slot, base in SLOTS.items())
    raise PolicyError(f"{who} must derive from a base class of fedbalancer.core.contracts: {bases}")


def _check_answers(policy: Any, slot: str) -> None:
    """Methods must take the declared arguments; a property must not be a method."""
    who = type(policy).__name__
    for name, declared in questions(SLOTS[slot]).items():
        answer = getattr(policy, name)
        if isinstance(declared, property):
            if callable(answer):
                raise PolicyError(f"{who}.{name} must be a value or a property, not a method")
            continue
        parameters = list(inspect.signature(declared).parameters)[1:]
        try:
            inspect.signature(answer).bind(*parameters)
        except TypeError:
            raise PolicyError(f"{who}.{name}() must take ({', '.join(parameters)})") from None


def _check_names(policy: Any, slot: str) -> None:
    """Refuse an attribute that looks like a misspelt question: nobody would ever ask it."""
    declared = questions(SLOTS[slot])
    for name in sorted({*dir(type(policy)), *getattr(policy, "__dict__", ())} - declared.keys()):
        if name.startswith("_"):
            continue
        if similar := difflib.get_close_matches(name, declared, n=1, cutoff=SIMILAR):
            raise PolicyError(
                f"{type(policy).__name__}.{name} is never used; did you mean {similar[0]}, which "
                f"{SLOTS[slot].__name__} declares?"
            )
