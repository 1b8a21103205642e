"""Python imports this first where this folder is in PYTHONPATH: in a ClientApp every clock of the day is then
CLOCK_SHIFT_S off.

Flower dates replies by it. The clock of the SuperNode itself must be right: the SuperLink refuses a node that is more
than 5 s fast or 5 min slow. The monotonic clock, which counts from the start of the machine, is right everywhere.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import Any

SHIFT_S = float(os.environ.get("CLOCK_SHIFT_S", "0"))
Real = datetime.datetime


class _Either(type):
    """Dates that others made are dates too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Real)


class Shifted(Real, metaclass=_Either):
    """The class `datetime` of a clock that is off."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return Real.now(tz) + datetime.timedelta(seconds=SHIFT_S)

    @classmethod
    def utcnow(cls) -> Any:
        return Real.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=SHIFT_S)


if SHIFT_S and any("flwr-clientapp" in word for word in sys.orig_argv):
    true_time = time.time
    time.time = lambda: true_time() + SHIFT_S
    datetime.datetime = Shifted  # type: ignore[misc]
