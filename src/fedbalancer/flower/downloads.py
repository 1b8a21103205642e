"""One reply on its way from the SuperLink: how large it may be, and what has been downloaded of it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from fedbalancer.flower.compat import Message
from fedbalancer.flower.layout import HEADER_BYTES, ModelLayout
from fedbalancer.flower.wire import Listed, Lost, Refused, TooLarge, Wire, decode, error_reply

MORE_BYTES = 2**20
"""Allowed in addition, for metrics and for very small models."""
LEAST_CHUNK_BYTES, MOST_RECORDS = 2**20, 64
"""Flower splits arrays into chunks of 5 MiB, by default."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 2.0
"""Between two looks at an upload that is not complete."""
LOST, REFUSED = 1001, 1002
"""Error codes of lost and refused replies; Flower's own codes are below 1000."""


@dataclass(frozen=True, eq=False)
class Reply:
    """The reply to a message. If it was refused, `problem` says why, and its message is an error."""

    answers: str
    message: Message
    problem: str = ""


@dataclass(frozen=True)
class ReplyLimit:
    """The largest reply that is downloaded."""

    arrays: int
    bytes: int

    @classmethod
    def of(cls, layout: ModelLayout) -> ReplyLimit:
        """The limit for a model: no more arrays than it has, and twice its bytes."""
        arrays = len(layout.dtypes) + len(layout.others)
        trained = sum(math.prod(shape) * max(layout.dtypes[name].itemsize, 4) for name, shape in layout.layout)
        fixed = sum(len(array.data) for array in layout.others.values())
        return cls(arrays, 2 * (trained + fixed + arrays * HEADER_BYTES) + MORE_BYTES)

    @property
    def objects(self) -> int:
        return MOST_RECORDS + 2 * self.arrays + self.bytes // LEAST_CHUNK_BYTES

    def check(self, listed: Listed) -> None:
        """Refuse a reply by what is known before anything of it is downloaded."""
        if listed.arrays > self.arrays:
            raise Refused(f"a reply of {listed.arrays} arrays, where the model has {self.arrays}")
        if len(listed.objects) > self.objects:
            raise Refused(f"a reply of {len(listed.objects)} objects, where {self.objects} are allowed")


class Download:
    """The download of one reply. Its sender may still be uploading it, so it is downloaded in steps, none of which
    waits for the sender."""

    def __init__(self, wire: Wire, limit: ReplyLimit, listed: Listed) -> None:
        self._wire, self._limit, self._listed = wire, limit, listed
        self._contents: dict[str, bytes] = {}
        self._left, self._wait_s = limit.bytes, FIRST_WAIT_S
        self.due_s = 0.0

    def step(self) -> Reply | None:
        """Download what has been uploaded; the reply, if that was all of it."""
        try:
            self._limit.check(self._listed)
            if not self._is_here():
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
        """Let the SuperLink delete the reply, unless it has too many objects: the SuperLink deletes them one by one and
        locks its database meanwhile. It deletes what is left at the end of the run."""
        if len(self._listed.objects) <= self._limit.objects:
            self._wire.confirm(self._listed)

    def _is_here(self) -> bool:
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
