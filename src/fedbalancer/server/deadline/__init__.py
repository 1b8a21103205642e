"""When a round closes."""

from fedbalancer.server.deadline.first import FirstReports
from fedbalancer.server.deadline.fixed import FixedDeadline
from fedbalancer.server.deadline.peak import PeakDeadline, interpolated, peak_deadline
from fedbalancer.server.deadline.quorum import Quorum

__all__ = ["FirstReports", "FixedDeadline", "PeakDeadline", "Quorum", "interpolated", "peak_deadline"]
