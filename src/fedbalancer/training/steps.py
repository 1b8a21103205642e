"""What a local training notes of the samples that it meets, whatever it computes with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.types import ClientWork, FloatArray, IndexArray, TrainResult, Weights, batches_per_epoch


class NotedTraining:
    """The first loss of every sample, after how many steps that was, and the result. Whoever trains a batch tells it by
    `note`; `update` gives what the training has changed so far, `finish` the same at its end."""

    def __init__(
        self, size: int, work: ClientWork, update: Callable[[], Weights], finish: Callable[[], Weights]
    ) -> None:
        self._work, self._update, self._finish = work, update, finish
        self._unseen = np.zeros(size, dtype=bool)
        self._unseen[work.indices] = True
        self._seen: list[IndexArray] = [np.empty(0, dtype=np.int64)]
        self._losses: list[FloatArray] = [np.empty(0)]
        self._before: list[IndexArray] = [np.empty(0, dtype=np.int64)]
        self._done = 0
        self._kept: tuple[Weights, int] | None = None

    def note(self, rows: IndexArray, losses: Callable[[], FloatArray]) -> None:
        """These samples were trained, batch by batch; `losses` is asked for only where one of them is new."""
        fresh = self._unseen[rows]
        if fresh.any():
            self._seen.append(rows[fresh])
            self._losses.append(losses()[fresh])
            self._before.append(self._done + np.flatnonzero(fresh) // self._work.batch_size)
            self._unseen[rows] = False
        self._done += batches_per_epoch(len(rows), self._work.batch_size)

    def keep(self) -> None:
        """Remember the model as it is now."""
        self._kept = self._update(), len(self._seen)

    def kept(self) -> TrainResult:
        """The result at the last `keep`."""
        assert self._kept is not None
        return self._result(*self._kept)

    def result(self) -> TrainResult:
        """The result of all steps; the training is over."""
        return self._result(self._finish(), len(self._seen))

    def _result(self, update: Weights, pieces: int) -> TrainResult:
        client, advice = self._work.client, _advice(self._work)
        rows, losses = np.concatenate(self._seen[:pieces]), np.concatenate(self._losses[:pieces])
        steps = np.concatenate(self._before[:pieces])
        order = np.argsort(rows, kind="stable")
        check_finite(client, rows, losses, f"; {advice}")
        with np.errstate(all="ignore"):
            finite = math.isfinite(update.sum()) or np.isfinite(update).all()  # the sum is the faster one
        if not finite:
            raise TrainingDiverged(f"client {client!r}: the update is not finite; {advice}")
        return TrainResult(client, update, rows[order], losses[order], steps[order])


def check_finite(client: str, rows: IndexArray, losses: FloatArray, advice: str = "") -> None:
    """Raise `TrainingDiverged` where the loss of a sample is not a number."""
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise TrainingDiverged(f"client {client!r}: the loss of sample {rows[bad[0]]} is {losses[bad[0]]}{advice}")


def _advice(work: ClientWork) -> str:
    return f"lower the learning rate (now {work.learning_rate:g}) or the clip_norm (now {work.clip_norm})"
