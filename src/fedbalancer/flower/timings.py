"""Timings of stock Flower strategies, so that a fleet can be learned from their runs.

`timing_mod` is a mod for the clients and `record_timings` wraps the server's grid. Together they write the tables of a
run folder, which `fedbalancer fleet learn` reads. They change neither the model nor the metrics.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower.compat import ConfigRecord, Context, Grid, Message, pull
from fedbalancer.flower.introduction import client_id
from fedbalancer.flower.messages import CONFIG, TRAIN, WEIGHT
from fedbalancer.flower.mods import Mod
from fedbalancer.store import ClientRow, RoundRow, RunFolder, new_manifest

RECORD = "fedbalancer.timings"
"""Name of the configuration record in which a client reports its timings. Flower's strategies ignore it."""
METHOD = "stock"
"""Method of a run with a strategy of Flower."""
POLL_S = 0.5
"""Seconds between two pulls of replies; Flower's own is 3, which would be the precision of every time."""


def timing_mod(*, epochs: int = 1, batch_size: int = 32, clock: Callable[[], float] = time.monotonic) -> Mod:
    """Return a mod that adds the duration of a training to its reply.

    Use it as `ClientApp(mods=[timing_mod(epochs=5, batch_size=32)])` or `@app.train(mods=[...])`. The client's id is
    the one that it has in a FedBalancer run, so the learned devices belong to the same clients.

    Args:
        epochs: Local epochs of a training.
        batch_size: Samples per batch.
        clock: Returns the current time in seconds.

    Raises:
        BadSetting: If a number is not positive.
    """
    if epochs < 1 or batch_size < 1:
        raise BadSetting(f"timing_mod: epochs = {epochs} and batch_size = {batch_size} must be at least 1")

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        if message.metadata.message_type.partition(".")[0] != TRAIN:
            return call_next(message, context)
        began = clock()
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        values: dict[str, Any] = {
            "client": client_id(context),
            "busy_s": clock() - began,
            "epochs": epochs,
            "batch_size": batch_size,
        }
        reply.content.config_records[RECORD] = ConfigRecord(values)
        return reply

    return mod


@contextmanager
def record_timings(
    grid: Grid,
    folder: Path | str,
    *,
    task: str = "flower",
    poll_s: float = POLL_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Grid]:
    """Provide a grid that records the timings of every training round in a run folder.

    Args:
        grid: The grid that Flower passes to the `ServerApp`.
        folder: A new folder.
        task: Name of the task, for tables.
        poll_s: Seconds between two pulls of replies, the precision of the times.
        clock: Returns the current time in seconds.
        sleep: Waits for a number of seconds.

    Yields:
        The grid to pass to any strategy's `start`.

    Raises:
        RunFolderError: If the folder may not be written.

    Example:
        >>> with record_timings(grid, "runs/stock") as timed:  # doctest: +SKIP
        ...     FedAvg().start(grid=timed, initial_arrays=arrays, num_rounds=10)
    """
    manifest = new_manifest(
        task={"name": task, "variant": "", "scale": "real"}, method=METHOD, seed=0, settings={}, engine="flower",
        device="real",
    )  # fmt: skip
    with RunFolder.create(Path(folder), manifest) as recorded:
        timed = TimedGrid(grid, recorded, poll_s, clock, sleep)
        try:
            yield timed
        except BaseException as error:
            recorded.finish("failed", repr(error))
            raise
        recorded.finish("done", None)


@dataclass
class _Sent:
    """An order that was sent: to which node, with how many bytes."""

    node: int
    size: int


class TimedGrid(Grid):
    """A grid that records when every reply to a training arrives; all else is done by the grid that it wraps.

    Args:
        grid: The wrapped grid.
        folder: Where the rounds are recorded.
        poll_s: Seconds between two pulls.
        clock: Returns the current time in seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self, grid: Grid, folder: RunFolder, poll_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._grid, self._folder, self._poll_s, self._clock, self._sleep = grid, folder, poll_s, clock, sleep
        self._started_s = clock()
        self._rounds = 0
        self._client_of: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    @property
    def run(self) -> Any:
        """Flower's description of the run."""
        return self._grid.run

    def set_run(self, *arguments: Any, **options: Any) -> None:
        """Call the wrapped grid."""
        self._grid.set_run(*arguments, **options)

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Call the wrapped grid."""
        return self._grid.create_message(*arguments, **options)

    def get_node_ids(self) -> Iterable[int]:
        """Call the wrapped grid."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the wrapped grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Call the wrapped grid."""
        return pull(self._grid, message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for the replies, as Flower does; a training round is recorded.

        Args:
            messages: The messages.
            timeout: Longest wait in seconds. None: until all have replied.
        """
        sending = list(messages)
        if not sending:
            return []
        if any(message.metadata.message_type.partition(".")[0] != TRAIN for message in sending):
            return self._grid.send_and_receive(sending, timeout=timeout)
        began = self._clock()
        sent = [_Sent(message.metadata.dst_node_id, _array_bytes(message)) for message in sending]
        number = next((_round_of(message) for message in sending), None) or self._rounds + 1
        order_of = dict(zip(self._grid.push_messages(sending), sent, strict=False))
        sending.clear()
        waiting, replies, arrived_s = set(order_of), [], {}
        limit_s = math.inf if timeout is None else timeout
        while waiting:
            for reply in pull(self._grid, waiting):
                identity = reply.metadata.reply_to_message_id
                waiting.discard(identity)
                arrived_s[identity] = self._clock() - began
                replies.append(reply)
            if not waiting or self._clock() - began >= limit_s:
                break
            self._sleep(min(self._poll_s, limit_s))
        self._record(number, began, order_of, replies, arrived_s)
        return replies

    def _record(
        self, number: int, began: float, order_of: dict[str, _Sent], replies: list[Message], arrived_s: dict[str, float]
    ) -> None:
        """Record a round: a row per client, and the round itself."""
        seconds = self._clock() - began
        rows, answered, up_bytes = [], set(), 0
        for reply in replies:
            identity = reply.metadata.reply_to_message_id
            order = order_of[identity]
            answered.add(identity)
            rows.append(self._client_row(number, order.node, reply, arrived_s[identity], len(order_of)))
            up_bytes += _array_bytes(reply)
        silent = [order.node for identity, order in order_of.items() if identity not in answered]
        rows += [_empty_row(number, self._client_of.get(node, f"node-{node}"), "silent") for node in silent]
        done = [row for row in rows if row.outcome == "completed"]
        start_s = began - self._started_s
        row = RoundRow(
            round=number, start_s=start_s, end_s=start_s + seconds, deadline_s=math.inf, loss_threshold=0.0,
            loss_threshold_ratio=0.0, deadline_ratio=0.0, selected=len(order_of), completed=len(done),
            samples=sum(each.samples for each in done),
            epochs=sum(each.epochs for each in done) / len(done) if done else 0.0, utility=None,
            down_bytes=sum(order.size for order in order_of.values()), up_bytes=up_bytes,
            device_s=sum(each.download_s + each.train_s + each.upload_s for each in rows),
        )  # fmt: skip
        self._rounds = number
        self._folder.record(row, [], sorted(rows, key=lambda each: each.client))
        self._folder.log("round closed", round=number, seconds=round(seconds, 3), completed=len(done))
        self._folder.write_tables()

    def _client_row(self, number: int, node: int, reply: Message, seconds: float, selected: int) -> ClientRow:
        """Return the row of a reply; one without timings has no seconds."""
        if reply.has_error() or RECORD not in reply.content.config_records:
            why = (reply.error.reason or "error") if reply.has_error() else "the client has no timing_mod"
            return _empty_row(number, self._client_of.get(node, f"node-{node}"), "error", why)
        own = reply.content.config_records[RECORD]
        client, busy_s, epochs, batch_size = (own[name] for name in ("client", "busy_s", "epochs", "batch_size"))
        self._client_of[node] = str(client)
        counts = [each[WEIGHT] for each in reply.content.metric_records.values() if WEIGHT in each]
        samples = max(int(counts[0]), 1) if counts else 1  # type: ignore[arg-type]
        busy_s = min(max(float(busy_s), 0.0), seconds)  # type: ignore[arg-type]
        settings = {
            "batch_size": int(batch_size), "epochs": int(epochs),  # type: ignore[arg-type]
            "clients_per_round": selected,
        }  # fmt: skip
        if self._folder.manifest.get("settings") != settings:
            self._folder.update_manifest(settings=settings)
        half_s = (seconds - busy_s) / 2
        return ClientRow(number, str(client), half_s, 0.0, busy_s, half_s, 0.0, float(settings["epochs"]), samples,
                         "completed")  # fmt: skip


def _round_of(message: Message) -> int | None:
    """Return the round of an order, as Flower's strategies write it."""
    config = message.content.config_records.get(CONFIG)
    number = None if config is None else config.get("server-round")
    return number if isinstance(number, int) else None


def _empty_row(number: int, client: str, outcome: str, why: str = "") -> ClientRow:
    return ClientRow(number, client, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, outcome, why[:300])


def _array_bytes(message: Message) -> int:
    records = message.content.array_records.values() if message.has_content() else ()
    return sum(len(array.data) for record in records for array in record.values())
