"""`+robust`: a method whose control loop and model a few liars cannot steer."""

from __future__ import annotations

from typing import Any

from fedbalancer.methods.composition import Method
from fedbalancer.server.aggregate import ClippedAround
from fedbalancer.server.clients import CappedParticipation, Uniform
from fedbalancer.server.deadline import LearnedWork, LimitedDeadline, PeakDeadline, UsefulWork
from fedbalancer.server.pace import MedianControl, RatioControl
from fedbalancer.server.threshold import InterpolatedThreshold, RecentThreshold

STEERED = (LearnedWork, PeakDeadline, UsefulWork)
"""Deadlines that follow what clients say of their speed; others are fixed, or wait."""


def robust(method: Method) -> Method:
    """The method with every choice that believes its clients made safe: medians for the loss threshold and the pace,
    a floor and a rate limit for the deadline, a cap on participation, clipped updates. What needs nothing stays."""
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
    """A vote counts heads, and central privacy clips by a bound that depends on no client: both stay as they are."""
    safe = policy.counts_votes or policy.model_noise_multiplier is not None
    return policy if safe or isinstance(policy, ClippedAround) else ClippedAround(policy)
