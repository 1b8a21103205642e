"""Checks for custom policies."""

from fedbalancer.testing.checked import PolicyError
from fedbalancer.testing.policies import check_policy

__all__ = ["PolicyError", "check_policy"]
