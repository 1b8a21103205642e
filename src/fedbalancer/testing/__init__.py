"""Checks for policies of your own, and against recorded runs."""

from fedbalancer.testing.checked import PolicyError
from fedbalancer.testing.golden import GoldenCheck, GoldenReport, replay_golden
from fedbalancer.testing.policies import check_policy

__all__ = ["GoldenCheck", "GoldenReport", "PolicyError", "check_policy", "replay_golden"]
