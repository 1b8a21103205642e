"""A method: one policy for every slot of the server and of the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedbalancer.client.policies import CLIENT_SLOTS, ClientPolicies
from fedbalancer.client.training import STATISTICS, LocalLayers
from fedbalancer.core.contracts import (
    SLOTS,
    Aggregator,
    ClientSelector,
    Compressor,
    DeadlinePolicy,
    LatePolicy,
    LocalTraining,
    ModelAverage,
    PacePolicy,
    PartPolicy,
    SampleSelector,
    Summarizer,
    ThresholdPolicy,
    WorkPolicy,
)
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.schedules import read_schedule
from fedbalancer.core.settings import Settings
from fedbalancer.core.types import FORWARD_PASS_EPOCHS, Ledger, Setup
from fedbalancer.server.server import SERVER_SLOTS, ServerPolicies


@dataclass(frozen=True)
class Method:
    """A method is a composition of policies. The defaults are FedAvg that waits for all clients.

    Args:
        name: Name of the method.
        server: The server's policies.
        client: The client's policies.
        settings: Settings in the brackets of its name; they override those of a run.
    """

    name: str
    server: ServerPolicies = field(default_factory=ServerPolicies)
    client: ClientPolicies = field(default_factory=ClientPolicies)
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def clients(self) -> ClientSelector:
        """Selects the clients of a round."""
        return self.server.clients

    @property
    def deadline(self) -> DeadlinePolicy:
        """Decides when a round closes."""
        return self.server.deadline

    @property
    def threshold(self) -> ThresholdPolicy:
        """Sets the loss threshold."""
        return self.server.threshold

    @property
    def pace(self) -> PacePolicy:
        """Controls the two ratios."""
        return self.server.pace

    @property
    def aggregate(self) -> Aggregator:
        """Combines the clients' updates."""
        return self.server.aggregate

    @property
    def model_average(self) -> ModelAverage:
        """Decides which model is evaluated."""
        return self.server.model_average

    @property
    def late(self) -> LatePolicy:
        """Handles late reports."""
        return self.server.late

    @property
    def epoch_batches(self) -> int | None:
        """Batches after which every local epoch ends; None for no limit."""
        return self.server.epoch_batches

    @property
    def samples(self) -> SampleSelector:
        """Selects a client's samples."""
        return self.client.samples

    @property
    def work(self) -> WorkPolicy:
        """Decides how much a client trains."""
        return self.client.work

    @property
    def summary(self) -> Summarizer:
        """Decides what a client releases about its losses."""
        return self.client.summary

    @property
    def compress(self) -> Compressor:
        """Encodes updates."""
        return self.client.compress

    @property
    def train(self) -> LocalTraining:
        """Decides how a client trains."""
        return self.client.train

    @property
    def part(self) -> PartPolicy:
        """Decides which part of the model a client trains."""
        return self.client.part

    @property
    def mu(self) -> float:
        """Weight of the proximal term."""
        return self.client.mu

    @property
    def forward_pass(self) -> Literal["first", "every"]:
        """When a client computes the loss of all its samples."""
        return self.client.forward_pass

    def with_policies(self, **slots: Any) -> Method:
        """Return the method with other policies in some slots.

        Args:
            **slots: Policies by slot, and `mu`, `forward_pass` or `epoch_batches`.

        Raises:
            UnknownName: If there is no such slot.

        Example:
            >>> Method("mine").with_policies(forward_pass="every", mu=0.1).client.mu
            0.1
        """
        for slot in slots:
            if slot not in (*SERVER_SLOTS, *CLIENT_SLOTS):
                raise UnknownName("slot", slot, [*SERVER_SLOTS, *CLIENT_SLOTS])
        return replace(
            self,
            server=replace(self.server, **{slot: choice for slot, choice in slots.items() if slot in SERVER_SLOTS}),
            client=replace(self.client, **{slot: choice for slot, choice in slots.items() if slot in CLIENT_SLOTS}),
        )


def with_local_statistics(method: Method, settings: Settings) -> Method:
    """Keep the running statistics of batch norms on the clients, if the settings require it.

    Args:
        method: The method.
        settings: Settings of the run.

    Raises:
        BadSetting: If the method has a policy in slot `part` already.

    Example:
        >>> with_local_statistics(Method("mine"), Settings(batch_norm="local")).part
        LocalLayers(names='*running_mean *running_var')
    """
    if settings.batch_norm != "local" or method.part == LocalLayers(STATISTICS):
        return method
    if not method.part.is_whole:
        raise BadSetting(
            f"batch_norm = 'local' needs the slot part, in which method {method.name!r} has {method.part!r}; add the "
            f"names {STATISTICS} to a LocalLayers policy instead"
        )
    return method.with_policies(part=LocalLayers(STATISTICS))


def setup_of(
    method: Method, ledger: Ledger, settings: Settings, seed: int, forward_epochs: float = FORWARD_PASS_EPOCHS
) -> Setup:
    """Return what the server of a method knows before the first round.

    Args:
        method: The method.
        ledger: One row per client.
        settings: Settings of the run.
        seed: Seed of the run.
        forward_epochs: Duration of a forward pass over all data, in training epochs.
    """
    return Setup(
        ledger=ledger,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        clients_per_round=settings.clients_per_round,
        seed=seed,
        sample_cap=method.client.samples.cap(ledger.size),
        epoch_batches=method.server.epoch_batches,
        learning_rate=settings.learning_rate,
        clip_norm=settings.clip_norm,
        training=settings.training(),
        schedule=read_schedule(settings.schedule),
        forward_pass_every_round=method.client.forward_pass == "every",
        forward_epochs=forward_epochs,
        loss_noise=method.client.summary.loss_noise,
        stops_in_epoch=method.client.work.stops_in_epoch,
        repeats=method.client.work.repeats,
    )


def check_composition(method: Method) -> None:
    """Refuse a method whose policies do not work together, before anything runs.

    A policy that needs the clients' losses (`needs_losses`) needs a summary that releases them. A policy that needs
    counts of local steps (`needs_counts`) needs a summary without privacy. A part of the model needs an aggregator that
    averages each parameter over the clients that trained it. Any policy can refuse others by `refuses`.

    Args:
        method: The `Method`.

    Raises:
        BadSetting: If the policies do not work together; the message says why.
    """
    for slot in SLOTS:
        if why := _find_conflict(method, slot):
            raise BadSetting(f"method {method.name!r} cannot run: {why}")
    if not method.part.is_whole and (why := _find_part_conflict(method)):
        raise BadSetting(f"method {method.name!r} cannot run: {why}")


def _find_conflict(method: Method, slot: str) -> str | None:
    policy, summary = getattr(method, slot), method.summary
    if policy.needs_losses and not summary.releases_losses:
        return f"{type(policy).__name__} needs the clients' losses, which {type(summary).__name__} does not release"
    if policy.needs_counts and summary.is_private:
        return f"{type(policy).__name__} needs the local steps of clients, which {type(summary).__name__} withholds"
    return str(why) if (why := policy.refuses(method)) else None


def _find_part_conflict(method: Method) -> str | None:
    part = type(method.part).__name__
    if not method.aggregate.handles_parts:
        aggregate = type(method.aggregate).__name__
        return f"part {part} trains parts of the model, which {aggregate} does not average; use WeightedMean"
    if not method.compress.is_identity:
        compress = type(method.compress).__name__
        return f"part {part} sends parts of the model, and {compress} encodes whole updates; use no compression"
    return None
