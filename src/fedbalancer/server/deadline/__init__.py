"""When a round closes."""

import warnings
from typing import Any

from fedbalancer.server.deadline.fixed import FixedDeadline
from fedbalancer.server.deadline.kth_fastest import KthFastest
from fedbalancer.server.deadline.learned import LearnedWork
from fedbalancer.server.deadline.limited import LimitedDeadline
from fedbalancer.server.deadline.peak import PeakDeadline, interpolated, peak_deadline
from fedbalancer.server.deadline.useful import UsefulWork, useful_deadline
from fedbalancer.server.deadline.waiting import FirstReports, WaitForShare

__all__ = [
    "FirstReports",
    "FixedDeadline",
    "KthFastest",
    "LearnedWork",
    "LimitedDeadline",
    "PeakDeadline",
    "UsefulWork",
    "WaitForShare",
    "interpolated",
    "peak_deadline",
    "useful_deadline",
]


def __getattr__(name: str) -> Any:
    if name == "Quorum":  # what it was called in an earlier version
        warnings.warn("fedbalancer.server.deadline.Quorum is now WaitForShare", FutureWarning, stacklevel=2)
        return WaitForShare
    raise AttributeError(f"module 'fedbalancer.server.deadline' has no attribute {name!r}")
