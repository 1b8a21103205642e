"""The client side for any framework: `introduce` an app once, and use `balanced` in its train function.

@app.train()
def train(message, context):
    work = balanced(message, context, size=len(y))
    work.select(forward=losses_of_all_samples)
    for rows in work.batches():          # stops at the deadline
        losses[rows] = step(x[rows], y[rows])
    return work.reply(new_arrays, losses=losses)

`client/round.py` decides what a client does in a round. This module translates between it and Flower's messages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.client.live import DeviceClock, LiveRound, WallClock
from fedbalancer.client.policies import ClientPolicies, bind_labels
from fedbalancer.client.training import make_part
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import ClientWork, FloatArray, IndexArray, Order, TrainResult, Weights
from fedbalancer.flower.compat import (
    Array,
    ArrayRecord,
    Context,
    Message,
    RecordDict,
    reply_to,
)
from fedbalancer.flower.events import configure_log, json_fields
from fedbalancer.flower.introduction import client_tags
from fedbalancer.flower.memory import MemoryStore, SavedMemory
from fedbalancer.flower.messages import (
    ARRAYS,
    FEDBALANCER,
    ClientMeasurements,
    Instruction,
    check_metrics,
    pack_declined,
    pack_report,
    pack_stopped,
    pack_update,
    read_arrays,
)
from fedbalancer.flower.model_arrays import InvalidMessage, ModelLayout
from fedbalancer.flower.secure import KEYS, SUMS_ONLY, has_summed, hold_update

_log = logging.getLogger("flwr.fedbalancer")


def balanced(
    message: Message,
    context: Context,
    *,
    size: int | None = None,
    fingerprint: str = "",
    method: Any = None,
    clock: DeviceClock | None = None,
    labels: Callable[[], ArrayLike] | None = None,
    tags: Sequence[str] | None = None,
) -> LocalRound:
    """Start the round that a train message orders. Call it inside the train function of an app.

    Example:
        >>> @app.train()  # doctest: +SKIP
        ... def train(message, context):
        ...     work = balanced(message, context, size=len(y))
        ...     work.select(forward=lambda: losses_of_all_samples(work.arrays))
        ...     for rows in work.batches():
        ...         losses[rows] = train_one_batch(x[rows], y[rows])
        ...     return work.reply(trained_arrays, losses=losses)

    Args:
        message: The train message.
        context: Flower's context of the node.
        size: Number of samples of this client. Default: the number of losses given to `select`.
        fingerprint: Identifies the data, as in `introduce`.
        method: The server's `Method`, or its `client` part, if it has custom policies.
        clock: Clock of an emulated device.
        labels: Returns the labels of the samples, for policies that select by label. They stay on the client.
        tags: Current conditions of the device, as in `introduce`; the reply sends them. None: they never change.

    Returns:
        The round.

    Raises:
        BadSetting: The message does not come from `fedbalancer.flower.Strategy`.
    """
    if FEDBALANCER not in message.content.config_records:
        raise BadSetting("this message is not from fedbalancer.flower.Strategy: it has no record 'fedbalancer'")
    configure_log()
    instruction = Instruction.read(message.content.config_records[FEDBALANCER])
    if method is None:
        policies = instruction.client_policies()
    else:
        policies = method if isinstance(method, ClientPolicies) else method.client
    policies = bind_labels(policies, labels)
    return LocalRound(message, context, instruction, policies, size, fingerprint, clock or WallClock(), tags)


class LocalRound:
    """One round of one client, made by `balanced`. Its clock starts when it is created.

    Args:
        message: The train message.
        context: Flower's context of the node.
        instruction: The server's instruction.
        policies: The client policies.
        size: Number of samples; None if `select` gets the losses.
        fingerprint: Identifies the data.
        clock: The client's clock.
        tags: Current conditions of the device; None if they never change.
    """

    def __init__(
        self, message: Message, context: Context, instruction: Instruction, policies: ClientPolicies, size: int | None,
        fingerprint: str, clock: DeviceClock, tags: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self._clock, self._began_s = clock, clock.now_s()
        self.message, self.context, self.instruction, self.policies = message, context, instruction, policies
        self.order, self.client = self._with_arrays(instruction.order), instruction.client
        self._size, self._fingerprint = size, fingerprint
        self._tags = None if tags is None else client_tags(context, tags)
        self._live: LiveRound | None = None
        self._uses_batches = False

    def _with_arrays(self, order: Order) -> Order:
        """Return the order with the method's arrays, which travel in their own record."""
        declared = self.policies.train.down_arrays(self.layout.layout)
        try:
            return replace(order, arrays=read_arrays(self.message.content, declared)) if declared else order
        except InvalidMessage as problem:
            raise BadSetting(f"the order has {problem}") from problem

    @property
    def arrays(self) -> ArrayRecord:
        """The global model as it was sent."""
        return self.message.content.array_records[ARRAYS]

    @cached_property
    def layout(self) -> ModelLayout:
        """Names, shapes and types of the model's arrays."""
        return ModelLayout.of(self.arrays)

    def weights(self) -> Weights:
        """Return the global model as one vector of float32."""
        return self.layout.flat(self.arrays)

    def elapsed_s(self) -> float:
        """Return the seconds since the round started."""
        return self._clock.now_s() - self._began_s

    def time_left(self) -> float:
        """Return the seconds until the report should be sent, without transport; infinite without a deadline."""
        return (self.instruction.budget_s if self._live is None else self._live.budget_s) - self.elapsed_s()

    def select(self, losses: ArrayLike | None = None, *, forward: Callable[[], ArrayLike] | None = None) -> IndexArray:
        """Select the samples to train on with the method's policy.

        Args:
            losses: Loss of every sample. Default: the list of earlier rounds.
            forward: Returns the loss of every sample. It is called only if the policy needs losses and there is no
                list. Without it, unknown samples count as over the threshold.

        Returns:
            Indices of the samples; empty if the time is up before `forward` could start.

        Raises:
            BadData: There is not exactly one loss per sample.
        """
        values = None if losses is None else np.asarray(losses, dtype=np.float64)
        if values is not None and self._size is None:
            self._size = len(values)
        live = self._live = self._start()
        if values is not None:
            live.add_forward_pass(self._check_losses(values, "losses"), keep=False)
        elif forward is not None:
            live.run_forward_pass(lambda: self._check_losses(np.array(forward(), dtype=np.float64), "forward"))
        elif live.needs_forward_pass:
            live.add_forward_pass(np.full(live.size, np.nan), keep=False)
        return live.indices

    @property
    def live(self) -> LiveRound:
        """The framework-independent round, available after `select`."""
        if self._live is None:
            raise BadSetting("call work.select() before training: it returns the samples to train")
        return self._live

    @property
    def indices(self) -> IndexArray:
        """The selected samples."""
        return self.live.indices

    @property
    def done(self) -> int:
        """Number of batches trained in this round."""
        return self.live.done

    def batches(self) -> Iterator[IndexArray]:
        """Yield the mini-batches to train, until all epochs are done or the method's policy stops the client.

        A batch counts as trained when the next one is requested.
        """
        self._uses_batches = True
        return self.live.batches()

    def client_work(self) -> ClientWork:
        """Return the training as data, with the simulator's shuffles for this seed, round and client."""
        return self.live.work()

    def reply(
        self,
        arrays: ArrayRecord | Sequence[NDArray[Any]] | None = None,
        *,
        losses: ArrayLike | None = None,
        seen: ArrayLike | None = None,
        epochs: float | None = None,
        metrics: Mapping[str, float] | None = None,
        as_model: bool = False,
    ) -> Message:
        """Build the report. If nothing of the training counts, the reply says only that the client stopped.

        Args:
            arrays: The trained model under the names that were sent, or a list of arrays in that order.
            losses: The loss of every trained sample when it was first seen in this round, or of all samples.
            seen: The trained samples. Default: those that `batches` yielded, or all selected ones.
            epochs: Epochs done by your own training loop, if not all.
            metrics: Custom metrics. Their means, weighted by samples, are in Flower's `Result`.
            as_model: Whether to send the named model instead of the update, for mods that read it (`LocalDpMod`).

        Returns:
            The reply.

        Raises:
            BadData: Losses, metrics or the model are invalid.
            BadSetting: A needed argument is missing.
        """
        if not (self.policies.train.is_plain and self.policies.part.is_whole):
            raise BadSetting(
                f"method {self.instruction.method!r} changes local training (slots train and part); train with "
                "fedbalancer.flower.client_app, which follows it"
            )
        live, custom = self.live, check_metrics(metrics)
        if not self._uses_batches:
            live.note_training(epochs)
        if arrays is None or live.needs_forward_pass or not live.countable_batches(live.done):
            return self.report(None)
        rows = np.unique((live.seen if self._uses_batches else live.indices) if seen is None else np.asarray(seen))
        update = np.asarray(self._flatten(arrays) - self.weights(), dtype=np.float32)
        return self.report(TrainResult(self.client, update, rows, self._trained_losses(losses, rows)), as_model, custom)

    def decline(self, reason: str) -> Message:
        """Build the reply of a client that does not take part in this round, for example at a low battery.

        Return it from the train function before any training. The round does not wait for this client, and the client
        may be selected again in the next round.

        Args:
            reason: Why, in a few words; it is in the run's tables and log.

        Returns:
            The reply.
        """
        _log.info("declined: round %d", self.order.round, extra=json_fields(
            "declined", run=self.instruction.run_key, round=self.order.round, client=self.client, why=reason,
        ))  # fmt: skip
        return self._reply_with(pack_declined(self.client, self.order, reason, self.instruction.version, self._tags))

    def report(
        self, trained: TrainResult | None, as_model: bool = False, metrics: Mapping[str, float] | None = None
    ) -> Message:
        """Build the reply from a training result.

        Args:
            trained: The result, in the order of the model that was sent; None if nothing counts.
            as_model: Whether to send the named model instead of the update.
            metrics: Custom metrics.

        Returns:
            The reply.
        """
        live = self.live
        released = live.finish(trained, self.layout.layout)
        measured = ClientMeasurements(
            live.reported_epochs(live.done), *live.reported_seconds(), phase="" if released else "train"
        )
        outcome = "stopped at the deadline" if released is None else "reported"
        _log.info("%s: round %d", outcome, self.order.round, extra=json_fields(
            outcome, run=self.instruction.run_key, round=self.order.round, client=self.client,
            batches=live.done, seconds=round(self.elapsed_s(), 3),
        ))  # fmt: skip
        if released is None:
            self._memory_store().save(SavedMemory(live.memory, saved=self._saved))
            return self._reply_stopped(measured)
        if has_summed(self.context, self.instruction):  # a second sum of one round would reveal the difference
            return self._reply_stopped(measured)
        self._memory_store().save(SavedMemory(live.memory, released.memory, self.order.round, self._saved))
        self._check_sums_only(as_model)
        arrays = self._named_model(released.sent) if as_model else pack_update(self._sent_part(released.sent))
        size = None if self.policies.summary.is_private else live.size
        summary, keys = released.summary, {}
        if self.instruction.sum_bits:
            update = np.asarray(released.sent, dtype=np.float32)
            keys = {KEYS: hold_update(self.context, self.instruction, update, summary.released)}
            arrays, summary = ArrayRecord(), replace(summary, released=())
        content = pack_report(
            self.client, self.order, arrays, summary, measured, metrics, size, released.arrays,
            self.instruction.version, self._tags,
        )  # fmt: skip
        return self._reply_with(RecordDict({**content, **keys}))

    def _reply_stopped(self, measured: ClientMeasurements) -> Message:
        batch_s, version = self.live.reported_batch_s(), self.instruction.version
        return self._reply_with(pack_stopped(self.client, self.order, measured, batch_s, version, self._tags))

    def _check_sums_only(self, as_model: bool) -> None:
        """Refuse to send an update in the clear if this client sends masked ones only, and mods that need it clear."""
        if os.environ.get(SUMS_ONLY) == "1" and not self.instruction.sum_bits:
            raise BadSetting(f"{SUMS_ONLY} = 1, and the server asks for an update without secure aggregation")
        if self.instruction.sum_bits and as_model:
            raise BadSetting("mods get no update under secure aggregation: it stays on the client; leave them out")

    def _sent_part(self, sent: Weights | bytes) -> Weights | bytes:
        """Return the trained part of an update."""
        part = self.live.part
        return sent if part is None or isinstance(sent, bytes) else sent[part.mask]

    def _named_model(self, sent: Weights | bytes) -> ArrayRecord:
        if self.live.part is not None:
            raise BadSetting(f"method {self.instruction.method!r} sends parts of the model, which mods cannot read")
        if isinstance(sent, bytes):
            raise BadSetting(f"method {self.instruction.method!r} compresses updates, which Flower's mods cannot read")
        return self.layout.record(np.asarray(self.weights() + sent, dtype=np.float32))

    def _reply_with(self, content: RecordDict) -> Message:
        return reply_to(self.message, content, self.elapsed_s())

    def _start(self) -> LiveRound:
        """Start the round with the client's memory, as far as the server has accepted it."""
        instruction, store = self.instruction, self._memory_store()
        saved = store.load()
        self._saved = saved.saved
        return LiveRound(
            self.policies, self.order, self.client, store.size, saved.confirmed(instruction.accepted_round),
            instruction.batch_s, budget_s=instruction.budget_s, clock=self._clock, began_s=self._began_s,
            late_counts=instruction.late_counts,
            part=make_part(self.policies.part, self.layout.layout, self.client, instruction.rank, self.order),
        )  # fmt: skip

    def _memory_store(self) -> MemoryStore:
        if self._size is None:
            raise BadSetting("the number of samples is not known; use balanced(message, context, size=...)")
        return MemoryStore(self.context, self.instruction.run_key, self.client, self._size, self._fingerprint)

    def _check_losses(self, losses: FloatArray, argument: str) -> FloatArray:
        size = self._memory_store().size
        if losses.shape != (size,):
            raise BadData(f"{argument} must give a loss for each of the {size} samples, not shape {losses.shape}")
        if argument == "forward" and not np.isfinite(losses).all():
            raise BadData(f"{argument} must give a finite loss for each of the {size} samples")
        return losses

    def _trained_losses(self, losses: ArrayLike | None, rows: IndexArray) -> FloatArray:
        """Return the losses of the trained samples."""
        if losses is None:
            if self.policies.summary.releases_losses:
                raise BadSetting("work.reply needs losses=...: the loss of every trained sample when it was first seen")
            return np.full(len(rows), np.nan)
        values, size = np.asarray(losses, dtype=np.float64), self.live.size
        if values.shape not in ((len(rows),), (size,)):
            raise BadData(f"losses of shape {values.shape} for {len(rows)} trained of {size} samples")
        trained = values if len(values) == len(rows) else values[rows]
        if not np.isfinite(trained).all():
            raise BadData("a loss of a trained sample is not a finite number; a smaller learning rate may help")
        return trained

    def _flatten(self, arrays: ArrayRecord | Sequence[NDArray[Any]]) -> Weights:
        """Return the trained model as one vector."""
        try:
            return self.layout.flat(arrays if isinstance(arrays, ArrayRecord) else self._add_names(arrays))
        except InvalidMessage as problem:
            raise BadData(f"the trained model does not fit the one that was sent: {problem}") from problem

    def _add_names(self, arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
        if len(arrays) != len(self.arrays):
            raise BadData(f"{len(arrays)} arrays for a model of {len(self.arrays)}")
        return ArrayRecord({name: Array(np.asarray(a)) for name, a in zip(self.arrays, arrays, strict=True)})
