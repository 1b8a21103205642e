"""The promises of all compressors, for any layout and any update."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from builders import Unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbalancer.client.compress import (
    GradientDropping,
    LowRank,
    NoCompression,
    Quantised,
    RandomMask,
    SignSGD,
    Subsample,
)
from fedbalancer.core.types import Layout
from fedbalancer.testing import check_policy

POLICIES: list[Any] = [
    NoCompression(),
    LowRank(2),
    LowRank(),
    RandomMask(),
    RandomMask(0.5),
    Subsample(),
    Subsample(1e-6),
    Quantised(),
    Quantised(1, rotate=False),
    Quantised(3, share=0.3),
    SignSGD(),
    GradientDropping(),
    GradientDropping(0.4),
]
each = pytest.mark.parametrize("policy", POLICIES, ids=str)

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)
layouts = st.lists(shapes, max_size=4).map(lambda found: Layout((str(n), shape) for n, shape in enumerate(found)))
any_float = st.floats(allow_nan=False, allow_infinity=False, width=32)


def vectors(layout: Layout) -> st.SearchStrategy[Any]:
    return arrays(np.float32, layout.parameters, elements=any_float)


@each
@settings(max_examples=40)
@given(data=st.data(), layout=layouts, seed=st.integers(0, 2**63 - 1))
def test_as_many_bytes_as_promised_and_a_finite_update_of_the_same_shape(
    policy: Any, data: st.DataObject, layout: Layout, seed: int
) -> None:
    update = data.draw(vectors(layout))
    residual = None
    for _ in range(2):
        with Unchanged(update, residual):
            payload, residual = policy.encode(update, layout, seed, residual)
        assert isinstance(payload, bytes)
        assert len(payload) == policy.encoded_bytes(layout)
        found = policy.decode(payload, layout, seed)
        assert found.dtype == np.float32
        assert found.shape == update.shape
        assert np.isfinite(found).all()
        assert found.flags.writeable
        if residual is not None:
            assert residual.shape == update.shape
            assert np.isfinite(residual).all()


@each
@pytest.mark.parametrize("shapes", [[], [()], [(0,)], [(0, 3), (2, 3)], [(3, 0)], [(1,), (), (1, 1)]], ids=str)
def test_models_of_next_to_nothing(policy: Any, shapes: list[tuple[int, ...]]) -> None:
    layout = Layout((str(number), shape) for number, shape in enumerate(shapes))
    update = np.ones(sum(math.prod(shape) for shape in shapes), dtype=np.float32)
    payload, _ = policy.encode(update, layout, 0, None)
    assert len(payload) == policy.encoded_bytes(layout)
    assert policy.decode(payload, layout, 0).shape == update.shape


@each
def test_keeps_the_promises_of_its_slot(policy: Any) -> None:
    assert check_policy(policy) == "compress"


LAYOUT = Layout((("w", (20, 15)), ("b", (20,))))
UPDATE = np.random.default_rng(0).normal(size=320).astype(np.float32)


@each
def test_a_payload_that_was_cut_off_is_refused(policy: Any) -> None:
    payload, _ = policy.encode(UPDATE, LAYOUT, 0, None)
    for damaged in (payload[:-4], payload[:-1], payload + b"\0", b""):
        with pytest.raises(ValueError, match="bytes instead of"):
            policy.decode(damaged, LAYOUT, 0)


@pytest.mark.parametrize("policy", [LowRank(2), RandomMask(), Subsample(), Quantised(1)], ids=str)
def test_clients_with_different_seeds_lose_different_things(policy: Any) -> None:
    found = [policy.decode(policy.encode(UPDATE, LAYOUT, seed, None)[0], LAYOUT, seed) for seed in range(200)]
    errors = np.array(found) - np.mean(found, axis=0)
    # Independent errors shrink with the number of clients that are averaged; common ones would stay.
    alone = (errors**2).sum(axis=1).mean()
    together = (errors.reshape(20, 10, -1).mean(axis=1) ** 2).sum(axis=1).mean()
    assert together == pytest.approx(alone / 10, rel=0.25)


@pytest.mark.parametrize("policy", [LowRank(2), RandomMask(), Subsample(), Quantised(8)], ids=str)
def test_who_decodes_with_another_seed_gets_something_else(policy: Any) -> None:
    payload, _ = policy.encode(UPDATE, LAYOUT, 1, None)
    assert not np.array_equal(policy.decode(payload, LAYOUT, 1), policy.decode(payload, LAYOUT, 2))


SCRIPT = """
import hashlib, sys
import numpy as np
from fedbalancer.client.compress import *
from fedbalancer.core.types import Layout
layout = Layout((("w", (257, 333)), ("k", (64, 32, 5, 5)), ("b", (257,))))
update = np.random.default_rng(0).normal(size=257 * 333 + 64 * 800 + 257).astype(np.float32)
random = LowRank(), RandomMask(), Subsample(), Quantised(), Quantised(3, share=0.3)
for policy in (*random, SignSGD(), GradientDropping()):
    payload, _ = policy.encode(update, layout, 3, None)
    print(policy, hashlib.sha256(payload + policy.decode(payload, layout, 3).tobytes()).hexdigest())
"""


def test_the_same_bytes_on_any_number_of_threads() -> None:
    def run(threads: str) -> str:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    one = run("1")
    assert len(one.splitlines()) == 7
    assert run("2") == one
