"""The modifier `+robust`: protects a method's control and model from a few dishonest clients."""

from __future__ import annotations

from typing import Any

from fedbalancer.methods.composition import Method
from fedbalancer.server.aggregate import CheckedUpdates
from fedbalancer.server.clients import CappedParticipation, Uniform
from fedbalancer.server.deadline import LearnedWork, LimitedDeadline, PeakDeadline, UsefulWork
from fedbalancer.server.pace import MedianControl, RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold, RecentThreshold

STEERED = (LearnedWork, PeakDeadline, UsefulWork)
"""Deadlines that depend on the speed that clients report."""


def robust(method: Method) -> Method:
    """Return the method with robust policies where its own trust the clients.

    Medians for loss threshold and pace, a floor and a rate limit for the deadline, a cap on participation, and checked
    updates. Policies that need no protection stay.

    Args:
        method: The method to protect.
    """
    return method.with_policies(
        clients=_clients(method.clients),
        deadline=LimitedDeadline(method.deadline) if isinstance(method.deadline, STEERED) else method.deadline,
        threshold=RecentThreshold() if isinstance(method.threshold, InterpolatedThreshold) else method.threshold,
        pace=_pace(method.pace),
        aggregate=_aggregate(method.aggregate),
    )


def _clients(policy: Any) -> Any:
    return policy if isinstance(policy, Uniform | CappedParticipation) else CappedParticipation(policy)


def _pace(policy: Any) -> Any:
    return MedianControl(policy.w, policy.lss, policy.dss) if isinstance(policy, RatioControl) else policy


def _aggregate(policy: Any) -> Any:
    """Return a robust aggregator. Votes, and clipping by a fixed bound (central privacy), stay as they are."""
    safe = policy.counts_votes or policy.model_noise_multiplier is not None
    return policy if safe or isinstance(policy, CheckedUpdates) else CheckedUpdates(policy)
