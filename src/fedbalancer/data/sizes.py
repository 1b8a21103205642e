"""Numbers of samples of clients, drawn from a distribution of given total, mean and spread."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, IndexArray
from fedbalancer.data.partition import check_seed

_STEPS = 60
"""Halvings of an interval; more do not change a float."""
_LARGEST_SIGMA = 10.0


def lognormal_sizes(
    clients: int, samples: int, variation: float, *, least: int = 1, most: int | None = None, seed: int = 0
) -> IndexArray:
    """Draw numbers of samples from a lognormal distribution, with an exact total and a given spread.

    The draws are clipped to the range and scaled to the total. Sigma is chosen so that the standard deviation is
    `variation` times the mean, or as close to it as the range allows.

    Args:
        clients: Number of clients.
        samples: Number of samples of all clients.
        variation: Coefficient of variation: standard deviation over mean. 0 gives equal sizes.
        least: Smallest number of samples of a client.
        most: Largest number of samples of a client. None: no limit.
        seed: Seed of the draw.

    Raises:
        BadSetting: If an argument is out of range, or the range does not allow the total.

    >>> lognormal_sizes(5, 100, 1.0, least=2)
    array([ 5,  9, 17, 59, 10])
    """
    most = samples if most is None else most
    if clients < 1 or not 1 <= least <= most or not least * clients <= samples <= most * clients:
        raise BadSetting(f"{clients} clients cannot have {samples} samples with {least} to {most} each")
    if not (math.isfinite(variation) and variation >= 0):
        raise BadSetting(f"variation = {variation!r} must be a number of at least 0")
    normal = stream(check_seed(seed), "sizes of clients").standard_normal(clients)

    def drawn(sigma: float) -> FloatArray:
        shape = sigma * normal
        scale = _find(lambda log: float(np.clip(np.exp(log + shape), least, most).sum()), samples, -100.0, 100.0)
        return np.asarray(np.clip(np.exp(scale + shape), least, most))

    def spread(sigma: float) -> float:
        sizes = drawn(sigma)
        return float(sizes.std() / sizes.mean())

    return _round_to(drawn(_find(spread, variation, 0.0, _LARGEST_SIGMA)), samples, least, most)


def _find(rising: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Return where a rising function has the value; the end of the interval if it does not."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return low


def _round_to(sizes: FloatArray, total: int, least: int, most: int) -> IndexArray:
    """Round to whole numbers with the given sum: those with the largest remainders are rounded up."""
    whole = np.clip(np.floor(sizes + 1e-9), least, most).astype(np.int64)
    order = np.argsort(whole - sizes, kind="stable")
    while (missing := total - int(whole.sum())) != 0:
        step = 1 if missing > 0 else -1
        free = [client for client in order[::step] if least <= whole[client] + step <= most]
        whole[free[: abs(missing)]] += step
    return whole
