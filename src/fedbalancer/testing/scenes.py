"""Small made-up runs with states that a policy may meet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import (
    ClientReport,
    FailedClient,
    Layout,
    Ledger,
    Order,
    RoundPlan,
    RoundResult,
    ServerState,
    Setup,
    Summary,
    Timings,
    Weights,
)
from fedbalancer.methods.table import Method, method
from fedbalancer.server.server import Server
from fedbalancer.store.codec import decode_state, encode_state
from fedbalancer.testing.checked import Checked, same

LAYOUT = Layout([("dense.weight", (4, 3)), ("dense.bias", (4,))])
PARAMETERS = LAYOUT.parameters

SHORT = 6
"""Rounds of a short run: one of every kind, and two more."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A state, and the next round.

    Args:
        setup: Constants of the run.
        state: State before the round.
        result: Result of the round.
    """

    setup: Setup
    state: ServerState
    result: RoundResult


def scenes(checked: Checked, slot: str, rounds: int = SHORT) -> Iterator[Scene]:
    """Yield the states of short runs in which the policy keeps its own state, which is checked as well."""
    for setup, length in ((make_setup(7, 3), rounds), (make_setup(2, 5), SHORT), (make_setup(1, 1), SHORT)):
        fresh = checked.call("init", setup)
        server = _server(checked, slot, setup)
        start = state = _first_state(server)
        check_saving(checked, slot, state, start)
        for _ in range(length):
            scene = Scene(setup, state, _round(setup, state))
            yield scene
            if slot not in ("aggregate", "model_average"):  # these return their next state with the weights
                known = replace(state, ledger=state.ledger.record(scene.result))
                own = checked.call("observe", setup, known, scene.result)
                checked.require(
                    type(own) is type(fresh),
                    f"returns {type(own).__name__} from observe() but {type(fresh).__name__} from init()",
                )
            state = server.observe(state, scene.result)
            check_saving(checked, slot, state, start)


def first_state(checked: Checked, slot: str, setup: Setup) -> ServerState:
    """Return the state before the first round, with the policy in its slot."""
    return _first_state(_server(checked, slot, setup))


def _server(checked: Checked, slot: str, setup: Setup) -> Server:
    played: Method = method("fedbalancer").with_policies(**{slot: checked.policy})
    return Server(played.server, setup)


def _first_state(server: Server) -> ServerState:
    return server.init(stream(server.setup.seed, "weights").normal(size=PARAMETERS).astype(np.float32))


def check_saving(checked: Checked, slot: str, state: ServerState, start: ServerState) -> None:
    """Check that the policy's state is None or a frozen dataclass that a checkpoint restores."""
    own = getattr(state, slot)
    frozen = is_dataclass(own) and bool(getattr(type(own), "__dataclass_params__").frozen)  # noqa: B009 - not in the stubs
    checked.require(own is None or frozen, f"keeps a state that is neither None nor a frozen dataclass: {own!r}")
    try:
        blob, arrays = encode_state(state)
        back = getattr(decode_state(json.loads(json.dumps(blob)), arrays, start), slot)
    except (TypeError, ValueError, FedBalancerError) as error:
        checked.broken("keeps a state that cannot be saved in a checkpoint", error)
    checked.require(same(own, back), f"keeps a state that a checkpoint does not restore: {own!r}")


def order(round_number: int = 1, **changes: Any) -> Order:
    """Return an order with some values changed."""
    plain = Order(round=round_number, loss_threshold=0.5, deadline_s=60.0, epochs=2, batch_size=10, seed=0)
    return replace(plain, **changes)


def reports(setup: Setup, clients: tuple[str, ...], round_number: int) -> tuple[ClientReport, ...]:
    """Return a plausible report of each client."""
    return tuple(_report(setup, client, round_number) for client in clients)


def make_setup(clients: int, clients_per_round: int, seed: int | None = None, reverse: bool = False) -> Setup:
    """Return clients of different sizes and speeds; `reverse` reverses who has which data and device."""
    rng = stream(clients, "setup")
    names = tuple(f"client-{row}" for row in range(clients))
    sizes, network_s = rng.integers(1, 90, size=clients), rng.uniform(1, 9, clients)
    batch_s, order = rng.uniform(0.1, 2.0, (clients, 10)), np.arange(clients)[:: -1 if reverse else 1]
    ledger = Ledger.start(names, sizes[order], network_s[order], batch_s[order])
    seed = clients if seed is None else seed
    return Setup(ledger, epochs=2, batch_size=10, clients_per_round=clients_per_round, seed=seed)


def _round(setup: Setup, state: ServerState) -> RoundResult:
    """Return a round in which all clients report, some, none, or none were selected."""
    number, kind = state.round + 1, state.round % 4
    rng = stream(setup.seed, "round", number)
    count = 0 if kind == 3 else min(setup.clients_per_round, len(setup.ledger.clients))
    rows = np.sort(rng.choice(len(setup.ledger.clients), size=count, replace=False))
    cohort = tuple(setup.ledger.clients[row] for row in rows)
    arrived = {0: count, 1: max(count - 1, 1), 2: 0, 3: 0}[kind]
    deadline_s = math.inf if number % 5 == 0 else 60.0
    plan = RoundPlan(order(number, deadline_s=deadline_s, loss_threshold=0.0 if number < 3 else 0.4), cohort, count)
    missing = tuple(FailedClient(client, "train") for client in cohort[arrived:])
    return RoundResult(plan, reports(setup, cohort[:arrived], number), missing, seconds=45.0, window_s=20.0)


def _report(setup: Setup, client: str, round_number: int) -> ClientReport:
    rng = stream(setup.seed, "report", round_number, client)
    trained = int(setup.ledger.size[setup.ledger.position[client]])
    loss = 2.0 / round_number
    summary = Summary(0.1 * loss, 1.5 * loss, loss * trained, trained, trained, loss**2 * trained, trained, 0.8)
    update = (0.1 * rng.normal(size=PARAMETERS)).astype(np.float32)
    arrays = AnyArrays(f"{client} {round_number}")
    return ClientReport(client, update, float(trained), 2.0, summary, Timings(1.0, 0.0, 20.0, 2.0), arrays=arrays)


class AnyArrays(dict[str, Weights]):
    """Arrays of a report under every name: vectors with one value per parameter.

    Args:
        purpose: Makes the values different.
    """

    def __init__(self, purpose: str) -> None:
        super().__init__()
        self.purpose = purpose

    def __missing__(self, name: str) -> Weights:
        return (0.1 * stream(0, f"{self.purpose} {name}").normal(size=PARAMETERS)).astype(np.float32)

    def __reduce__(self) -> tuple[type[AnyArrays], tuple[str]]:
        return AnyArrays, (self.purpose,)
