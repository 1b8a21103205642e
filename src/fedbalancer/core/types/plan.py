"""What the server asks for: one round, and the order of one client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LateRule = Literal["lost", "joins", "counts"]
"""What becomes of a report that comes after its round has closed: it is lost; it joins the round in which it comes,
which closes as if it did not; or it counts for that round's quorum as any other."""


@dataclass(frozen=True)
class Order:
    """All that a client is told beside the weights. `epoch_batches` cuts every local epoch short after so many batches
    (Oort trains one); None trains as many as the selected samples fill. Gradients are clipped at the global norm
    `clip_norm`, if there is one."""

    round: int
    loss_threshold: float
    deadline_s: float
    epochs: int
    batch_size: int
    seed: int
    sample_cap: int | None = None
    epoch_batches: int | None = None
    learning_rate: float = 0.01
    clip_norm: float | None = None


@dataclass(frozen=True)
class RoundPlan:
    """One round to run: it closes at the `quorum`-th report or at the deadline, whichever is first.
    `deadline_bounds_s` are dl and dh, between which the deadline was chosen, if it was: only for the record. `late`
    says what becomes of reports that come after the close."""

    order: Order
    cohort: tuple[str, ...]
    quorum: int
    deadline_bounds_s: tuple[float, float] | None = None
    late: LateRule = "lost"
