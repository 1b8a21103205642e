"""The client's side for any framework: three calls inside your own train function.

@app.train()
def train(message, context):
    work = balanced(message, context, size=len(y))
    indices = work.select(forward=losses_of_all_samples)
    for rows in work.batches():          # stops by itself at the deadline
        losses[rows] = step(x[rows], y[rows])
    return work.reply(new_arrays, losses=losses)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.client.batches import batches
from fedbalancer.client.compress import NoCompression
from fedbalancer.client.losses import updated_losses
from fedbalancer.errors import BadData, BadSetting
from fedbalancer.flower.compat import ArrayRecord, Context, Message, RecordDict, reply_to
from fedbalancer.flower.layout import Faulty, ModelLayout
from fedbalancer.flower.memory import Keeper, Memory
from fedbalancer.flower.orders import ARRAYS, OURS, Instruction
from fedbalancer.flower.pace import Pace
from fedbalancer.flower.replies import Measured, pack_payload, pack_report, pack_stopped, pack_vector
from fedbalancer.methods import Method
from fedbalancer.randomness import integer_seed, stream
from fedbalancer.types import ClientWork, FloatArray, IndexArray, Weights


def balanced(
    message: Message,
    context: Context,
    *,
    size: int | None = None,
    fingerprint: str = "",
    method: Method | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Work:
    """The work that a train message asks for. `size` is the client's number of samples (or give losses to `select`),
    `fingerprint` the name of its data as in `introduce`, `method` the server's own method object where it has one."""
    if OURS not in message.content.config_records:
        raise BadSetting("this message is no order of fedbalancer.flower.Strategy: it has no record 'fedbalancer'")
    instruction = Instruction.read(message.content.config_records[OURS])
    return Work(message, context, instruction, method or instruction.build_method(), size, fingerprint, clock)


class Work:
    """One round's work of one client. The clock runs from the moment at which it is made."""

    def __init__(
        self,
        message: Message,
        context: Context,
        instruction: Instruction,
        method: Method,
        size: int | None,
        fingerprint: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._started = clock()
        self.message, self.context, self.instruction, self.method = message, context, instruction, method
        self.order, self.client = instruction.order, instruction.client
        self._size, self._fingerprint = size, fingerprint
        self._keeper: Keeper | None = None
        self._memory = Memory()
        self._indices: IndexArray | None = None
        self._forward_s = self._train_from = self._train_s = 0.0
        self._done, self._asked, self._trained = 0, False, np.zeros(0, dtype=np.int64)

    @property
    def arrays(self) -> ArrayRecord:
        """The global model as it was sent."""
        return self.message.content.array_records[ARRAYS]

    @cached_property
    def layout(self) -> ModelLayout:
        return ModelLayout.of(self.arrays)

    def weights(self) -> Weights:
        """The global model as one vector of float32."""
        return self.layout.flat(self.arrays)

    def elapsed_s(self) -> float:
        """Seconds since this work began."""
        return self._clock() - self._started

    def time_left(self) -> float:
        """Seconds until the client should send its report, the way back already taken off; inf without a deadline."""
        return self.instruction.budget_s - self.elapsed_s()

    def select(self, losses: ArrayLike | None = None, *, forward: Callable[[], ArrayLike] | None = None) -> IndexArray:
        """The samples to train on, by the method's own policy.

        Without `losses` the list kept from earlier rounds is used. Where the policy needs one and there is none,
        `forward` is called and must give the loss of every sample; without it every sample counts as unknown, which is
        over the threshold.
        """
        given = None if losses is None else np.asarray(losses, dtype=np.float64)
        if given is not None and self._size is None:
            self._size = len(given)
        known = given if given is not None else self._remembered()
        chosen = self._choose(known)
        if chosen is None:
            known = self._look(forward)
            chosen = self._choose(known)
        if chosen is None:
            raise BadSetting(f"{type(self.method.samples).__name__} selects nothing from a whole list of losses")
        self._indices, self._train_from = chosen, self._clock()
        return chosen

    def batches(self) -> Iterator[IndexArray]:
        """The mini-batches to train, one by one, until all epochs are done or the method's `Work` policy stops the
        client for its deadline. What is handed out counts as trained when the next one is asked for."""
        self._asked = True
        try:
            for _, rows in batches(self.client_work()):
                if not self.pace.goes_on(self._done, self.elapsed_s(), self.batch_s()):
                    break
                yield rows
                self._count(rows)
        finally:
            self._train_s = self._clock() - self._train_from

    def client_work(self) -> ClientWork:
        """The training as pure work: the shuffles are those of the simulator, by seed, round and client."""
        return ClientWork(
            client=self.client,
            indices=self.indices,
            batches=self.pace.per_epoch * self.pace.epochs,
            batch_size=self.order.batch_size,
            learning_rate=self.instruction.learning_rate,
            mu=self.method.mu,
            clip_norm=self.instruction.clip_norm,
            seed=integer_seed(self.order.seed, "train", self.order.round, self.client),
            epoch_batches=self.order.epoch_batches,
        )

    @property
    def done(self) -> int:
        """Batches trained so far in this round."""
        return self._done

    @property
    def indices(self) -> IndexArray:
        if self._indices is None:
            raise BadSetting("call work.select() before training: it says which samples to train")
        return self._indices

    @property
    def pace(self) -> Pace:
        per_epoch = max(-(-len(self.indices) // self.order.batch_size), 1)
        if self.order.epoch_batches is not None:
            per_epoch = min(per_epoch, self.order.epoch_batches)
        return Pace(self.method.work, self.instruction.budget_s, per_epoch, self.order.epochs)

    def batch_s(self) -> float:
        """Seconds a batch: as measured in this round, or before its first batch as remembered."""
        if self._done:
            return max((self._clock() - self._train_from) / self._done, 1e-9)
        return self._memory.batch_s(self.instruction.batch_s)

    def reply(
        self,
        arrays: ArrayRecord | Sequence[NDArray[Any]] | None = None,
        *,
        losses: ArrayLike | None = None,
        seen: ArrayLike | None = None,
        epochs: float | None = None,
    ) -> Message:
        """The report: `arrays` is the trained model under the names it came with (or a list of arrays in that order),
        `losses` the loss of every sample that was seen when it was first seen (or of all samples, by their numbers).

        `seen` are the samples trained: by default those that `batches` handed out, or all selected ones for a training
        loop of your own, which also says how many `epochs` it did if not all. A client whose policy counts nothing of
        what it did (FedAvg: not all epochs were in time) says so, and is free for the next round.
        """
        done, counted = self._counted(epochs)
        batch_s = self._batch_s(done)
        self._memory = self._memory.timed(batch_s) if done else self._memory
        measured = Measured(done / self.pace.per_epoch, self.elapsed_s(), self._forward_s, self._train_s, "train")
        if not counted or arrays is None:
            self._save(self._memory)
            return self._send(pack_stopped(self.client, self.order, measured))
        rows = np.unique(self._trained if self._asked else self.indices) if seen is None else np.asarray(seen)
        listed = self._listed(losses, rows)
        noise = stream(self.order.seed, "noise", self.order.round, self.client)
        summary = self.method.summary.summarize(listed, rows, batch_s, self.order, noise)
        record, residual = self._packed(arrays)
        self._save_pending(listed, residual)
        return self._send(pack_report(self.client, self.order, record, summary, measured))

    def _send(self, content: RecordDict) -> Message:
        return reply_to(self.message, content, self.elapsed_s())

    def _counted(self, epochs: float | None) -> tuple[int, int]:
        """Batches done, and how many of them the policy counts."""
        pace = self.pace
        if not self._asked:
            self._train_s = self._clock() - self._train_from
            self._done = pace.per_epoch * pace.epochs if epochs is None else round(epochs * pace.per_epoch)
        return self._done, pace.counted(self._done)

    def _batch_s(self, done: int) -> float:
        return max(self._train_s / done, 1e-9) if done else self._memory.batch_s(self.instruction.batch_s)

    def _count(self, rows: IndexArray) -> None:
        self._done += 1
        if self._done <= self.pace.per_epoch or self.order.epoch_batches is not None:
            self._trained = np.concatenate([self._trained, rows])

    def _remembered(self) -> FloatArray | None:
        """The list of earlier rounds, settled by what the server says that it took."""
        keeper = self._kept()
        self._memory = keeper.load().settled(self.instruction.accepted_round)
        return None if self.method.forward_pass == "every" else self._memory.losses

    def _kept(self) -> Keeper:
        if self._size is None:
            raise BadSetting("how many samples the client has is not known; say balanced(message, context, size=...)")
        if self._keeper is None:
            run_key = self.instruction.run_key
            self._keeper = Keeper(self.context, run_key, self.client, self._size, self._fingerprint)
        return self._keeper

    def _choose(self, known: FloatArray | None) -> IndexArray | None:
        size = self._kept().size
        if known is not None and known.shape != (size,):
            raise BadData(f"client {self.client!r} has {size} samples but losses of shape {known.shape}")
        rng = stream(self.order.seed, "samples", self.order.round, self.client)
        batch_s = self._memory.batch_s(self.instruction.batch_s)
        return self.method.samples.select(size, known, batch_s, self.order, rng)

    def _look(self, forward: Callable[[], ArrayLike] | None) -> FloatArray:
        size = self._kept().size
        if forward is None:
            return np.full(size, np.nan)
        from_s = self._clock()
        losses = np.array(forward(), dtype=np.float64)
        self._forward_s = self._clock() - from_s
        if losses.shape != (size,) or not np.isfinite(losses).all():
            raise BadData(f"forward must give a finite loss for each of the {size} samples, not shape {losses.shape}")
        self._memory = Memory(losses, self._memory.batch_s_sum, self._memory.batch_s_count, self._memory.residual,
                              saved=self._memory.saved)  # fmt: skip
        return losses

    def _listed(self, losses: ArrayLike | None, rows: IndexArray) -> FloatArray:
        """The loss list after this training."""
        size = self._kept().size
        if losses is None:
            if getattr(self.method.summary, "releases_losses", True):
                raise BadSetting("work.reply needs losses=...: the loss of every trained sample when it was first seen")
            return updated_losses(self._memory.losses, size, rows, np.full(len(rows), np.nan))
        values = np.asarray(losses, dtype=np.float64)
        if values.shape not in ((len(rows),), (size,)):
            raise BadData(f"losses of shape {values.shape} for {len(rows)} trained of {size} samples")
        fresh = values if len(values) == len(rows) else values[rows]
        if not np.isfinite(fresh).all():
            raise BadData("a loss of a trained sample is not a finite number; a smaller learning rate may help")
        return updated_losses(self._memory.losses, size, rows, fresh)

    def _packed(self, arrays: ArrayRecord | Sequence[NDArray[Any]]) -> tuple[ArrayRecord, Weights | None]:
        """The arrays as they travel, and what compression keeps back."""
        record = arrays if isinstance(arrays, ArrayRecord) else self._named(arrays)
        compress = self.method.compress
        trained = self._fitting(record)
        if isinstance(compress, NoCompression):
            return pack_vector(trained), None
        update = np.asarray(trained - self.weights(), dtype=np.float32)
        seed = integer_seed(self.order.seed, "compress", self.order.round, self.client)
        payload, residual = compress.encode(update, self.layout.layout, seed, self._memory.residual)
        return pack_payload(payload), residual

    def _fitting(self, record: ArrayRecord) -> Weights:
        try:
            return self.layout.flat(record)
        except Faulty as problem:
            raise BadData(f"the trained model does not fit the one that was sent: {problem}") from problem

    def _named(self, arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
        if len(arrays) != len(self.arrays):
            raise BadData(f"{len(arrays)} arrays for a model of {len(self.arrays)}")
        from fedbalancer.flower.compat import Array

        return ArrayRecord({name: Array(np.asarray(a)) for name, a in zip(self.arrays, arrays, strict=True)})

    def _save(self, memory: Memory) -> None:
        self._kept().save(memory)

    def _save_pending(self, listed: FloatArray, residual: Weights | None) -> None:
        from dataclasses import replace

        pending = {"pending_round": self.order.round, "pending_losses": listed, "pending_residual": residual}
        self._save(replace(self._memory, **pending))  # type: ignore[arg-type]
