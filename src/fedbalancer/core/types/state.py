"""What the server knows before the first round, and what it remembers between rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedbalancer.core.types.arrays import Weights
from fedbalancer.core.types.ledger import Ledger


@dataclass(frozen=True, eq=False)
class Setup:
    """What the server knows before the first round, and what does not change during a run. With `looks_every_round`
    every round of a client begins with a forward pass over all its data. `loss_noise` is the deviation of the noise on
    statistics of losses (None: not known), `clock_slack_s` by how much a client's clock may be off. With
    `stops_in_epoch` a client whose deadline passes may report a part of an epoch. `most_weight` limits a client's
    weight to so many times the median of its round (None: no limit)."""

    ledger: Ledger
    epochs: int
    batch_size: int
    clients_per_round: int
    seed: int
    sample_cap: int | None = None
    epoch_batches: int | None = None
    learning_rate: float = 0.01
    clip_norm: float | None = None
    looks_every_round: bool = False
    loss_noise: float | None = None
    clock_slack_s: float = 0.0
    stops_in_epoch: bool = False
    most_weight: float | None = None


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that the server remembers: saving it is the checkpoint. The seven fields before `bench` belong to the
    policies of those slots: each is a frozen dataclass of plain values and arrays, or None for a policy that remembers
    nothing. `bench` is who sits out (`server/bench.py`)."""

    round: int
    clock_s: float
    weights: Weights
    ledger: Ledger
    clients: Any = None
    threshold: Any = None
    pace: Any = None
    deadline: Any = None
    aggregate: Any = None
    deliver: Any = None
    late: Any = None
    bench: Any = None
