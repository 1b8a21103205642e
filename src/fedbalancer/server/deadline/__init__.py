"""Deadline policies: when a round closes."""

from fedbalancer.server.deadline.baselines import FirstReports, FixedDeadline, KthFastest, WaitForShare
from fedbalancer.server.deadline.limited import LimitedDeadline
from fedbalancer.server.deadline.peak import PeakDeadline, interpolate, peak_deadline
from fedbalancer.server.deadline.useful import LearnedWork, UsefulWork, useful_deadline

__all__ = [
    "FirstReports",
    "FixedDeadline",
    "KthFastest",
    "LearnedWork",
    "LimitedDeadline",
    "PeakDeadline",
    "UsefulWork",
    "WaitForShare",
    "interpolate",
    "peak_deadline",
    "useful_deadline",
]
