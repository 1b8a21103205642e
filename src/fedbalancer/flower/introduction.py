"""The introduction of a client: its id, tags, number of samples and speed, in reply to the server's first message."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedbalancer import __version__
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
from fedbalancer.flower.memory import MemoryStore
from fedbalancer.flower.messages import (
    DECLINES_SINCE,
    FEDBALANCER,
    METRICS,
    MOST_LATENCIES,
    TAGS,
    common_version,
    read_text,
)
from fedbalancer.flower.mods import check_app_mods
from fedbalancer.flower.secure import SUM_ACTION, answer_sum

CLIENT_ID, PARTITION = "client-id", "partition-id"
"""Keys of a node configuration that identify the client; the first takes precedence."""
CLIENT = "FEDBALANCER_CLIENT"
"""Environment variable with the id of the client."""
TAGS_VARIABLE = "FEDBALANCER_TAGS"
"""Environment variable with the client's tags, separated by a plus; the node configuration takes precedence."""
ACTION = "fedbalancer"

ClientTags = Callable[[Context], Sequence[str]]
"""(context) -> the current conditions of the device, as tags."""
BatchSeconds = Callable[[Context, int, int], Sequence[float]]
"""(context, batch size, count) -> measured seconds of `count` training batches."""


def introduce(
    app: ClientApp,
    size: Callable[[Context], int],
    *,
    batch_s: BatchSeconds | None = None,
    fingerprint: Callable[[Context], str] = lambda context: "",
    tags: ClientTags | None = None,
) -> ClientApp:
    """Make an app answer the server's first message, which asks for the client's id, size and speed.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = introduce(ClientApp(), size=lambda context: 120)

    Args:
        app: The app.
        size: Returns the client's number of samples.
        batch_s: Measures training batches: (context, batch size, count) -> seconds. Without it the server assumes the
            mean speed of the other clients until the first report.
        fingerprint: Identifies the data, so that a loss list of other data is not used.
        tags: Returns the current conditions of the device as tags, such as `charging` and `unmetered`. They are added
            to the tags of the node configuration (`tags = "pixel+canary"`).

    Returns:
        The same app.

    Raises:
        BadSetting: The app has mods that do not work here.
    """
    check_app_mods(app)

    @app.query(SUM_ACTION)
    def sum_up(message: Message, context: Context) -> Message:
        return answer_sum(message, context)

    @app.query(ACTION)
    def hello(message: Message, context: Context) -> Message:
        check_app_mods(app)  # again: the train function may have been registered after `introduce`
        conditions = None if tags is None else list(tags(context))
        return answer_greeting(message, context, size(context), batch_s, fingerprint(context), tags=conditions)

    return app


def answer_greeting(
    message: Message,
    context: Context,
    size: int,
    batch_s: BatchSeconds | None = None,
    fingerprint: str = "",
    clock: Callable[[], float] | None = None,
    tags: Sequence[str] | None = None,
) -> Message:
    """Build the reply to the server's first message. The measured speed is kept for the first round.

    Args:
        message: The server's message.
        context: Flower's context of the node.
        size: Number of samples.
        batch_s: Measures training batches.
        fingerprint: Identifies the data.
        clock: Returns the current time in seconds.
        tags: Current conditions of the device. None: they never change.
    """
    clock = clock or time.monotonic
    started = clock()
    request = message.content.config_records[FEDBALANCER]
    version = common_version(request)
    if request.get("refresh") is True:  # only the tags: do not measure again
        batch_s = None
    count, batch_size = (request[name] for name in ("latencies", "batch-size"))
    if not isinstance(count, int) or not isinstance(batch_size, int) or not 1 <= count <= MOST_LATENCIES:
        raise BadSetting(f"the server asks for {count!r} latencies of batches of {batch_size!r}")
    measured = [float(seconds) for seconds in batch_s(context, batch_size, count)] if batch_s is not None else []
    client = client_id(context)
    store = MemoryStore(context, read_text(request, "run-key"), client, size, fingerprint)
    memory = store.load()
    if not memory.now.batch_s_count and measured:
        now = replace(memory.now, batch_s_sum=sum(measured), batch_s_count=len(measured))
        store.save(replace(memory, now=now))
    busy_s = clock() - started
    identity: dict[str, Any] = {"version": version, "client": client}
    if version >= DECLINES_SINCE:
        named = client_tags(context, tags or ()) or [""]
        identity |= {TAGS: named, "changing": tags is not None, "software": __version__}
    metrics = MetricRecord({"num-examples": size, "batch-s": measured, "busy-s": busy_s})
    return reply_to(message, RecordDict({FEDBALANCER: ConfigRecord(identity), METRICS: metrics}), busy_s)


def client_tags(context: Context, conditions: Sequence[str] = ()) -> list[str]:
    """Return the tags of this client: those of the node configuration or the environment, and its conditions.

    Args:
        context: Flower's context of the node.
        conditions: Current conditions of the device.
    """
    named = str(context.node_config.get(TAGS, "") or os.environ.get(TAGS_VARIABLE, ""))
    return sorted({tag.strip() for tag in (*named.split("+"), *conditions) if tag.strip()})


def client_id(context: Context) -> str:
    """Return the id of this client, which stays the same after a restart.

    It is the first of: `client-id` of the node configuration, the environment variable `FEDBALANCER_CLIENT`,
    `partition-id` of the node configuration, the node id. The node id stays the same only for authenticated nodes.
    """
    named = str(context.node_config.get(CLIENT_ID, "") or os.environ.get(CLIENT, ""))
    if named:
        return named
    partition = context.node_config.get(PARTITION)
    return f"node-{context.node_id}" if partition is None else f"client-{partition}"
