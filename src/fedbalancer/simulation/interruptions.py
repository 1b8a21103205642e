"""Simulates clients that keep the training which the end of a round interrupts (`LocalTraining.cache_rounds`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.round import ClientRound, InterruptedTraining, without_training
from fedbalancer.core.types import ClientWork, DivergedTraining, TrainResult, Weights
from fedbalancer.simulation.attempts import Attempts, RoundClock
from fedbalancer.simulation.devices import DeviceDraws

Train = Callable[[Weights, list[ClientWork]], Iterable[TrainResult | DivergedTraining]]


def without_downloads(rounds: Sequence[ClientRound], draws: DeviceDraws) -> DeviceDraws:
    """Return the times of clients of which those that continue a training download nothing."""
    continues = np.array([each.continued is not None for each in rounds], dtype=bool)
    return replace(draws, download_s=np.where(continues, 0.0, draws.download_s)) if continues.any() else draws


def train_from_own_models(
    train: Train, weights: Weights, works: list[ClientWork]
) -> Iterator[TrainResult | DivergedTraining]:
    """Train clients of which some continue an interrupted training, from their own model.

    Args:
        train: Trains clients from one model.
        weights: The global model.
        works: The trainings.

    Yields:
        The results in the order of `works`. Updates are relative to the global model.
    """
    own = {work.client: InterruptedTraining.read(work.state) for work in works}
    fresh = iter(train(weights, [work for work in works if own[work.client] is None]))
    for work in works:
        continued = own[work.client]
        if continued is None:
            yield next(fresh)
        else:
            (result,) = train(continued.model, [replace(work, state=without_training(work.state))])
            if isinstance(result, TrainResult):
                result = replace(result, update=result.update + (continued.model - weights))
            yield result


def interrupted_batches(
    rounds: Sequence[ClientRound], attempts: Attempts, accepted: NDArray[np.bool_], seconds: float, clock: RoundClock
) -> dict[int, int]:
    """Return how many batches each client without a report has trained when the round closes, by its place.

    Clients without a single batch are left out. A client whose upload is interrupted repeats its last batch.

    Args:
        rounds: The clients' rounds.
        attempts: The predicted round of every client.
        accepted: Whether each client's report is accepted.
        seconds: Seconds from the start to the close of the round.
        clock: The clock of the round.
    """
    done = {}
    for place in np.flatnonzero(~accepted & (attempts.batches > 0)).tolist():
        before_s = float(attempts.draws.download_s[place] + attempts.forward_s[place])
        batch_s = float(attempts.draws.batch_s[place])
        finish_s = clock.predict_finish(attempts.clients[place], before_s, batch_s, 0.0)
        batches = bisect_right(range(rounds[place].all_batches), seconds, key=finish_s) - 1
        if batches > 0:
            done[place] = batches
    return done


def interrupt(
    client_round: ClientRound, batches: int, trained: TrainResult | DivergedTraining, weights: Weights
) -> ClientRound:
    """Let a client remember its training; one that diverged is forgotten.

    Args:
        client_round: Its round.
        batches: Batches that it has trained in this round.
        trained: The result of these batches.
        weights: The global model, to which the update is relative.
    """
    if isinstance(trained, DivergedTraining):
        client_round.forget_training()
        return client_round
    before, left = client_round.continued, client_round.all_batches - batches
    received = client_round.order.round if before is None else before.round
    kept = InterruptedTraining(weights + trained.update, received, left)
    memory = client_round.memory
    client_round.memory = replace(memory, state={**without_training(memory.state), **trained.state, **kept.arrays()})
    return client_round
