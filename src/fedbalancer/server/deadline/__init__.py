"""Deadline policies: when a round closes."""

from fedbalancer.server.deadline.fixed import FixedDeadline
from fedbalancer.server.deadline.kth_fastest import KthFastest
from fedbalancer.server.deadline.learned import LearnedWork
from fedbalancer.server.deadline.limited import LimitedDeadline
from fedbalancer.server.deadline.peak import PeakDeadline, interpolate, peak_deadline
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
    "interpolate",
    "peak_deadline",
    "useful_deadline",
]
