"""A client's round on a clock that runs: a device's own, or that of an emulated one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedbalancer.client.memory import ClientMemory
from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientRound, Released
from fedbalancer.client.summary import coarse, system_generator
from fedbalancer.client.work import batches
from fedbalancer.core.interfaces import Training
from fedbalancer.core.types import FloatArray, IndexArray, Layout, Order, TrainResult

SHORTEST_S = 1e-9


class DeviceClock(Protocol):
    """A device's time, and what it knows of computing that is not done at the device's own speed."""

    def now_s(self) -> float: ...
    def computed(self, batches: float) -> None:
        """As much has been computed as so many training batches, since the last call or since `now_s` was asked."""


@dataclass(frozen=True)
class WallClock:
    """The clock of a device that runs this code: whatever it computed has taken its time."""

    def now_s(self) -> float:
        return time.monotonic()

    def computed(self, batches: float) -> None:
        return None


@dataclass
class HeldClock:
    """The clock of a slower device on this machine: a batch takes at least `batch_s`."""

    batch_s: float
    _since_s: float = 0.0

    def now_s(self) -> float:
        self._since_s = time.monotonic()
        return self._since_s

    def computed(self, batches: float) -> None:
        time.sleep(max(self._since_s + batches * self.batch_s - time.monotonic(), 0.0))


class LiveRound(ClientRound):
    """A `ClientRound` that stops itself `budget_s` after it began, and measures what it does. It has no foresight: how
    long a batch takes it learns from those of this round, and of earlier ones before the first."""

    def __init__(
        self, policies: ClientPolicies, order: Order, client: str, size: int, memory: ClientMemory, batch_s: float, *,
        budget_s: float, clock: DeviceClock, began_s: float, late_counts: bool = False,
    ) -> None:  # fmt: skip
        """`began_s` is when the order came, by the clock. If `late_counts`, a client that has nothing to report when
        its budget is spent gets another deadline's seconds, until it has."""
        self.budget_s, self._clock, self._began_s, self._late_counts = budget_s, clock, began_s, late_counts
        self.forward_s = self.train_s = 0.0
        self.done, self.seen = 0, np.zeros(0, dtype=np.int64)
        super().__init__(policies, order, client, size, memory, batch_s)
        self._train_from_s = clock.now_s()

    def elapsed_s(self) -> float:
        """Seconds since the order came."""
        return self._clock.now_s() - self._began_s

    def look_by(self, forward: Callable[[], FloatArray]) -> None:
        """Look if it must and there is time, by a function that gives the loss of every sample in a forward pass."""
        if not self.needs_forward_pass or not self._has_time():
            return
        from_s = self._clock.now_s()
        self.look(forward())
        self._clock.computed(self.look_batches)
        self._train_from_s = self._clock.now_s()
        self.forward_s = self._train_from_s - from_s

    def may_train(self) -> bool:
        """Whether there is time, and reason, for one more batch."""
        self._has_time()
        return self.should_continue(self.done, self.elapsed_s(), self.batch_s(), self.budget_s)

    def _has_time(self) -> bool:
        """Whether the budget is not spent. Where a late report counts, one that is, in vain, grows by deadlines."""
        deadline_s, elapsed_s = self.order.deadline_s, self.elapsed_s()
        while self._late_counts and 0 < deadline_s < math.inf and elapsed_s >= self.budget_s and not self._counts():
            self.budget_s += deadline_s
        return self.can_finish(elapsed_s, self.budget_s)

    def _counts(self) -> bool:
        """Whether anything of what was trained so far makes a report."""
        return not self.needs_forward_pass and self.countable_batches(self.done) > 0

    def must_keep(self) -> bool:
        """Whether what was trained so far counts, but not together with one more batch."""
        done = self.done
        return done > 0 and self.countable_batches(done) == done and self.countable_batches(done + 1) != done + 1

    def has_trained(self, rows: IndexArray) -> None:
        """One more batch is done."""
        self._clock.computed(1.0)
        self.train_s = self._clock.now_s() - self._train_from_s
        self.done += 1
        if self.done <= self.per_epoch or self.order.epoch_batches is not None:
            self.seen = np.concatenate([self.seen, rows])

    def batches(self) -> Iterator[IndexArray]:
        """The mini-batches to train, one by one, until all epochs are done or the method's policy stops the client for
        its deadline. What is handed out counts as trained when the next one is asked for."""
        if self.needs_forward_pass:  # there was no time for it, so there is none to train
            return
        for _, rows in batches(self.work()):
            if not self.may_train():
                return
            yield rows
            self.has_trained(rows)

    def batch_s(self) -> float:
        """Seconds per batch: as measured in this round, or before its first batch as remembered."""
        if self.done:
            return max(self.train_s / self.done, SHORTEST_S)
        return self.memory.batch_s(self._expected_batch_s)

    def trained_otherwise(self, epochs: float | None) -> None:
        """So many epochs (None: all) were trained since the samples were selected, by a loop that never asked."""
        self.done = self.all_batches if epochs is None else round(epochs * self.per_epoch)
        self.train_s = self._clock.now_s() - self._train_from_s

    def train_by(self, training: Training) -> TrainResult | None:
        """Train until done or out of time; None where nothing of it counts under the policy."""
        for rows in self.batches():
            if self.must_keep():
                training.keep()
            training.step(rows)
        if not (batches := self.countable_batches(self.done)):
            return None
        return training.result() if batches == self.done else training.kept()

    def reported_seconds(self) -> tuple[float, float, float]:
        """How long the client was busy, with the forward pass, and with training; beside a private summary in two
        digits only, of what the server sees more coarsely anyway."""
        seconds = self.elapsed_s(), self.forward_s, self.train_s
        return (coarse(seconds[0]), coarse(seconds[1]), coarse(seconds[2])) if self._is_private else seconds

    def reported_batch_s(self) -> float | None:
        """Seconds per batch in the word of a client that has nothing to report; None if it has not trained."""
        if not self.done:
            return None
        return coarse(self.batch_s()) if self._is_private else self.batch_s()

    @property
    def _is_private(self) -> bool:
        return self.policies.summary.is_private

    def finished(self, trained: TrainResult | None, layout: Layout) -> Released | None:
        """The report of what was trained, after what it took was remembered. Noise on the statistics is drawn from the
        operating system's generator: whoever knows the order's seed, the server first of all, must not know it."""
        batch_s = self.batch_s()
        if self.done:
            self.timed(batch_s)
        return None if trained is None else self.released(trained, batch_s, layout, system_generator())
