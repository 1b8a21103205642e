"""The client's side for any framework: three calls inside your own train function.

@app.train()
def train(message, context):
    work = balanced(message, context, size=len(y))
    indices = work.select(forward=losses_of_all_samples)
    for rows in work.batches():          # stops by itself at the deadline
        losses[rows] = step(x[rows], y[rows])
    return work.reply(new_arrays, losses=losses)

What a client does in a round is `client/round.py`; this carries it: messages in, messages out, and its memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.client.live import DeviceClock, LiveRound, WallClock
from fedbalancer.client.policies import ClientPolicies, bind_labels
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import ClientWork, FloatArray, IndexArray, TrainResult, Weights
from fedbalancer.flower.compat import (
    Array,
    ArrayRecord,
    ClientApp,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    reply_to,
)
from fedbalancer.flower.memory import MemoryStore, SavedMemory
from fedbalancer.flower.messages import (
    ARRAYS,
    FEDBALANCER,
    METRICS,
    MOST_LATENCIES,
    VERSION,
    ClientMeasurements,
    Instruction,
    InvalidMessage,
    ModelLayout,
    check_metrics,
    check_version,
    pack_report,
    pack_stopped,
    pack_update,
    text,
)
from fedbalancer.flower.mods import check_app_mods


def balanced(
    message: Message,
    context: Context,
    *,
    size: int | None = None,
    fingerprint: str = "",
    method: Any = None,
    clock: DeviceClock | None = None,
    labels: Callable[[], ArrayLike] | None = None,
) -> LocalRound:
    """The round that a train message asks for.

    `size` is the client's number of samples (or give losses to `select`), `fingerprint` the name of its data as in
    `introduce`, `method` the server's own `Method` (or its `client` half) where it has policies of its own, `clock` an
    emulated device's, `labels` gives those of its samples, which a policy may select by and which stay here.
    """
    if FEDBALANCER not in message.content.config_records:
        raise BadSetting("this message is no order of fedbalancer.flower.Strategy: it has no record 'fedbalancer'")
    instruction = Instruction.read(message.content.config_records[FEDBALANCER])
    policies: ClientPolicies = (
        instruction.client_policies()
        if method is None
        else method
        if isinstance(method, ClientPolicies)
        else method.client
    )
    policies = bind_labels(policies, labels)
    return LocalRound(message, context, instruction, policies, size, fingerprint, clock or WallClock())


class LocalRound:
    """One round of one client. The clock runs from the moment at which it is made."""

    def __init__(
        self, message: Message, context: Context, instruction: Instruction, policies: ClientPolicies, size: int | None,
        fingerprint: str, clock: DeviceClock,
    ) -> None:  # fmt: skip
        self._clock, self._began_s = clock, clock.now_s()
        self.message, self.context, self.instruction, self.policies = message, context, instruction, policies
        self.order, self.client = instruction.order, instruction.client
        self._size, self._fingerprint = size, fingerprint
        self._live: LiveRound | None = None
        self._asked = False

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
        """Seconds since this round began."""
        return self._clock.now_s() - self._began_s

    def time_left(self) -> float:
        """Seconds until the client should send its report, the way back already taken off; inf without a deadline."""
        return (self.instruction.budget_s if self._live is None else self._live.budget_s) - self.elapsed_s()

    def select(self, losses: ArrayLike | None = None, *, forward: Callable[[], ArrayLike] | None = None) -> IndexArray:
        """The samples to train on, by the method's own policy.

        Without `losses` the list kept from earlier rounds is used. Where the policy needs one and there is none,
        `forward` is called and must give the loss of every sample; without it every sample counts as unknown, which is
        over the threshold. None are selected where the time is up before `forward` could begin.
        """
        given = None if losses is None else np.asarray(losses, dtype=np.float64)
        if given is not None and self._size is None:
            self._size = len(given)
        live = self._live = self._begun()
        if given is not None:
            live.add_forward_pass(self._checked(given, "losses"), keep=False)
        elif forward is not None:
            live.run_forward_pass(lambda: self._checked(np.array(forward(), dtype=np.float64), "forward"))
        elif live.needs_forward_pass:
            live.add_forward_pass(np.full(live.size, np.nan), keep=False)
        return live.indices

    @property
    def live(self) -> LiveRound:
        """The round itself, once its samples are selected."""
        if self._live is None:
            raise BadSetting("call work.select() before training: it says which samples to train")
        return self._live

    @property
    def indices(self) -> IndexArray:
        return self.live.indices

    @property
    def done(self) -> int:
        """Batches trained so far in this round."""
        return self.live.done

    def batches(self) -> Iterator[IndexArray]:
        """The mini-batches to train, one by one, until all epochs are done or the method's policy stops the client for
        its deadline. What is handed out counts as trained when the next one is asked for."""
        self._asked = True
        return self.live.batches()

    def client_work(self) -> ClientWork:
        """The training as pure work: the shuffles are those of the simulator, by seed, round and client."""
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
        """The report: `arrays` is the trained model under the names it came with (or a list of arrays in that order),
        `losses` the loss of every sample that was seen when it was first seen (or of all samples, by their numbers).

        `seen` are the samples trained: by default those that `batches` handed out, or all selected ones for a training
        loop of your own, which also says how many `epochs` it did if not all. A client whose policy counts nothing of
        what it did (FedAvg: not all epochs were in time) says so, and is free for the next round.

        `metrics` are numbers of your own; their means over the clients, weighted by samples, are in Flower's `Result`.
        `as_model` sends the trained model under the names that came in place of the update as one vector, for mods of
        Flower that look at it (`LocalDpMod`).
        """
        live, own = self.live, check_metrics(metrics)
        if not self._asked:
            live.note_training(epochs)
        if arrays is None or live.needs_forward_pass or not live.countable_batches(live.done):
            return self.report(None)
        rows = np.unique((live.seen if self._asked else live.indices) if seen is None else np.asarray(seen))
        update = np.asarray(self._flat(arrays) - self.weights(), dtype=np.float32)
        return self.report(TrainResult(self.client, update, rows, self._fresh(losses, rows)), as_model, own)

    def report(
        self, trained: TrainResult | None, as_model: bool = False, metrics: Mapping[str, float] | None = None
    ) -> Message:
        """The reply with what was trained, in the order of the model that was sent; None: nothing of it counts."""
        live = self.live
        released = live.finish(trained, self.layout.layout)
        measured = ClientMeasurements(
            live.reported_epochs(live.done), *live.reported_seconds(), phase="" if released else "train"
        )
        if released is None:
            self._keeper().save(SavedMemory(live.memory, saved=self._saved))
            return self._send(pack_stopped(self.client, self.order, measured, live.reported_batch_s()))
        self._keeper().save(SavedMemory(live.memory, released.memory, self.order.round, self._saved))
        arrays = self._model(released.sent) if as_model else pack_update(released.sent)
        size = None if self.policies.summary.is_private else live.size
        return self._send(pack_report(self.client, self.order, arrays, released.summary, measured, metrics, size))

    def _model(self, sent: Weights | bytes) -> ArrayRecord:
        """The trained model under the names that came."""
        if isinstance(sent, bytes):
            raise BadSetting(
                f"method {self.instruction.method!r} compresses updates; mods of Flower cannot look at them"
            )
        return self.layout.record(np.asarray(self.weights() + sent, dtype=np.float32))

    def _send(self, content: RecordDict) -> Message:
        return reply_to(self.message, content, self.elapsed_s())

    def _begun(self) -> LiveRound:
        """The round with what the client remembers, settled by what the server says that it took."""
        told, keeper = self.instruction, self._keeper()
        saved = keeper.load()
        self._saved = saved.saved
        return LiveRound(
            self.policies, self.order, self.client, keeper.size, saved.confirmed(told.accepted_round), told.batch_s,
            budget_s=told.budget_s, clock=self._clock, began_s=self._began_s, late_counts=told.late_counts,
        )  # fmt: skip

    def _keeper(self) -> MemoryStore:
        if self._size is None:
            raise BadSetting("how many samples the client has is not known; say balanced(message, context, size=...)")
        return MemoryStore(self.context, self.instruction.run_key, self.client, self._size, self._fingerprint)

    def _checked(self, losses: FloatArray, who: str) -> FloatArray:
        size = self._keeper().size
        if losses.shape != (size,):
            raise BadData(f"{who} must give a loss for each of the {size} samples, not shape {losses.shape}")
        if who == "forward" and not np.isfinite(losses).all():
            raise BadData(f"{who} must give a finite loss for each of the {size} samples")
        return losses

    def _fresh(self, losses: ArrayLike | None, rows: IndexArray) -> FloatArray:
        """The losses of the samples that were trained."""
        if losses is None:
            if self.policies.summary.releases_losses:
                raise BadSetting("work.reply needs losses=...: the loss of every trained sample when it was first seen")
            return np.full(len(rows), np.nan)
        values, size = np.asarray(losses, dtype=np.float64), self.live.size
        if values.shape not in ((len(rows),), (size,)):
            raise BadData(f"losses of shape {values.shape} for {len(rows)} trained of {size} samples")
        fresh = values if len(values) == len(rows) else values[rows]
        if not np.isfinite(fresh).all():
            raise BadData("a loss of a trained sample is not a finite number; a smaller learning rate may help")
        return fresh

    def _flat(self, arrays: ArrayRecord | Sequence[NDArray[Any]]) -> Weights:
        """The trained model as one vector."""
        try:
            return self.layout.flat(arrays if isinstance(arrays, ArrayRecord) else self._named(arrays))
        except InvalidMessage as problem:
            raise BadData(f"the trained model does not fit the one that was sent: {problem}") from problem

    def _named(self, arrays: Sequence[NDArray[Any]]) -> ArrayRecord:
        if len(arrays) != len(self.arrays):
            raise BadData(f"{len(arrays)} arrays for a model of {len(self.arrays)}")
        return ArrayRecord({name: Array(np.asarray(a)) for name, a in zip(self.arrays, arrays, strict=True)})


CLIENT_ID, PARTITION = "client-id", "partition-id"


"""Keys of a node's configuration that say who it is; the first wins."""


CLIENT = "FEDBALANCER_CLIENT"


ACTION = "fedbalancer"


BatchSeconds = Callable[[Context, int, int], Sequence[float]]


"""(context, batch size, count) -> seconds of so many training batches, measured now."""


def client_id(context: Context) -> str:
    """Who this client is, also after a restart: `client-id` of the node's configuration, the environment variable
    FEDBALANCER_CLIENT, or `partition-id`. Without any of them the id of the node, which stays the same over a restart
    only where nodes are authenticated."""
    named = str(context.node_config.get(CLIENT_ID, "") or os.environ.get(CLIENT, ""))
    if named:
        return named
    partition = context.node_config.get(PARTITION)
    return f"node-{context.node_id}" if partition is None else f"client-{partition}"


def introduce(
    app: ClientApp,
    size: Callable[[Context], int],
    *,
    batch_s: BatchSeconds | None = None,
    fingerprint: Callable[[Context], str] = lambda context: "",
) -> ClientApp:
    """Let an app answer the server's first question. `size` tells the client's number of samples, `batch_s` times a few
    training batches (without it the server assumes the speed of the others, until the first report), `fingerprint`
    names the data, so that a loss list of other data is not taken for its own."""
    check_app_mods(app)

    @app.query(ACTION)
    def hello(message: Message, context: Context) -> Message:
        check_app_mods(app)  # again: the train function may have been registered after `introduce`
        return answer(message, context, size(context), batch_s, fingerprint(context))

    return app


def answer(
    message: Message,
    context: Context,
    size: int,
    batch_s: BatchSeconds | None = None,
    fingerprint: str = "",
    clock: Callable[[], float] | None = None,
) -> Message:
    """The reply to the server's first question; what was measured is remembered for the first selection of samples."""
    clock = clock or time.monotonic
    started = clock()
    asked = message.content.config_records[FEDBALANCER]
    check_version(asked)
    count, batch_size = (asked[name] for name in ("latencies", "batch-size"))
    if not isinstance(count, int) or not isinstance(batch_size, int) or not 1 <= count <= MOST_LATENCIES:
        raise BadSetting(f"the server asks for {count!r} latencies of batches of {batch_size!r}")
    measured = [float(seconds) for seconds in batch_s(context, batch_size, count)] if batch_s is not None else []
    client = client_id(context)
    keeper = MemoryStore(context, text(asked, "run-key"), client, size, fingerprint)
    memory = keeper.load()
    if not memory.now.batch_s_count and measured:
        now = replace(memory.now, batch_s_sum=sum(measured), batch_s_count=len(measured))
        keeper.save(replace(memory, now=now))
    busy_s = clock() - started
    ours = ConfigRecord({"version": VERSION, "client": client})
    metrics = MetricRecord({"num-examples": size, "batch-s": measured, "busy-s": busy_s})
    return reply_to(message, RecordDict({FEDBALANCER: ours, METRICS: metrics}), busy_s)
