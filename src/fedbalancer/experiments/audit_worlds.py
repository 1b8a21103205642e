"""Two neighbouring data sets for the privacy audit, played through the shipped server, engine, loop and clients.

Only the losses are planted, because a task may have any. The adversary knows both data sets, the seed, the models and
all other clients' data, but not the noise. It sees everything in a report except what docs/explanation/privacy.md lists
as not covered. Nothing here knows which numbers a mechanism protects, or how.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedbalancer.core.errors import BadSetting, MissingData
from fedbalancer.core.randomness import stream
from fedbalancer.core.settings import Settings
from fedbalancer.core.types import (
    ClientReport,
    ClientWork,
    Evaluation,
    FloatArray,
    Layout,
    Order,
    RoundPlan,
    RoundResult,
    ServerState,
    TrainResult,
    Weights,
)
from fedbalancer.data import Task
from fedbalancer.experiments.simulation import Simulation, build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.composition import Method
from fedbalancer.privacy.audit import flatten
from fedbalancer.server.loop import rounds
from fedbalancer.server.server import Server
from fedbalancer.simulation.engine import SimulatedEngine
from fedbalancer.simulation.state import Memories, PendingReports
from fedbalancer.store.privacy import privacy_rows

Claim = Literal["metadata", "model", "whole"]
"""The printed figure: epsilon of the metadata, of the models, or of both (columns of privacy.parquet)."""
Place = Literal["simulator", "flower"]
Losses = Mapping[str, FloatArray]
"""The losses of every client's samples; NaN for an entry that is not known."""

WHO = "target"
"""The client whose data differ."""
NOT_COVERED = ("update", "part", "timings", "size")
"""Fields of a report that no epsilon of the metadata covers: the update and which parameters it has, arrival times, and
the number of samples."""
NOT_COVERED_ON_FLOWER = ("arrays", "busy-s", "forward-s", "train-s", "size")
"""The same in a message."""
SEED, PARAMETERS = 1, 4
BIGGEST_LOSS = 1e4


LONG_S = 1e4
"""A deadline that every client meets."""


@dataclass(frozen=True)
class Situation:
    """The conditions under which the client's rounds are played.

    Args:
        name: Name of the situation.
        samples: Number of the client's samples.
        batch_s: Seconds of its batches; those of other clients take 1.
        forward_pass: The method's setting of that name.
        clients_per_round: Clients per round.
        others: Number of other clients.
        rounds: Number of rounds.
        order: Fields of every order that the adversary, who is the server, sets itself.
        absent: Whether the neighbour lacks the client's report, instead of having an update of zeros.
        place: What plays the client's round. On Flower, noise that comes from the seed is known to everyone.
    """

    name: str = "plain"
    samples: int = 30
    batch_s: float = 0.25
    forward_pass: Literal["first", "every"] = "every"
    clients_per_round: int = 3
    others: int = 2
    rounds: int = 2
    order: Mapping[str, Any] = field(default_factory=dict)
    absent: bool = False
    place: Place = "simulator"


@dataclass(frozen=True)
class Case:
    """One printed figure to audit.

    Args:
        mechanism: Name of the mechanism.
        method: Name of the method.
        claim: The figure.
        situation: What happens to the client.
        played: The method with its mechanism.
        plays: Number of plays of each data set.
    """

    mechanism: str
    method: str
    claim: Claim
    situation: Situation
    played: Method = field(repr=False)
    plays: int = 80

    @property
    def unit(self) -> str:
        """The unit that differs: one sample, one entry of the loss list, or one client."""
        if self.claim == "model":
            return "client"
        return self.played.summary.release(self.situation.forward_pass == "every").unit

    def printed(self, releases: int, delta: float) -> float:
        """Return the figure that a run with this many releases of the client prints.

        Args:
            releases: Number of releases.
            delta: The run's setting `privacy_delta`.

        Raises:
            MissingData: If dp-accounting is not installed.
        """
        settings = Settings(privacy_delta=delta)
        (row,) = privacy_rows(self.played, settings, [WHO], {WHO: releases})
        figures = {"metadata": row.epsilon, "model": row.model_epsilon, "whole": row.whole_epsilon}
        epsilon = figures[self.claim]
        if epsilon is None:
            raise MissingData("the audit needs dp-accounting: pip install 'fedbalancer[privacy]'")
        return epsilon


EXTREMES = (0.0, 1.1, 4.9, BIGGEST_LOSS)
"""Losses of a sample that is added, or of all samples of a client."""


def neighbours(unit: str, situation: Situation) -> list[tuple[Losses, Losses]]:
    """Return pairs of neighbouring data sets, with ordinary and with extreme losses.

    Args:
        unit: What differs: one sample is added, one entry becomes known, or all data of the client change.
        situation: How many samples and other clients there are.
    """
    rng, samples = np.random.default_rng(5), situation.samples
    others = {f"c{number}": rng.exponential(size=20 + 10 * number) for number in range(situation.others)}
    ordinary = rng.exponential(size=samples)
    lists = np.where(rng.random(samples) < 0.5, 0.2, 4.8), ordinary
    pairs: list[tuple[Losses, Losses]] = []
    for mine in lists:
        for value in EXTREMES:
            if unit == "client":
                both = mine, np.full(samples, value)
            elif unit == "loss":
                both = np.append(mine, np.nan), np.append(mine, value)
            else:
                both = mine, np.append(mine, value)
            pairs.append(({**others, WHO: both[0]}, {**others, WHO: both[1]}))
    return pairs


@dataclass(frozen=True)
class Play:
    """The numbers that the adversary sees in one play.

    Args:
        rounds: Rounds in which the client's report arrived.
        numbers: All numbers that it sees.
        releases: Releases that the accountant counted.
    """

    rounds: tuple[int, ...]
    numbers: tuple[float, ...]
    releases: int


class World:
    """One data set of a case in the simulator, to be played many times.

    Args:
        case: The case.
        losses: The losses of every client.
        is_neighbour: Whether this is the data set without the client's update, for the claim of the model.
        noise_is_known: Whether all noise comes from the run's seed, as it would on Flower.
    """

    def __init__(self, case: Case, losses: Losses, is_neighbour: bool = False, noise_is_known: bool = False) -> None:
        self._case, self._noise_is_known = case, noise_is_known
        self._simulation, self._engine = _build(case, losses)
        self._engine.fixed_models, self._engine.fixed_order = case.claim == "metadata", case.situation.order
        if self._simulation.method.summary.needs_secure_aggregation and case.situation.batch_s == Situation.batch_s:
            # Deadlines depend on sizes, which are not protected. Nobody is late, so all sums have the same clients.
            self._engine.fixed_order = {"deadline_s": LONG_S, **case.situation.order}
        if is_neighbour and case.claim == "model":
            self._engine.silence = "absent" if case.situation.absent else "zero"
        self._start = self._simulation.server.init(self._simulation.executor.initial_weights(SEED))

    def play(self, noise_seed: int) -> Play:
        """Play all rounds once.

        Args:
            noise_seed: Seed of the noise.
        """
        engine, server = self._engine, self._simulation.server
        noise_seed = SEED if self._noise_is_known else noise_seed
        engine.restart(noise_seed)
        observed = ObservedServer(server.policies, server.setup, noise_seed)
        played = rounds(observed, engine, self._start, lambda state: state.round >= self._case.situation.rounds)
        models = [state.weights for state, _ in played]
        mine = [(number, report) for number, report in engine.sent if report.client == WHO]
        releases = len(mine) if engine.spending is None else engine.spending.releases[WHO]
        arrived = mine[:releases]
        numbers: list[float] = []
        if self._case.claim != "model":
            for number, report in arrived:
                numbers += flatten(self._visible(number, report), NOT_COVERED)
        if self._case.claim != "metadata":
            numbers += flatten(np.diff([self._start.weights, *models], axis=0))
        seen = () if self._case.claim == "model" else tuple(number for number, _ in arrived)
        return Play(seen, tuple(numbers), releases)

    def _visible(self, number: int, report: ClientReport) -> ClientReport:
        """Return what the server sees of a report: under secure aggregation only the sum of all clients' numbers."""
        if not self._simulation.method.summary.needs_secure_aggregation:
            return report
        everybody = [each.summary.released for at, each in self._engine.sent if at == number]
        total = tuple(np.sum(everybody, axis=0).tolist())
        return replace(report, summary=replace(report.summary, released=total))


def _build(case: Case, losses: Losses) -> tuple[Simulation, ObservedEngine]:
    samples = {
        client: (np.zeros((len(each), 1), dtype=np.float32), np.zeros(len(each), dtype=np.int64))
        for client, each in losses.items()
    }
    task = Task(
        clients=samples, test=samples[WHO], model=_model, name="audit", model_bytes=4 * PARAMETERS, latency="har",
        batch_size=10, epochs=2, clients_per_round=case.situation.clients_per_round, classes=None,
    )  # fmt: skip
    spec = RunSpec(task=task, method=case.played, seed=SEED, devices=SteadyDevices(case.situation.batch_s))
    executor: Any = PlantedExecutor(losses)
    simulation = build(spec, task, executor=executor, engine_class=ObservedEngine)
    simulation.engine.classes = None
    engine: Any = simulation.engine
    return simulation, engine


def _model() -> Any:
    """Return a module with the planted parameters. It is not trained, but methods of parts count its operations."""
    import torch

    class Planted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(PARAMETERS))

        def forward(self, features: Any) -> Any:
            return features @ self.w[:2].reshape(1, 2)

    return Planted()


class ObservedEngine(SimulatedEngine):
    """The simulated engine, with every report kept as it was sent.

    Attributes:
        noise_seed: Seed of the noise.
        fixed_models: Whether the server sends models of the adversary's choice.
        fixed_order: Changes of every order.
        silence: What the client's report becomes: "" for no change, "zero" for an update of zeros, "absent" for none.
        sent: The reports, each with its round.
    """

    noise_seed = 0
    fixed_models = False
    fixed_order: Mapping[str, Any] = {}
    silence = ""
    sent: list[tuple[int, ClientReport]]

    def restart(self, noise_seed: int) -> None:
        """Forget everything, for the next play."""
        self.memory, self.pending = Memories(self.ledger), PendingReports()
        if self.spending is not None:
            self.spending.releases.clear()
        self.noise_seed, self.sent = noise_seed, []

    def _noise(self, order: Order, client: str) -> np.random.Generator:
        return stream(self.noise_seed, "noise", order.round, client)

    def _report(self, rounds: Any, attempts: Any, timings: Any, place: int, trained: TrainResult) -> Any:
        report, memory = super()._report(rounds, attempts, timings, place, trained)
        self.sent.append((rounds[place].order.round, report))
        return report, memory

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float, fold: Any = None) -> RoundResult:
        """Run a round."""
        model = np.full(PARAMETERS, 0.2 * plan.order.round, dtype=np.float32) if self.fixed_models else weights
        result = super().run(replace(plan, order=replace(plan.order, **self.fixed_order)), model, clock_s)
        if self.silence == "absent":
            return replace(result, reports=tuple(each for each in result.reports if each.client != WHO))
        if self.silence == "zero":
            return replace(result, reports=tuple(map(_without_update, result.reports)))
        return result


def _without_update(report: ClientReport) -> ClientReport:
    return replace(report, update=np.zeros_like(report.update)) if report.client == WHO else report


@dataclass(frozen=True)
class ObservedServer(Server):
    """A server whose model gets its noise from a seed of its own, which differs between plays.

    Args:
        policies: One policy per server slot.
        setup: Constants of the run.
        noise_seed: The seed.
    """

    noise_seed: int = 0

    def observe(self, state: ServerState, result: RoundResult) -> ServerState:
        """Return the state after a round."""
        return Server(self.policies, replace(self.setup, seed=self.noise_seed)).observe(state, result)


@dataclass(frozen=True)
class SteadyDevices:
    """Devices that always take the same time.

    Args:
        batch_s: Seconds per batch of the audited client; those of other clients take 1.
    """

    batch_s: float

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Return the seconds of download plus upload."""
        return 2.0

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """Return measured batches."""
        return np.full(count, self.batch_s if client == WHO else 1.0)

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> SteadyDraw:
        """Return the seconds of a round."""
        return SteadyDraw(self.batch_s if client == WHO else 1.0)


@dataclass(frozen=True)
class SteadyDraw:
    """Seconds of a device.

    Args:
        batch_s: Seconds per batch.
        download_s: Seconds of the download.
        upload_s: Seconds of the upload.
    """

    batch_s: float
    download_s: float = 1.0
    upload_s: float = 1.0


class PlantedExecutor:
    """Trains nothing: losses are planted, and updates depend on the trained samples as much as possible.

    Args:
        losses: The losses of every client.

    Attributes:
        one_more_reverses: Whether one more sample reverses an update, which moves a sum by twice its norm.
    """

    one_more_reverses = False
    layout = Layout([("w", (PARAMETERS,))])

    def __init__(self, losses: Losses) -> None:
        self._losses = losses

    def initial_weights(self, seed: int) -> Weights:
        """Return the weights before the first round."""
        return np.zeros(PARAMETERS, dtype=np.float32)

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        """Return the losses, which the model scales: for all samples of all clients by the same factor."""
        factor = math.exp(0.1 * math.tanh(float(weights[0])))
        return [self._losses[client] * factor for client in clients]

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]:
        """Return results whose updates are long, and differ between clients and between high and low losses."""
        return [self._train(weights, work) for work in works]

    def train_each(self, weights: Weights, works: Sequence[ClientWork]) -> Iterator[TrainResult]:
        """Yield the same results."""
        yield from self.train(weights, works)

    def _train(self, weights: Weights, work: ClientWork) -> TrainResult:
        seen = work.indices
        if work.batches * work.batch_size < len(seen):
            order = np.random.default_rng(work.seed).permutation(seen)
            seen = np.sort(order[: work.batches * work.batch_size])
        losses = self.losses(weights, [work.client])[0][seen]
        high, few = 2 * np.mean(losses > 1) - 1, math.tanh(len(seen) / 20 - 1)
        side, other_side = (1.0 if bit == "1" else -1.0 for bit in f"{zlib.crc32(work.client.encode()) % 4:02b}")
        update = 10 * np.array([high, few, side, other_side])
        if self.one_more_reverses and len(seen) % 2:
            update = -update
        return TrainResult(work.client, update.astype(np.float32), seen, losses)

    def evaluate(self, weights: Weights) -> Evaluation:
        """Return an evaluation that nothing uses."""
        return Evaluation(0.5, 1.0, 1)

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        """Return evaluations that nothing uses."""
        return [self.evaluate(weights) for _ in clients]

    def close(self) -> None:
        """Do nothing."""


class FlowerWorld:
    """One data set of a case whose client's round is that of a Flower node: its replies are read as messages.

    Args:
        case: The case, for the claim of the metadata.
        losses: The losses of every client.
        is_neighbour: Not used.
    """

    def __init__(self, case: Case, losses: Losses, is_neighbour: bool = False) -> None:
        self._case, self._losses = case, losses[WHO]

    def play(self, noise_seed: int) -> Play:
        """Play all rounds once. The noise comes from the operating system, as on a device.

        Args:
            noise_seed: Seed of nothing; plays differ anyway.
        """
        played = range(1, self._case.situation.rounds + 1)
        logging.getLogger("flwr.fedbalancer").setLevel(logging.WARNING)
        numbers = [value for number in played for value in self._reply(number)]
        return Play(tuple(played), tuple(numbers), len(played))

    def _reply(self, number: int) -> list[float]:
        from fedbalancer.flower.client import balanced
        from fedbalancer.flower.compat import Array, ArrayRecord, Context, RecordDict, make_reply
        from fedbalancer.flower.messages import ARRAYS, FEDBALANCER, Instruction

        order = Order(number, 1.0, 1e4, 2, 10, SEED)
        policies = self._case.played.client.to_json() or ""
        instruction = Instruction(WHO, order, 1e4, number - 1, 0.5, "audit", self._case.method, policies)
        weights = ArrayRecord({"w": Array(np.zeros(PARAMETERS, dtype=np.float32))})
        message = make_reply(RecordDict({ARRAYS: weights, FEDBALANCER: instruction.record()}), 2)
        context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
        work = balanced(message, context, size=len(self._losses), clock=_StoppedClock())
        work.select(forward=lambda: self._losses)
        trained = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *work.batches()]))
        reply = work.reply(weights, losses=self._losses[trained], seen=trained)
        return flatten({name: dict(record) for name, record in reply.content.items()}, NOT_COVERED_ON_FLOWER)


class _StoppedClock:
    """A clock that always shows 0: no epsilon covers times."""

    def now_s(self) -> float:
        return 0.0

    def computed(self, batches: float) -> None:
        return


def is_accepted_on_flower(method: Method) -> bool:
    """Return whether Flower's `Strategy` accepts a method.

    Args:
        method: The method.
    """
    from fedbalancer.flower import Strategy

    try:
        Strategy(method)
    except BadSetting:
        return False
    return True
