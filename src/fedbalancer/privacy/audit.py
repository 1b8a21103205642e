"""Lower bounds on epsilon from many releases of two neighbouring data sets.

The bounds know nothing of a mechanism: not its sensitivity, its noise, or which numbers are meant to be noisy. They see
two samples of vectors and search for an event that is likelier with one data set than with the other. The event is
chosen on one part of the releases and counted on the rest, so the bound of Clopper and Pearson holds for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from fedbalancer.core.types import FloatArray

DOUBT = 1e-5
"""Probability with which one of the two bounds of an event is wrong."""
CHOOSING_SHARE = 0.4
"""Share of the releases on which the event is chosen."""
CUTS = 80
"""Thresholds that are tried for every score."""
CAUTION = 0.3
"""By how much a single number must look better than their sum to be chosen: among many, one does by chance."""
NO_BITS = 2000.0
"""Granularity of 0, which is a multiple of every step."""


@dataclass(frozen=True)
class Shown:
    """A lower bound on epsilon, and the event that proves it.

    Args:
        epsilon: A lower bound on epsilon.
        event: The event that shows it, for people.
        hits: How often the event happened with each data set, in the releases that count.
        releases: Number of the releases that count, for each data set.
    """

    epsilon: float
    event: str = "no event"
    hits: tuple[int, int] = (0, 0)
    releases: int = 0


def lower_bound(likely: Any, unlikely: Any, releases: int, delta: float) -> FloatArray:
    """Return the largest epsilon that counts of an event prove, by the bounds of Clopper and Pearson.

    (epsilon, delta) means that P(event with one data set) <= exp(epsilon) P(event with the other) + delta. The lower
    bound of the first probability and the upper bound of the second give a lower bound of epsilon.

    Args:
        likely: Number of releases with the event, with the data set under which it is likelier.
        unlikely: The same with the other data set.
        releases: Number of releases of each data set.
        delta: Delta of the guarantee.

    Returns:
        Lower bounds, at least 0.

    Example:
        >>> [round(float(lower_bound(hits, 0, 1000, 1e-5)), 2) for hits in (0, 10, 1000)]
        [0.0, 0.0, 4.46]
    """
    from scipy.special import betaincinv  # imported late for fast starts

    many, few = np.asarray(likely, dtype=np.float64), np.asarray(unlikely, dtype=np.float64)
    least = np.where(many > 0, betaincinv(np.maximum(many, 1), releases - many + 1, DOUBT), 0.0)
    most = np.where(few < releases, betaincinv(few + 1, np.maximum(releases - few, 1), 1 - DOUBT), 1.0)
    with np.errstate(divide="ignore"):
        bound = np.log(np.maximum(least - delta, 0.0)) - np.log(most)
    return np.asarray(np.maximum(bound, 0.0))


def show_epsilon(first: FloatArray, second: FloatArray, delta: float) -> Shown:
    """Return the largest epsilon that two samples of releases prove.

    Args:
        first: One row per release of one data set. Rows of the same number share their noise in the part on which the
            event is chosen: see `choosing_rows`.
        second: The same for its neighbour.
        delta: Delta of the guarantee.
    """
    split = choosing_rows(len(first))
    counted = len(first) - split
    best = Shown(0.0, releases=counted)
    chosen: tuple[float, Any] = (0.0, None)
    for name, one, other in _scores(first, second, split):
        pooled = np.concatenate([one[:split], other[:split]])
        cuts = np.unique(np.quantile(pooled, np.linspace(0.0, 1.0, CUTS), method="lower"))
        hits = [
            split - np.searchsorted(np.sort(each[:split]), cuts, side="right") for each in (one, other)
        ]  # above each cut
        for above in (True, False):
            a, b = hits if above else [split - each for each in hits]
            for swapped in (False, True):
                expected = counted / split * np.array((b, a) if swapped else (a, b))
                bounds = lower_bound(expected[0], expected[1], counted, delta)
                place = int(bounds.argmax())
                if bounds[place] > chosen[0] + (0.0 if name.startswith("sum") else CAUTION):
                    chosen = float(bounds[place]), (name, one, other, cuts[place], above, swapped)
    if chosen[1] is None:
        return best
    name, one, other, cut, above, swapped = chosen[1]
    counts = [int(((each[split:] > cut) == above).sum()) for each in (one, other)]
    if swapped:
        counts.reverse()
    bound = float(lower_bound(counts[0], counts[1], counted, delta))
    event = f"{name} {'>' if above else '<='} {cut:.6g}"
    return Shown(bound, event, (counts[0], counts[1]), counted)


def choosing_rows(releases: int) -> int:
    """Return how many of the releases choose the event; these may share their noise between the data sets."""
    return max(int(CHOOSING_SHARE * releases), 1)


def _scores(first: FloatArray, second: FloatArray, split: int) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Yield scores, one value per release: directions between the data sets, every number, and its low bits."""
    moved = (second[:split] - first[:split]).mean(axis=0)
    spread = (first[:split].var(axis=0) + second[:split].var(axis=0)) / 2
    noisy = spread > 0
    for name, weight in (
        ("sum of all numbers by their distance", moved),
        ("sum of all numbers by distance and noise", np.where(noisy, moved / np.where(noisy, spread, 1.0), 0.0)),
    ):
        if np.any(weight):
            yield name, first @ weight, second @ weight
    for column in np.flatnonzero((first != second).any(axis=0)):
        pair = first[:, column], second[:, column]
        yield f"number {column}", *pair
        yield f"lowest bit of number {column}", granularity(pair[0]), granularity(pair[1])


def granularity(values: FloatArray) -> FloatArray:
    """Return the exponent of the lowest bit that is set in every number.

    Example:
        >>> granularity(np.array([1.0, 6.0, 0.75, 0.0])).tolist()
        [0.0, 1.0, -2.0, 2000.0]
    """
    fraction, exponent = np.frexp(values)
    whole = np.abs(np.ldexp(fraction, 53)).astype(np.int64)
    lowest = whole & -whole
    trailing = np.frexp(np.where(whole == 0, 1, lowest).astype(np.float64))[1] - 1
    return np.where(whole == 0, NO_BITS, exponent - 53 + trailing).astype(np.float64)


def flatten(value: Any, without: Sequence[str] = ()) -> list[float]:
    """Return all numbers in a value, whatever its fields are called.

    Args:
        value: Numbers, arrays, tuples, mappings and dataclasses of these. Texts count by their characters.
        without: Fields and keys to leave out.

    Example:
        >>> flatten({"a": (1, True), "b": np.array([2.5]), "time": 3}, without=["time"])
        [1.0, 1.0, 2.5]
    """
    if value is None:
        return [-math.pi]
    if isinstance(value, str):
        return [float(sum(value.encode()))]
    if isinstance(value, int | float | np.number):
        return [float(value)]
    if is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, np.ndarray):
        return [float(number) for number in value.ravel()]
    if hasattr(value, "items"):
        return [
            number for name, each in sorted(value.items()) if name not in without for number in flatten(each, without)
        ]
    return [number for each in value for number in flatten(each, without)]
