"""Random numbers from named streams, never from a shared generator.

A stream has a name: (seed, purpose, round, client). Streams with different names are independent. The same name gives
the same numbers for any number of workers, in any order, before and after a resume.

`stream` returns a generator for one client. `uniforms`, `normals` and `tickets` draw one number for each of many
clients at once.
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
