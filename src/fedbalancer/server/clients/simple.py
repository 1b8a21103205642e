"""Client selectors with one rule: uniform, by loss, FedCS, power-of-choice, least selected and Pisces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import LOSSES, NOTHING, ClientSelector, Private
from fedbalancer.core.fields import Multiple, Share, UpTo100
from fedbalancer.core.randomness import draw_weighted, pick_smallest, stream
from fedbalancer.core.types import CountArray, FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.clients.oort import split_explored, statistical_utility
from fedbalancer.server.expected import expected_s


@dataclass(frozen=True)
class Uniform(ClientSelector):
    """Selects K clients uniformly without replacement (FedAvg, Prox, SampleSelection).

    With the same seed, all methods that use it select the same cohorts, so their results are directly comparable.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t").clients
        Uniform()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        return np.sort(rng.choice(available, size=count, replace=False))


@dataclass(frozen=True)
class Overcommitted(ClientSelector):
    """Invites `overcommit` K clients uniformly, for deadlines that close a round with the first K reports.

    This is the random selection that Oort was compared with.

    Args:
        overcommit: Invited clients, as a multiple of K.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg[clients=Overcommitted,deadline=FirstReports]").clients
        Overcommitted(overcommit=1.3)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    overcommit: Multiple = 1.3

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        # 1e-9 guards against 1.3 * 10 = 12.9999...
        count = min(int(self.overcommit * setup.clients_per_round + 1e-9), len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        return np.sort(rng.choice(available, size=count, replace=False))


@dataclass(frozen=True)
class ByLoss(ClientSelector):
    """Ours, used by canter: draws clients in proportion to mean loss times the square root of their number of samples.

    A client without a report counts with the highest loss. Every client can be selected in every round, and speed does
    not matter. Oort's scheme, which the paper uses, selects the best few clients repeatedly; where clients' labels
    differ, the model then follows these few.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("canter").clients
        ByLoss()
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        rng = stream(setup.seed, "clients", state.round + 1)
        losses = np.maximum(state.ledger.loss_mean[available], 1e-9)
        highest = np.nanmax(losses) if np.isfinite(losses).any() else 1.0
        weights = np.where(np.isnan(losses), highest, losses) * np.sqrt(state.ledger.size[available])
        return np.sort(available[draw_weighted(weights, min(setup.clients_per_round, len(available)), rng)])


@dataclass(frozen=True)
class FedCS(ClientSelector):
    """FedCS: K fastest of `candidates` K random clients (Nishio and Yonetani, 2019).

    The paper adds clients greedily by the time they cost, until the round's time is used up. There, uploads are
    sequential, so every client lengthens the round. Here, as for every method, uploads are parallel: the greedy order
    is the order of expected durations, and for any deadline the K fastest candidates contain the most clients that meet
    it. FedCS therefore needs no particular deadline policy; its baseline is `FixedDeadline(1)`.

    Difference from the paper: always K clients are invited, whether more or fewer of them fit the deadline.

    Args:
        candidates: Number of candidates, as a multiple of K.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+fedcs").clients
        FedCS(candidates=2.0)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    candidates: Multiple = 2.0

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        asked = min(max(int(self.candidates * setup.clients_per_round + 1e-9), count), len(available))
        rows = np.sort(rng.choice(available, size=asked, replace=False))
        return np.sort(rows[pick_smallest(expected_s(setup, state.ledger, rows), count, rng)])


@dataclass(frozen=True, eq=False)
class PowerOfChoiceState:
    """State of `PowerOfChoice`.

    Args:
        invited: Whether each client has been invited at least once.
    """

    invited: NDArray[np.bool_]


@dataclass(frozen=True)
class PowerOfChoice(ClientSelector):
    """Power-of-choice: of `candidates` K clients, the K with the highest loss (Cho, Wang and Joshi, 2020).

    Candidates are drawn without replacement in proportion to their number of samples. This is the paper's rpow-d: a
    client's loss is the one in its last report, and infinite before its first invitation, so no client is asked for
    extra work. With d = K the draw depends on size only; a large d selects the highest losses.

    Differences from the paper: the loss is the mean over the trained samples, each when first seen in that training,
    instead of over all local iterations. Ties, infinite losses included, are broken at random. In the paper every
    invited client reports; here, a client that was invited but never reported counts with the mean loss of the other
    candidates, because an infinite loss would invite the same slow clients again and again.

    Args:
        candidates: Number of candidates d, as a multiple of K.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+powerofchoice").clients
        PowerOfChoice(candidates=2.0)
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    candidates: Multiple = 2.0

    def init(self, setup: Setup) -> PowerOfChoiceState:
        return PowerOfChoiceState(np.zeros(len(setup.ledger.clients), dtype=np.bool_))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> PowerOfChoiceState:
        invited = state.clients.invited.copy()
        invited[state.ledger.rows(result.plan.cohort)] = True
        return PowerOfChoiceState(invited)

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        asked = max(int(self.candidates * setup.clients_per_round + 1e-9), count)
        rows = available[draw_weighted(state.ledger.size[available].astype(np.float64), asked, rng)]
        return np.sort(rows[pick_smallest(-self._losses(state, rows), count, rng)])

    @staticmethod
    def _losses(state: ServerState, rows: IndexArray) -> FloatArray:
        losses = state.ledger.loss_mean[rows]
        silent = np.isnan(losses)
        usual = 0.0 if silent.all() else losses[~silent].mean()
        return np.where(silent, np.where(state.clients.invited[rows], usual, np.inf), losses)


@dataclass(frozen=True, eq=False)
class LeastSelectedState:
    """State of `LeastSelected`.

    Args:
        times: How many times each client was selected.
    """

    times: CountArray


@dataclass(frozen=True)
class LeastSelected(ClientSelector):
    """REFL's participant selection: the K available clients that were selected least often, ties at random.

    Abdelmoniem et al., "REFL: Resource-Efficient Federated Learning", EuroSys 2023, Intelligent Participant Selection.

    Difference from the paper: there, clients predict their own availability, the least available are selected, and a
    selected client pauses for five rounds. Here, no client predicts anything. A rarely available client has been
    selected rarely, so it is selected when it is available. If all clients are always available, they take turns.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("refl").clients
        LeastSelected()
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    def init(self, setup: Setup) -> LeastSelectedState:
        return LeastSelectedState(np.zeros(len(setup.ledger.clients), dtype=np.int32))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LeastSelectedState:
        times = state.clients.times
        if len(times) < len(state.ledger.clients):  # clients may join during a Flower run
            times = np.concatenate([times, np.zeros(len(state.ledger.clients) - len(times), dtype=np.int32)])
        times = times.copy()
        times[state.ledger.rows(result.plan.cohort)] += 1
        return LeastSelectedState(times)

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        count = min(setup.clients_per_round, len(available))
        rng = stream(setup.seed, "clients", state.round + 1)
        return np.sort(available[pick_smallest(state.clients.times[available].astype(np.float64), count, rng)])


RECENT_REPORTS = 5
"""Number of reports over which Pisces averages a client's staleness."""


@dataclass(frozen=True, eq=False)
class PiscesState:
    """State of `Pisces`.

    Args:
        exploration: Probability that a place goes to a client that has never reported.
        staleness: Staleness of each client's last five reports; NaN for reports that do not exist yet.
    """

    exploration: float
    staleness: FloatArray


@dataclass(frozen=True)
class Pisces(ClientSelector):
    """Pisces: the clients with the highest utility, discounted by how stale their reports usually are.

    The utility of a client that has reported is |B| sqrt(mean squared loss), as in Oort, times (1 + s)^-`power`. s is
    the mean staleness of its last five reports. With probability `exploration` a place goes to a random client that has
    never reported instead. Speed does not count: an asynchronous server does not wait for slow clients (Jiang, Wang, Li
    and Li, "Pisces: Efficient Federated Learning via Guided Asynchronous Training", SoCC 2022, section 4).

    Differences from the paper: clients with suspicious losses are not excluded (its section on robustness). The
    exploration probability decays once per step of the server.

    Args:
        power: Strength of the discount by staleness.
        exploration: Initial probability of exploring.
        decay: Factor of that probability per step.
        least: Probability at which the decay stops.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("pisces").clients
        Pisces(power=0.5, exploration=0.9, decay=0.98, least=0.3)
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    power: UpTo100 = 0.5
    exploration: Share = 0.9
    decay: Share = 0.98
    least: Share = 0.3

    def init(self, setup: Setup) -> PiscesState:
        return PiscesState(self.exploration, np.full((len(setup.ledger.clients), RECENT_REPORTS), np.nan))

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> PiscesState:
        own: PiscesState = state.clients
        joined = len(state.ledger.clients) - len(own.staleness)  # clients may join during a Flower run
        staleness = np.concatenate([own.staleness, np.full((joined, RECENT_REPORTS), np.nan)])
        for report in result.reports:
            row = state.ledger.position[report.client]
            staleness[row] = (*staleness[row, 1:], report.staleness)
        return PiscesState(max(own.exploration * self.decay, min(self.least, self.exploration)), staleness)

    def utilities(self, state: ServerState, rows: IndexArray) -> FloatArray:
        """Return the discounted utility of clients that have reported.

        Args:
            state: The server's state.
            rows: Ledger rows of these clients.
        """
        ledger = state.ledger
        trained = ledger.recent_trained[rows, -1]
        recent = state.clients.staleness[rows]
        usual = np.nansum(recent, axis=1) / np.maximum((~np.isnan(recent)).sum(axis=1), 1)
        utility = statistical_utility(trained, ledger.over_count[rows], ledger.over_sumsq[rows])
        return np.asarray(utility * (1 + usual) ** -self.power)

    def rank(self, setup: Setup, state: ServerState, candidates: IndexArray, purpose: str = "clients") -> IndexArray:
        """Return the candidates, first choice first.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            candidates: Ledger rows.
            purpose: Purpose of the random numbers.
        """
        rng = stream(setup.seed, purpose, state.round + 1)
        known, unknown = split_explored(state.ledger, np.sort(candidates))
        explores = rng.random(len(candidates)) < state.clients.exploration
        unknown = rng.permutation(unknown)
        known = known[np.argsort(-self.utilities(state, known), kind="stable")]
        places = np.zeros(len(candidates), dtype=bool)
        places[np.flatnonzero(explores)[: len(unknown)]] = True
        places[np.flatnonzero(~places)[len(known) :]] = True  # unknown clients for whom no place explores come last
        ranked = np.empty(len(candidates), dtype=np.int64)
        ranked[places], ranked[~places] = unknown, known
        return ranked

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        return np.sort(self.rank(setup, state, available)[: setup.clients_per_round])

    def rank_reserve(self, setup: Setup, state: ServerState, candidates: IndexArray) -> IndexArray:
        return self.rank(setup, state, candidates, "reserve")
