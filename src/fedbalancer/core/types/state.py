"""What the server knows before the first round, and what it remembers between rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedbalancer.core.types.arrays import Weights
from fedbalancer.core.types.ledger import Ledger


@dataclass(frozen=True, eq=False)
class Setup:
    """What the server knows before the first round; constant during a run.

    Args:
        ledger: One row per client, before any round.
        epochs: Local epochs of a round.
        batch_size: Samples per local batch.
        clients_per_round: Clients selected per round.
        seed: Seed of the run.
        sample_cap: Largest number of samples a client trains on per epoch. None: no limit.
        epoch_batches: Batches per epoch where a method fixes them. None: as many as the samples fill.
        learning_rate: Clients' learning rate.
        clip_norm: Largest norm of an update. None: not clipped.
        forward_pass_every_round: Whether each client starts each round with a forward pass over all its data.
        loss_noise: Standard deviation of the noise on loss statistics. None: unknown.
        stops_in_epoch: Whether a client may report a partial epoch when its deadline passes.
        most_weight: Upper bound on a client's weight, as a multiple of the round's median weight. None: no bound.
    """

    ledger: Ledger
    epochs: int
    batch_size: int
    clients_per_round: int
    seed: int
    sample_cap: int | None = None
    epoch_batches: int | None = None
    learning_rate: float = 0.01
    clip_norm: float | None = None
    forward_pass_every_round: bool = False
    loss_noise: float | None = None
    stops_in_epoch: bool = False
    most_weight: float | None = None


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that the server remembers: saving it is the checkpoint. The seven fields before `suspensions` belong to the
    policies of those slots: each is a frozen dataclass of plain values and arrays, or None for a policy that remembers
    nothing. `suspensions` is who sits out (`server/suspensions.py`)."""

    round: int
    clock_s: float
    weights: Weights
    ledger: Ledger
    clients: Any = None
    threshold: Any = None
    pace: Any = None
    deadline: Any = None
    aggregate: Any = None
    model_average: Any = None
    late: Any = None
    suspensions: Any = None
