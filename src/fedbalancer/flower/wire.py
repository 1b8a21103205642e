"""Replies on the SuperLink: listed, checked and downloaded one object at a time.

`Grid.pull_messages` downloads and decodes a reply before its size is known, waits until its sender has uploaded all of
it, and raises the decoder's errors. This module uses the Runtime API below Flower's `HttpGrid` instead. Grids without
it, such as in-memory ones, are used as they are.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Array, Error, Message, Metadata, RecordDict

from fedbalancer.core.errors import MissingData
from fedbalancer.core.types import Shapes
from fedbalancer.core.types.layout import count_bytes
from fedbalancer.flower.compat import Grid
from fedbalancer.flower.model_arrays import HEADER_BYTES, ModelLayout

try:
    from flwr.common.serde_utils import metadata_from_proto
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectResponse
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, inflate_object_from_contents
except ImportError as error:
    MISSING: str | None = str(error)
    FAILURES: tuple[type[Exception], ...] = (httpx.HTTPStatusError,)
else:
    MISSING = None
    FAILURES = (httpx.HTTPStatusError, ObjectPushError)

_log = logging.getLogger("flwr.fedbalancer")
WAITS_S, GIVE_UP_S = (0.5, 1.0, 2.0, 4.0), 120.0
"""Seconds before each repetition of a failed request (the last value repeats), and the total until it gives up."""
PUSH_OBJECT = "/push-object"
DEPTH_OF_ARRAYS = 3
"""Levels below a message: content, records, arrays, chunks."""
SENDER = ("run_id", "src_node_id", "reply_to_message_id", "message_type")
"""Metadata that the SuperLink has checked. The reply repeats them, unchecked."""


@contextmanager
def superlink_errors() -> Iterator[None]:
    """Turn a request that failed until `GIVE_UP_S` into an error for the user."""
    try:
        yield
    except FAILURES as error:
        raise MissingData(
            f"the SuperLink has failed for {GIVE_UP_S:g} s: {str(error).splitlines()[0]}; see its log, then submit the "
            "run again under its run_key, and it resumes"
        ) from error


class Refused(Exception):
    """A reply is invalid; the text says why."""


class TooLarge(Refused):
    """A reply is larger than the limit; its download was stopped."""


class Lost(Exception):
    """A reply cannot be downloaded, possibly through no fault of its sender."""


@dataclass(frozen=True)
class ListedReply:
    """A reply that its sender has announced; its upload may not be complete.

    Args:
        metadata: Metadata as the SuperLink checked it.
        objects: Ids of its objects.
        arrays: Number of its arrays.
    """

    metadata: Metadata
    objects: tuple[str, ...]
    arrays: int

    @property
    def answers(self) -> str:
        """Id of the answered message."""
        return str(self.metadata.reply_to_message_id)


class Wire:
    """The Runtime API of a grid's SuperLink.

    Args:
        grid: Flower's `HttpGrid`.
    """

    def __init__(self, grid: Any) -> None:
        self._grid, self._client = grid, grid._runtime_client
        http = self._client._client
        if not any(isinstance(one, RepeatedRequests) for one in self._client._interceptors):
            self._client._interceptors = (*self._client._interceptors, RepeatedRequests())
            http.event_hooks = {**http.event_hooks, "response": [*http.event_hooks["response"], _limit_response]}

    @classmethod
    def of(cls, grid: Grid) -> Wire | None:
        """Return the wire of a grid; None if it has no known Runtime API."""
        if MISSING is not None:
            _log.warning(
                "replies are downloaded without a size limit: this version of flwr is not supported (%s)", MISSING
            )
            return None
        try:
            return cls(grid)
        except AttributeError:
            return None

    def list(self, ids: Iterable[str]) -> list[ListedReply]:
        """Return the announced replies to these messages. The SuperLink lists each of them once."""
        wanted = list(ids)
        if not wanted:
            return []
        answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
        pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
        return [list_objects(metadata_from_proto(message.metadata), tree) for message, tree in pairs]

    def fetch(self, identity: str, most_bytes: int) -> bytes | None:
        """Download an object.

        Args:
            identity: Id of the object.
            most_bytes: Largest size.

        Returns:
            Its content; None if it is not uploaded yet.

        Raises:
            TooLarge: It has more than `most_bytes`.
            Lost: The SuperLink does not have it.
        """
        request = PullObjectRequest(node=self._grid.node, run_id=self._grid.run.run_id, object_id=identity)
        _limit.bytes = most_bytes + ENVELOPE_BYTES
        try:
            answer = self._client.PullObject(request)
        except httpx.HTTPStatusError as error:
            raise Lost(f"the SuperLink answers {error.response.status_code} when asked for it") from error
        finally:
            _limit.bytes = None
        if not answer.object_found:
            raise Lost("its upload was not completed in time")
        return bytes(answer.object_content) if answer.object_available else None

    def confirm(self, listed: ListedReply) -> None:
        """Let the SuperLink delete a reply."""
        request = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=listed.metadata.message_id
        )
        self._client.ConfirmMessageReceived(request)


class RepeatedRequests:
    """An interceptor of Flower's HTTP client that repeats failed requests for a limited time.

    Flower repeats requests after 502 to 504 only, but a SuperLink whose database is locked answers 500. A single 500
    would also stop the heartbeats of the ServerApp, and Flower would end the run.
    """

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Send a request, and repeat it while the SuperLink fails."""
        until = time.monotonic() + GIVE_UP_S
        for wait_s in itertools.chain(WAITS_S, itertools.repeat(WAITS_S[-1])):
            response: httpx.Response = call_next(context)
            if not _has_failed(response) or time.monotonic() + wait_s > until:
                return response
            _log.warning("the SuperLink failed at %s; asking again in %g s", context.request.url.path, wait_s)
            time.sleep(wait_s)
        raise AssertionError("an endless iterator has ended")


def _has_failed(response: httpx.Response) -> bool:
    if response.request.url.path.endswith(PUSH_OBJECT) and response.status_code == httpx.codes.OK:
        return not PushObjectResponse.FromString(response.content).stored  # False if the database was locked
    return response.status_code == httpx.codes.INTERNAL_SERVER_ERROR


ENVELOPE_BYTES = 64
"""Upper bound on the bytes of a response besides its object."""
_limit = threading.local()


class _LimitedStream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, most_bytes: int) -> None:
        self._stream, self._left = stream, most_bytes

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._left -= len(part)
            if self._left < 0:
                raise TooLarge
            yield part

    def close(self) -> None:
        self._stream.close()


def _limit_response(response: httpx.Response) -> None:
    """Stop the download of a response that is too large."""
    most_bytes = getattr(_limit, "bytes", None)
    if most_bytes is not None and isinstance(response.stream, httpx.SyncByteStream):
        response.stream = _LimitedStream(response.stream, most_bytes)


def list_objects(metadata: Metadata, tree: Any) -> ListedReply:
    """List the objects of a message from their tree."""
    objects: dict[str, None] = {}
    arrays, level, depth = 0, [tree], 0
    while level:
        arrays += len(level) if depth == DEPTH_OF_ARRAYS else 0
        objects |= dict.fromkeys(node.object_id for node in level)
        level, depth = [child for node in level for child in node.children], depth + 1
    return ListedReply(metadata, tuple(objects), arrays)


def decode(listed: ListedReply, contents: dict[str, bytes], most_bytes: int) -> Message:
    """Decode a message from its objects.

    Raises:
        Refused: The objects are no message of this sender, or its arrays have more than `most_bytes`. Flower's decoder
            raises errors of many kinds; all of them become this one.
    """
    try:
        _check_chunks(contents, most_bytes)
        message = inflate_object_from_contents(listed.metadata.message_id, dict(contents))
        if not isinstance(message, Message):
            raise Refused(f"its bytes are a {type(message).__name__} in place of a message")
        for name in SENDER:
            if getattr(message.metadata, name) != getattr(listed.metadata, name):
                raise Refused(f"it says {name} {getattr(message.metadata, name)!r}, which is not its own")
        if not message.has_error() and not isinstance(message.content, RecordDict):
            raise Refused(f"its content is a {type(message.content).__name__}")
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"its bytes cannot be decoded: {type(error).__name__}: {error}") from error
    message.metadata.__dict__["_message_id"] = listed.metadata.message_id
    return message


def _check_chunks(contents: dict[str, bytes], most_bytes: int) -> None:
    """Refuse arrays that decode to too many bytes: an array may use one chunk many times."""
    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            named = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(contents[children[place]]) for place in named)
    if total > most_bytes:
        raise Refused(f"its arrays decode to {total} bytes, more than the {most_bytes} that a reply may have")


def error_reply(listed: ListedReply, code: int, reason: str) -> Message:
    """Build an error message that takes the place of a reply."""
    return Message(error=Error(code, reason), metadata=listed.metadata)  # type: ignore[call-overload, no-any-return] # not in its stubs


MORE_BYTES = 2**20
"""Additional bytes for metrics and very small models."""
LEAST_CHUNK_BYTES, MOST_RECORDS = 2**20, 64
"""Smallest chunk and most records that are expected. By default Flower splits arrays into chunks of 5 MiB."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 2.0
"""Seconds between two checks of an incomplete upload."""
LOST, REFUSED = 1001, 1002
"""Error codes of lost and refused replies. Flower's codes are below 1000."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A complete reply.

    Args:
        answers: Id of the answered message.
        message: The reply; an error if it was lost or refused.
        problem: Why it was refused; "" if it was not.
    """

    answers: str
    message: Message
    problem: str = ""


@dataclass(frozen=True)
class ReplyLimit:
    """The largest reply that is downloaded.

    Args:
        arrays: Number of arrays.
        bytes: Size in bytes.
    """

    arrays: int
    bytes: int

    @classmethod
    def of(cls, layout: ModelLayout, sent: Shapes | None = None) -> ReplyLimit:
        """Return the limit for a model: its number of arrays, and twice its bytes plus 1 MiB.

        Args:
            layout: Layout of the model.
            sent: Names and shapes of the arrays that the method's clients send with it.
        """
        arrays = len(layout.dtypes) + len(layout.others) + len(sent or {})
        trained = sum(math.prod(shape) * max(layout.dtypes[name].itemsize, 4) for name, shape in layout.layout)
        fixed = sum(len(array.data) for array in layout.others.values())
        return cls(arrays, 2 * (trained + fixed + count_bytes(sent or {}) + arrays * HEADER_BYTES) + MORE_BYTES)

    @property
    def objects(self) -> int:
        """Largest number of objects."""
        return MOST_RECORDS + 2 * self.arrays + self.bytes // LEAST_CHUNK_BYTES

    def check(self, listed: ListedReply) -> None:
        """Check a reply before anything of it is downloaded.

        Raises:
            Refused: It has too many arrays or objects.
        """
        if listed.arrays > self.arrays:
            raise Refused(f"a reply of {listed.arrays} arrays, where the model has {self.arrays}")
        if len(listed.objects) > self.objects:
            raise Refused(f"a reply of {len(listed.objects)} objects, where {self.objects} are allowed")


class Download:
    """The download of one reply, in steps that never wait for its sender.

    Args:
        wire: The Runtime API.
        limit: Largest reply.
        listed: The reply.
    """

    def __init__(self, wire: Wire, limit: ReplyLimit, listed: ListedReply) -> None:
        self._wire, self._limit, self._listed = wire, limit, listed
        self._contents: dict[str, bytes] = {}
        self._left, self._wait_s = limit.bytes, FIRST_WAIT_S
        self.due_s = 0.0

    def step(self) -> Reply | None:
        """Download what has been uploaded; returns the reply once it is complete."""
        try:
            self._limit.check(self._listed)
            if not self._is_complete():
                self.due_s, self._wait_s = time.monotonic() + self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
                return None
            return Reply(self._listed.answers, decode(self._listed, self._contents, self._limit.bytes))
        except TooLarge:
            return self._refused(f"a reply of more than {self._limit.bytes} bytes, which is the limit for this model")
        except Refused as problem:
            return self._refused(str(problem))
        except Lost as problem:
            return Reply(self._listed.answers, error_reply(self._listed, LOST, f"the reply is lost: {problem}"))

    def confirm(self) -> None:
        """Let the SuperLink delete the reply, unless it has too many objects.

        The SuperLink deletes objects one by one and locks its database meanwhile. It deletes the rest after the run.
        """
        if len(self._listed.objects) <= self._limit.objects:
            self._wire.confirm(self._listed)

    def _is_complete(self) -> bool:
        for identity in self._listed.objects:
            if identity not in self._contents:
                content = self._wire.fetch(identity, self._left)
                if content is None:
                    return False
                self._contents[identity] = content
                self._left -= len(content)
        return True

    def _refused(self, problem: str) -> Reply:
        return Reply(self._listed.answers, error_reply(self._listed, REFUSED, problem), problem)
