"""How a real client keeps to its deadline: before every batch it asks the method's `Work` policy whether to go on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedbalancer.protocols import Work


@dataclass(frozen=True)
class Pace:
    """The batches of one local training against the seconds that a client has. `policy` is the method's; `per_epoch`
    and `epochs` say how many batches there are in all."""

    policy: Work
    budget_s: float
    per_epoch: int
    epochs: int

    def goes_on(self, done: int, elapsed_s: float, batch_s: float) -> bool:
        """Whether to train another batch after `done`, `elapsed_s` seconds after the start, at `batch_s` a batch.

        The policy is asked with what is predicted from here on. It stops the client where it would stop by itself. In
        the middle of a unit that seems no longer to fit, and before the first, the client goes on in hope until the
        budget is spent: a prediction from too few batches must not lose the round, nor the chance to learn better.
        """
        if done >= self.per_epoch * self.epochs or elapsed_s >= self.budget_s:
            return False
        return self._wanted(lambda b: elapsed_s + max(b - done, 0) * batch_s, self.budget_s) != done or done == 0

    def counted(self, done: int) -> int:
        """How many of the batches done make a report under the policy: whole epochs, all or nothing, or every one."""
        return self._wanted(lambda b: 0.0 if b <= done else math.inf, 0.0)

    def _wanted(self, elapsed_s: Callable[[int], float], deadline_s: float) -> int:
        return self.policy.batches(elapsed_s, deadline_s, self.per_epoch, self.epochs)
