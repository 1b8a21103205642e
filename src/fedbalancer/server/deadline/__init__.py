"""Deadline policies: when a round closes."""

from fedbalancer.server.deadline.baselines import (
    BoundedStaleness,
    FirstReports,
    FixedDeadline,
    KthFastest,
    RankedByGradient,
    WaitForShare,
)
from fedbalancer.server.deadline.limited import LimitedDeadline
from fedbalancer.server.deadline.peak import PeakDeadline, interpolate, peak_deadline
from fedbalancer.server.deadline.useful import LearnedWork, UsefulWork, useful_deadline

__all__ = [
    "BoundedStaleness",
    "FirstReports",
    "FixedDeadline",
    "KthFastest",
    "LearnedWork",
    "LimitedDeadline",
    "PeakDeadline",
    "RankedByGradient",
    "UsefulWork",
    "WaitForShare",
    "interpolate",
    "peak_deadline",
    "useful_deadline",
]
