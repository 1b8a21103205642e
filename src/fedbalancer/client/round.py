"""What a client does in a round: look at its samples if it must, select, train what fits, keep its list, report.

Whoever carries a client (the simulator, Flower, the test bed) gives it its memory, an order and what its device takes,
has it trained, and brings its report to the server. What is looked at, selected, counted, kept and charged is decided
here and nowhere else.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbalancer.client.memory import ClientMemory, updated_losses
from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.summary import forward_pass_every_round, with_estimates, without_counts
from fedbalancer.client.work import batches_by_forecast
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import integer_seed, stream
from fedbalancer.core.types import (
    FORWARD_PASS_EPOCHS,
    ClientReport,
    ClientWork,
    FloatArray,
    IndexArray,
    Layout,
    Order,
    Summary,
    TrainResult,
    Weights,
    batches_per_epoch,
)


@dataclass(frozen=True, eq=False)
class Released:
    """What leaves the client, and what it remembers once the server has taken it. `sent` is the update itself where
    nothing compresses it, or the bytes of it that travel."""

    sent: Weights | bytes
    summary: Summary
    memory: ClientMemory


class ClientRound:
    """One client's part in one round. `memory` is what the client remembers so far, also if its report never counts."""

    def __init__(
        self,
        policies: ClientPolicies,
        order: Order,
        client: str,
        size: int,
        memory: ClientMemory,
        batch_s: float = math.nan,
    ) -> None:
        """`size` is the client's number of samples, `batch_s` what a batch is expected to take on a device that
        remembers none."""
        self.policies, self.order, self.client, self.size, self.memory = policies, order, client, size, memory
        self._expected_batch_s = batch_s
        self._has_looked = False
        self._looked: FloatArray | None = None
        asked_anyway = forward_pass_every_round(policies)
        known = None if policies.forward_pass == "every" else memory.losses
        self._indices = None if asked_anyway else self._selected(known)

    # What to train on

    @staticmethod
    def can_finish(soonest_s: float, deadline_s: float) -> bool:
        """Whether there is any use in looking or training, if the report of nothing would be done at `soonest_s`. Who
        cannot start sees no loss and no batch, and has nothing to remember of the round."""
        return soonest_s < deadline_s

    @property
    def needs_forward_pass(self) -> bool:
        """Whether the samples cannot be selected before a forward pass over all of them."""
        return self._indices is None

    def look(self, losses: FloatArray, keep: bool = True) -> None:
        """Select by the losses of all samples, which are the client's list from now on if it shall `keep` them."""
        self.memory = replace(self.memory, losses=losses) if keep else self.memory
        self._has_looked, self._looked = True, losses
        self._indices = self._selected(losses)
        if self._indices is None:
            raise BadSetting(f"{type(self.policies.samples).__name__} selects nothing from a whole list of losses")

    @property
    def indices(self) -> IndexArray:
        """The samples selected, in ascending order; none before a client that must look has looked."""
        return _NOTHING if self._indices is None else self._indices

    @property
    def look_batches(self) -> float:
        """How many training batches the look took as long as. One that leads to training on everything is free, unless
        it is made anew every round: the first epoch sees the same losses (authors' code; the paper does not say)."""
        if not self._has_looked or (self.policies.forward_pass == "first" and len(self.indices) == self.size):
            return 0.0
        return FORWARD_PASS_EPOCHS * batches_per_epoch(self.size, self.order.batch_size)

    # How much of it

    @property
    def per_epoch(self) -> int:
        """Batches of one local epoch."""
        return batches_per_epoch(len(self.indices), self.order.batch_size, self.order.epoch_batches)

    @property
    def all_batches(self) -> int:
        """Batches of all local epochs."""
        return self.per_epoch * self.order.epochs

    def batches_in_time(self, elapsed_s: Callable[[int], float], deadline_s: float) -> int:
        """How many batches to train by the method's policy, where `elapsed_s` foretells when the report of so many is
        done."""
        return self.policies.work.batches(elapsed_s, deadline_s, self.per_epoch, self.order.epochs)

    def batches_late(self, elapsed_s: Callable[[int], float], deadline_s: float) -> int:
        """How many batches to train where the deadline cannot be kept and a late report counts: what fits by the first
        multiple of the deadline by which anything does, as if it were a client of as many rounds. All where that is
        never."""
        least = self._least
        soonest_s = elapsed_s(least)
        if not (math.isfinite(soonest_s) and 0 < deadline_s < math.inf):
            return self.all_batches
        fitting = self.batches_in_time(elapsed_s, math.ceil(soonest_s / deadline_s) * deadline_s)
        return fitting if fitting else least  # the division may round down

    @property
    def forecasts(self) -> bool:
        """Whether the client does not know how long its upload will take, and forecasts it."""
        return self.policies.work.forecasts

    def batches_by_forecast(self, elapsed_s: Callable[[float], Callable[[int], float]], download_s: float) -> int:
        """How many batches to train for a client that `forecasts`, where `elapsed_s(upload_s)` foretells when the
        report of so many is done if its upload takes so long; the least that makes a report where none seem to fit."""
        seen_s = self.memory.uploads_s or (download_s,)
        deadline_s = self.order.deadline_s
        found = batches_by_forecast(seen_s, lambda upload_s: self.batches_in_time(elapsed_s(upload_s), deadline_s))
        return found if found else self._least

    @property
    def _least(self) -> int:
        """The fewest batches that make a report."""
        return bisect_left(range(1, self.all_batches), 1, key=self.countable_batches) + 1

    def should_continue(self, done: int, elapsed_s: float, batch_s: float, budget_s: float) -> bool:
        """Whether a client that cannot know how long it will take trains another batch after `done`, `elapsed_s` after
        its start, at `batch_s` a batch so far, if it has to report after `budget_s`.

        The policy is asked with what is predicted from here on. It stops the client where it would stop by itself. In
        the middle of a unit that seems no longer to fit, and before the first, the client goes on in hope until the
        budget is spent: a prediction from too few batches must not lose the round, nor the chance to learn better.
        """
        if done >= self.all_batches or self.needs_forward_pass or not self.can_finish(elapsed_s, budget_s):
            return False
        wanted = self.batches_in_time(lambda batches: elapsed_s + max(batches - done, 0) * batch_s, budget_s)
        return wanted != done or done == 0

    def countable_batches(self, done: int) -> int:
        """How many of the batches done make a report under the policy: whole epochs, all or nothing, or every one."""
        return self.batches_in_time(lambda batches: 0.0 if batches <= done else math.inf, 0.0)

    def work(self, batches: int | None = None) -> ClientWork:
        """The training of so many batches (default: all epochs) as pure work."""
        order = self.order
        return ClientWork(
            client=self.client,
            indices=self.indices,
            batches=self.all_batches if batches is None else batches,
            batch_size=order.batch_size,
            learning_rate=order.learning_rate,
            mu=self.policies.mu,
            clip_norm=order.clip_norm,
            seed=integer_seed(order.seed, "train", order.round, self.client),
            epoch_batches=order.epoch_batches,
        )

    # What to keep and to say

    def timed(self, batch_s: float) -> None:
        """Remember how long a batch took in this round."""
        self.memory = self.memory.timed(batch_s)

    def uploaded(self, upload_s: float) -> None:
        """Remember how long an upload took, if the next one is forecast by it."""
        self.memory = self.memory.uploaded(upload_s) if self.forecasts else self.memory

    def released(self, trained: TrainResult, batch_s: float, layout: Layout, noise: np.random.Generator) -> Released:
        """The report of a training. `noise` is where the noise on the statistics comes from: a device draws it where
        nobody else can."""
        losses = updated_losses(self.memory.losses, self.size, trained.seen, trained.losses)
        told = self._of_received_model() if forward_pass_every_round(self.policies) else losses
        policy = self.policies.summary
        summary = policy.summarize(told, trained.seen, batch_s, self.order, noise)
        if policy.releases_steps:
            summary = replace(summary, released=policy.by_steps(trained, noise))
        summary = without_counts(summary) if policy.is_private else summary
        sent, residual = self._encoded(trained.update, layout)
        return Released(sent, summary, self.memory.reported(losses, residual))

    @property
    def reported_samples(self) -> int:
        """How many samples the client selected, or beside a private summary all that it has."""
        return self.size if self.policies.summary.is_private else len(self.indices)

    def reported_epochs(self, done: int) -> float:
        """The epochs in the report of a client that has trained `done` batches. A private summary withholds them: it
        tells those of the order, whatever was trained."""
        return float(self.order.epochs) if self.policies.summary.is_private else done / self.per_epoch

    def _of_received_model(self) -> FloatArray:
        """The losses that a summary may speak of whose guarantee is about samples."""
        if self._looked is None or np.isnan(self._looked).any():
            raise BadSetting(
                f"summary {type(self.policies.summary).__name__} with forward_pass = every speaks of the losses of all "
                "samples under the model that was sent: give them, or a function that makes them"
            )
        return self._looked

    def _encoded(self, update: Weights, layout: Layout) -> tuple[Weights | bytes, Weights | None]:
        if self.policies.compress.is_identity or not len(update):
            return update, None
        seed = compress_seed(self.order, self.client)
        return self.policies.compress.encode(update, layout, seed, self.memory.residual)

    def _selected(self, losses: FloatArray | None) -> IndexArray | None:
        order = self.order
        rng = stream(order.seed, "samples", order.round, self.client)
        batch_s = self.memory.batch_s(self._expected_batch_s)
        return self.policies.samples.select(self.size, losses, batch_s, order, rng)


def received(sent: Weights | bytes, compress: Compressor, layout: Layout, order: Order, client: str) -> Weights:
    """The update as the server takes it from what a client sent."""
    return compress.decode(sent, layout, compress_seed(order, client)) if isinstance(sent, bytes) else sent


def decode_summaries(
    reports: Sequence[ClientReport], policies: ClientPolicies, order: Order, size_of: Callable[[str], int]
) -> tuple[ClientReport, ...]:
    """The reports of a round with the statistics that the server's half of the summary reads from them together, and
    with the server's estimates of counts that a private summary withholds; `size_of` a client is what it enrolled with.
    """
    if not reports:
        return ()
    summaries = policies.summary.read([report.summary for report in reports], order)
    if summaries is not None:
        read = [replace(each, read_by_server=True) for each in summaries]
        reports = tuple(replace(report, summary=each) for report, each in zip(reports, read, strict=True))
    return with_estimates(reports, size_of, policies) if policies.summary.is_private else tuple(reports)


def compress_seed(order: Order, client: str) -> int:
    """What both sides draw the random numbers of a compression from."""
    return integer_seed(order.seed, "compress", order.round, client)


_NOTHING: IndexArray = np.zeros(0, dtype=np.int64)
