"""How clients introduce themselves: a stable id, how much data they have, and how fast they are."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower.compat import (
    ClientApp,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    reply_to,
)
from fedbalancer.flower.layout import Faulty
from fedbalancer.flower.memory import Keeper
from fedbalancer.flower.mods import check_app_mods
from fedbalancer.flower.orders import METRICS, OURS, VERSION, check_version, text

CLIENT_ID, PARTITION = "client-id", "partition-id"
"""Keys of a node's configuration that say who it is; the first wins."""

CLIENT = "FEDBALANCER_CLIENT"
ACTION = "fedbalancer"
MOST_LATENCIES, MOST_BATCH_S = 1000, 3600.0
MOST_SAMPLES = 100_000
"""Samples that a client may claim by default; `Strategy(most_samples=...)` changes it."""

BatchSeconds = Callable[[Context, int, int], Sequence[float]]
"""(context, batch size, count) -> seconds of so many training batches, measured now."""


@dataclass(frozen=True)
class Greeting:
    """What a client said of itself. `network_s` is what the greeting took beside the client's own work."""

    client: str
    size: int
    batch_s: tuple[float, ...]
    network_s: float


def client_id(context: Context) -> str:
    """Who this client is, also after a restart: `client-id` of the node's configuration, the environment variable
    FEDBALANCER_CLIENT, or `partition-id`. Without any of them the id of the node, which stays the same over a restart
    only where nodes are authenticated."""
    named = str(context.node_config.get(CLIENT_ID, "") or os.environ.get(CLIENT, ""))
    if named:
        return named
    partition = context.node_config.get(PARTITION)
    return f"node-{context.node_id}" if partition is None else f"client-{partition}"


def question(run_key: str, batch_size: int, latencies: int) -> RecordDict:
    """What the server asks a node that it does not know yet."""
    asked: dict[str, Any] = {"version": VERSION, "run-key": run_key, "batch-size": batch_size, "latencies": latencies}
    return RecordDict({OURS: ConfigRecord(asked)})


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
    asked = message.content.config_records[OURS]
    check_version(asked)
    count, batch_size = (asked[name] for name in ("latencies", "batch-size"))
    if not isinstance(count, int) or not isinstance(batch_size, int) or not 1 <= count <= MOST_LATENCIES:
        raise BadSetting(f"the server asks for {count!r} latencies of batches of {batch_size!r}")
    measured = [float(seconds) for seconds in batch_s(context, batch_size, count)] if batch_s is not None else []
    client = client_id(context)
    keeper = Keeper(context, text(asked, "run-key"), client, size, fingerprint)
    memory = keeper.load()
    if not memory.now.batch_s_count and measured:
        now = replace(memory.now, batch_s_sum=sum(measured), batch_s_count=len(measured))
        keeper.save(replace(memory, now=now))
    busy_s = clock() - started
    ours = ConfigRecord({"version": VERSION, "client": client})
    metrics = MetricRecord({"num-examples": size, "batch-s": measured, "busy-s": busy_s})
    return reply_to(message, RecordDict({OURS: ours, METRICS: metrics}), busy_s)


def read(message: Message, round_trip_s: float, most_samples: int) -> Greeting:
    """The greeting in a reply, or `Faulty` with what is wrong in it."""
    try:
        ours, metrics = message.content.config_records[OURS], message.content.metric_records[METRICS]
        check_version(ours)
        client = text(ours, "client")
    except (KeyError, ValueError, BadSetting) as error:
        raise Faulty(f"no greeting of this wire format: {error}") from error
    size, latencies, busy_s = metrics.get("num-examples"), metrics.get("batch-s"), metrics.get("busy-s")
    if not client or isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most_samples:
        raise Faulty(f"client {client!r} with {size!r} samples; 1 to {most_samples} are allowed (most_samples)")
    if not isinstance(latencies, list) or len(latencies) > MOST_LATENCIES:
        raise Faulty("batch latencies that are no short list")
    if any(not 0 < seconds <= MOST_BATCH_S for seconds in latencies):
        raise Faulty(f"a batch latency that is not a number over 0 and up to {MOST_BATCH_S:g} s")
    if not isinstance(busy_s, int | float) or not 0 <= busy_s < math.inf:
        raise Faulty(f"busy seconds {busy_s!r}")
    return Greeting(client, size, tuple(float(s) for s in latencies), max(round_trip_s - busy_s, 0.0))
