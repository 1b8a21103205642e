"""Checks for custom policies: `check_policy` raises `PolicyError` if a policy breaks its contract."""

from fedbalancer.testing.checked import PolicyError
from fedbalancer.testing.policies import check_policy

__all__ = ["PolicyError", "check_policy"]
