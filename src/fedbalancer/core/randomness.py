"""Random numbers from named streams, never from a shared generator.

A stream has a name: (seed, purpose, round, client). Streams with different names are independent. The same name gives
the same numbers for any number of workers, in any order, before and after a resume.

`stream` returns a generator for one client. `uniforms`, `normals` and `tickets` draw one number for each of many
clients at once. `draw_weighted` and `pick_smallest` draw clients without replacement, fast for a million clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from fedbalancer.core.types import FloatArray, IndexArray

Keys = NDArray[np.uint64]
"""One number per client, a hash of its id (`client_keys`)."""

_GOLDEN = 0x9E3779B97F4A7C15
_BLOCK = 1 << 14  # fits into a processor's cache


class _Key(ISeedSequence):
    """A ready-made seed state: the name is already mixed by a cryptographic hash."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return self.key


def stream(seed: int, purpose: str, round_number: int = 0, client: str = "") -> np.random.Generator:
    """Return the generator of a named stream.

    It is a PCG64DXSM, which starts ten times faster than Philox.

    Args:
        seed: Seed of the run.
        purpose: What the numbers are for.
        round_number: Number of the round.
        client: Client id.

    Example:
        >>> bool(stream(0, "batch", 3, "ann").integers(100) == stream(0, "batch", 3, "ann").integers(100))
        True
    """
    key = np.frombuffer(_digest(seed, purpose, round_number, client), dtype="<u8")
    return np.random.Generator(np.random.PCG64DXSM(_Key(key)))  # type: ignore[arg-type]


def integer_seed(seed: int, purpose: str, round_number: int = 0, client: str = "") -> int:
    """Return a 63-bit integer seed of a named stream, for libraries that need an integer."""
    return int.from_bytes(_digest(seed, purpose, round_number, client)[:8], "little") >> 1


def client_keys(clients: Iterable[str]) -> Keys:
    """Return 64 bits of a hash of every client id, for `uniforms`, `normals` and `tickets`."""
    left, parts = iter(clients), [np.zeros(0, dtype=np.uint64)]
    while digests := [hashlib.blake2b(client.encode(), digest_size=8).digest() for client in islice(left, _BLOCK)]:
        parts.append(np.frombuffer(b"".join(digests), dtype="<u8"))
    return np.concatenate(parts)


def uniforms(seed: int, purpose: str, round_number: int, keys: Keys, number: int | Keys = 0) -> FloatArray:
    """Draw a number in (0, 1), both ends excluded, for every key.

    The numbers are those of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), started at the key combined with a hash of
    the stream's name. Each is computed independently, so it does not depend on the other keys.

    Args:
        seed: Seed of the run.
        purpose: What the numbers are for.
        round_number: Number of the round.
        keys: Keys of the clients (`client_keys`).
        number: Index within the stream; broadcast with `keys`.

    Example:
        >>> ann, both = client_keys(["ann"]), client_keys(["bob", "ann"])
        >>> bool(uniforms(0, "speed", 3, ann)[0] == uniforms(0, "speed", 3, both)[1])
        True
    """
    name = int.from_bytes(_digest(seed, purpose, round_number, "")[:8], "little")
    steps = np.array(number, dtype=np.uint64, ndmin=1)
    bits = _mix((keys ^ np.uint64(name)) + (steps + 1) * _GOLDEN)
    bits >>= 12  # 52 bits plus one half: a float holds them without rounding to 1
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def normals(
    seed: int, purpose: str, round_number: int, keys: Keys, mean: FloatArray, std: FloatArray, number: int | Keys = 0
) -> FloatArray:
    """Draw from N(mean, std) for every key, by the inverse of the distribution function."""
    from scipy.special import ndtri  # imported late for fast starts

    return np.asarray(mean + std * ndtri(uniforms(seed, purpose, round_number, keys, number)))


def tickets(seed: int, purpose: str, round_number: int, keys: Keys, count: int) -> IndexArray:
    """Draw an integer from 0 to `count` - 1 for every key."""
    return (uniforms(seed, purpose, round_number, keys) * count).astype(np.int64)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's output function in place."""
    bits ^= bits >> 30
    bits *= 0xBF58476D1CE4E5B9
    bits ^= bits >> 27
    bits *= 0x94D049BB133111EB
    bits ^= bits >> 31
    return bits


def _digest(seed: int, purpose: str, round_number: int, client: str) -> bytes:
    name = f"{seed}\x1f{purpose}\x1f{round_number}\x1f{client}".encode()
    return hashlib.blake2b(name, digest_size=32).digest()


MANY = 100_000
"""Number of clients from which a small draw does not generate a random number for every client."""


def draw_weighted(weights: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Draw positions one by one without replacement, each in proportion to weight.

    Args:
        weights: Weight of every position. Positions of weight 0 come last.
        count: Number of positions to draw.
        rng: Random generator.

    Returns:
        The drawn positions.
    """
    if len(weights) >= MANY and 50 * count < len(weights):
        return draw_few_weighted(weights, count, rng)
    return pick_smallest(_random_keys(weights, rng), count, rng)


def draw_few_weighted(weights: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Make the same draw with replacement and drop duplicates, which is faster for a small `count`.

    If too few distinct positions result because few hold most of the weight, the rest is drawn among the others.

    Args:
        weights: Weight of every position.
        count: Number of positions to draw.
        rng: Random generator.
    """
    total = np.cumsum(weights)
    drawn = np.searchsorted(total, rng.random(2 * count) * total[-1], side="right")
    unique, first_at = np.unique(drawn[drawn < len(weights)], return_index=True)
    unique = unique[np.argsort(first_at)[:count]]
    if len(unique) == count:
        return unique
    keys = _random_keys(weights, rng)
    keys[unique] = np.nan  # sorts last
    return np.concatenate([unique, pick_smallest(keys, count - len(unique), rng)])


def _random_keys(weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return Exp(1) / weight: the positions of the smallest keys are a draw in proportion to weight."""
    with np.errstate(divide="ignore"):
        return np.asarray(rng.exponential(size=len(weights)) / weights)


def pick_smallest(keys: FloatArray, count: int, rng: np.random.Generator) -> IndexArray:
    """Return the positions of the `count` smallest keys, or of all if there are fewer. Ties are broken at random.

    Args:
        keys: One value per position.
        count: Number of positions.
        rng: Random generator for ties.
    """
    if count >= len(keys):
        return np.arange(len(keys))
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    limit = np.partition(keys, count - 1)[count - 1]
    sure, equal = np.flatnonzero(keys < limit), np.flatnonzero(keys == limit)
    return np.concatenate([sure, rng.choice(equal, count - len(sure), replace=False)])
