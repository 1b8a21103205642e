"""A client's round on a real clock: that of a device, or of an emulated one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientMemory, ClientRound, PreparedReport
from fedbalancer.client.summary import coarse, system_generator
from fedbalancer.client.work import batches
from fedbalancer.core.interfaces import Training
from fedbalancer.core.types import FloatArray, IndexArray, Layout, Order, Part, TrainResult

SHORTEST_S = 1e-9


class DeviceClock(Protocol):
    """The clock of a device."""

    def now_s(self) -> float:
        """Return the current time in seconds."""

    def computed(self, batches: float) -> None:
        """Note that the device has computed.

        Args:
            batches: Amount of computation since the last call or since `now_s`, in training batches.
        """


@dataclass(frozen=True)
class WallClock:
    """The clock of the device that runs this code."""

    def now_s(self) -> float:
        """Return the time of the system's monotonic clock."""
        return time.monotonic()

    def computed(self, batches: float) -> None:
        """Do nothing: computing has taken its time already."""
        return


@dataclass
class HeldClock:
    """The clock of a slower device that is emulated on this machine.

    Args:
        batch_s: Minimum seconds per batch.
    """

    batch_s: float
    _since_s: float = 0.0

    def now_s(self) -> float:
        """Return the time of the system's monotonic clock."""
        self._since_s = time.monotonic()
        return self._since_s

    def computed(self, batches: float) -> None:
        """Sleep until the emulated device would be done."""
        time.sleep(max(self._since_s + batches * self.batch_s - time.monotonic(), 0.0))


class LiveRound(ClientRound):
    """A `ClientRound` that measures itself and stops `budget_s` seconds after it began.

    It learns the duration of a batch from this round, and before its first batch from earlier rounds.

    Args:
        policies: The client's policies.
        order: What the server asks for.
        client: Client id.
        size: Number of the client's samples.
        memory: The client's memory before the round.
        batch_s: Expected seconds per batch if the memory has none.
        budget_s: Seconds after which the client must report.
        clock: The device's clock.
        began_s: When the order arrived, by that clock.
        late_counts: Whether a late report counts. A client without a report then continues past its budget, by one
            deadline at a time.
        part: The part of the model that the client trains. None: all of it.
    """

    def __init__(
        self, policies: ClientPolicies, order: Order, client: str, size: int, memory: ClientMemory, batch_s: float, *,
        budget_s: float, clock: DeviceClock, began_s: float, late_counts: bool = False, part: Part | None = None,
    ) -> None:  # fmt: skip
        self.budget_s, self._clock, self._began_s, self._late_counts = budget_s, clock, began_s, late_counts
        self.forward_s = self.train_s = 0.0
        self.done, self.seen = 0, np.zeros(0, dtype=np.int64)
        super().__init__(policies, order, client, size, memory, batch_s, part)
        self._train_from_s = clock.now_s()

    def elapsed_s(self) -> float:
        """Return the seconds since the order arrived."""
        return self._clock.now_s() - self._began_s

    def run_forward_pass(self, forward: Callable[[], FloatArray]) -> None:
        """Run the forward pass if it is needed and there is time.

        Args:
            forward: Returns the loss of every sample.
        """
        if not self.needs_forward_pass or not self._has_time():
            return
        from_s = self._clock.now_s()
        self.add_forward_pass(forward())
        self._clock.computed(self.forward_batches)
        self._train_from_s = self._clock.now_s()
        self.forward_s = self._train_from_s - from_s

    def can_train_more(self) -> bool:
        """Whether to train one more batch."""
        self._has_time()
        return self.should_continue(self.done, self.elapsed_s(), self.batch_s(), self.budget_s)

    def _has_time(self) -> bool:
        """Whether the budget is not spent. If late reports count, it is extended until there is a report."""
        deadline_s, elapsed_s = self.order.deadline_s, self.elapsed_s()
        while self._late_counts and 0 < deadline_s < math.inf and elapsed_s >= self.budget_s and not self._counts():
            self.budget_s += deadline_s
        return self.can_finish(elapsed_s, self.budget_s)

    def _counts(self) -> bool:
        """Whether the trained batches make a report."""
        return not self.needs_forward_pass and self.countable_batches(self.done) > 0

    def should_keep(self) -> bool:
        """Whether the trained batches count, but not with one more batch."""
        done = self.done
        return done > 0 and self.countable_batches(done) == done and self.countable_batches(done + 1) != done + 1

    def note_batch(self, rows: IndexArray) -> None:
        """Note that one more batch is trained."""
        self._clock.computed(1.0)
        self.train_s = self._clock.now_s() - self._train_from_s
        self.done += 1
        if self.done <= self.per_epoch or self.order.epoch_batches is not None or self.order.training.drop_last:
            self.seen = np.concatenate([self.seen, rows])

    def batches(self) -> Iterator[IndexArray]:
        """Yield the mini-batches to train until all epochs are done or the work policy stops the client.

        A batch counts as trained when the next one is requested.
        """
        if self.needs_forward_pass:  # there was no time for it
            return
        for _, rows in batches(self.work()):
            if not self.can_train_more():
                return
            yield rows
            self.note_batch(rows)

    def batch_s(self) -> float:
        """Return the seconds per batch: measured in this round, or before its first batch as remembered."""
        if self.done:
            return max(self.train_s / self.done, SHORTEST_S)
        return self.memory.batch_s(self._expected_batch_s)

    def note_training(self, epochs: float | None) -> None:
        """Note a training by a loop that did not use `batches`.

        Args:
            epochs: Epochs trained since the samples were selected. None: all.
        """
        self.done = self.all_batches if epochs is None else round(epochs * self.per_epoch)
        self.train_s = self._clock.now_s() - self._train_from_s

    def train(self, training: Training) -> TrainResult | None:
        """Train until done or out of time. Returns None if no result counts under the work policy."""
        for rows in self.batches():
            if self.should_keep():
                training.keep()
            training.step(rows)
        if not (batches := self.countable_batches(self.done)):
            return None
        return training.result() if batches == self.done else training.kept()

    def reported_seconds(self) -> tuple[float, float, float]:
        """Return the total seconds, those of the forward pass, and those of training.

        A private summary reports two significant digits only.
        """
        seconds = self.elapsed_s(), self.forward_s, self.train_s
        return (coarse(seconds[0]), coarse(seconds[1]), coarse(seconds[2])) if self._is_private else seconds

    def reported_batch_s(self) -> float | None:
        """Return the seconds per batch of a client without a report; None if it has not trained."""
        if not self.done:
            return None
        return coarse(self.batch_s()) if self._is_private else self.batch_s()

    @property
    def _is_private(self) -> bool:
        return self.policies.summary.is_private

    def finish(self, trained: TrainResult | None, layout: Layout) -> PreparedReport | None:
        """Remember the measured times and return the report, or None if nothing was trained.

        The noise comes from the operating system's generator: everybody who knows the order's seed could compute other
        noise.
        """
        batch_s = self.batch_s()
        if self.done:
            self.note_batch_s(batch_s)
        return None if trained is None else self.prepare_report(trained, batch_s, layout, system_generator())
