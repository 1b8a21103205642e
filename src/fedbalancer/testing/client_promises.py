"""What each slot of the client promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, Layout, Order, Summary, Weights
from fedbalancer.testing.checked import Checked
from fedbalancer.testing.kinds import is_indices, is_integer, is_real, kind
from fedbalancer.testing.scenes import LAYOUT, order


def check_samples(checked: Checked) -> None:
    """Sorted, different sample numbers of the client, at least one; None only while there is no loss list."""
    cap = checked.call("cap", np.array([1, 7, 40, 95]))
    checked.require(cap is None or (is_integer(cap) and cap >= 1), f"gives a cap of {cap!r}; it must be 1 or more")
    for size in (1, 7, 95):
        for losses in (None, *_loss_lists(size)):
            for asked in _orders():
                told = replace(asked, sample_cap=None if cap is None else int(cap))
                chosen = checked.call("select", size, losses, 0.7, told, stream(size, "samples"))
                if chosen is None:
                    checked.require(losses is None, "selects None although there is a loss list")
                else:
                    _check_indices(checked, chosen, size)


def check_work(checked: Checked) -> None:
    """From 0 to all batches, finished in time; and some where all are in time."""
    for per_epoch, epochs in ((1, 1), (4, 5)):
        everything = per_epoch * epochs
        for before_s, batch_s in ((0.0, 1.0), (3.5, 0.4), (math.inf, 1.0)):
            elapsed_s = partial(_elapsed_s, before_s, batch_s)
            for deadline_s in (0.1, 5.0, 8.5, 20.0, math.inf):
                done = checked.call("batches", elapsed_s, deadline_s, per_epoch, epochs)
                within = is_integer(done) and 0 <= done <= everything
                checked.require(within, f"trains {done!r} batches; it must be a whole number from 0 to {everything}")
                late = done > 0 and elapsed_s(done) > deadline_s
                checked.require(not late, f"trains {done} batches, which end after the deadline of {deadline_s} s")
                idle = done == 0 and elapsed_s(everything) <= deadline_s and math.isfinite(before_s)
                checked.require(not idle, f"trains nothing although all {everything} batches are in time")


def check_summary(checked: Checked) -> None:
    """A `Summary` of finite numbers."""
    for size in (1, 40):
        for losses in _loss_lists(size):
            for asked in _orders():
                seen = np.flatnonzero(~np.isnan(losses))
                made = checked.call("summarize", losses, seen, 0.7, asked, stream(size, "noise"))
                checked.require(isinstance(made, Summary), f"releases {kind(made)}; it must be a Summary")
                listed = isinstance(made.released, tuple) and all(map(math.isfinite, made.released))
                checked.require(listed, f"releases {made.released!r}; it must be a tuple of finite numbers")
                for field in (
                    each for each in fields(Summary) if each.name not in ("released", "read_by_server", "estimated")
                ):
                    value = getattr(made, field.name)
                    finite = is_real(value) and math.isfinite(value)
                    checked.require(finite, f"releases {field.name} = {value!r}; it must be a finite number")


def check_compress(checked: Checked) -> None:
    """As many bytes as promised, and of them a finite float32 update of the same shape; also with a residual, for a
    model of one number and for none, as in a run for timing only."""
    for layout in (LAYOUT, Layout([("scale", ())]), Layout()):
        size = checked.call("encoded_bytes", layout)
        checked.require(is_integer(size) and size >= 0, f"gives {size!r} bytes; it must be a whole number from 0 on")
        residual = None
        for seed, scale in enumerate((0.0, 0.01, 100.0)):
            drawn = stream(0, "update").normal(size=layout.parameters)
            residual = _check_sent(checked, (scale * drawn).astype(np.float32), layout, seed, residual, size)


def _check_sent(checked: Checked, update: Weights, layout: Layout, seed: int, residual: Any, size: int) -> Any:
    """One update on its way; returns what is kept back."""
    sent = checked.call("encode", update, layout, seed, residual)
    pair = isinstance(sent, tuple) and len(sent) == 2 and isinstance(sent[0], bytes)
    checked.require(pair, f"encodes to {kind(sent)}; it must be (bytes, residual or None)")
    payload, kept_back = sent
    checked.require(len(payload) == size, f"encodes to {len(payload)} bytes, but promised {size}")
    if kept_back is not None:
        _check_vector(checked, kept_back, update, "keeps")
    _check_vector(checked, checked.call("decode", payload, layout, seed), update, "decodes to")
    return kept_back


def _check_vector(checked: Checked, vector: Any, update: Weights, does: str) -> None:
    array = isinstance(vector, np.ndarray) and vector.dtype == np.float32
    checked.require(array, f"{does} {kind(vector)}; it must be an array of float32")
    checked.require(vector.shape == update.shape, f"{does} shape {vector.shape}, not {update.shape}")
    checked.require(bool(np.isfinite(vector).all()), f"{does} values that are not finite")


CLIENT_PROMISES: dict[str, Callable[[Checked], None]] = {
    "samples": check_samples,
    "work": check_work,
    "summary": check_summary,
    "compress": check_compress,
}


def _elapsed_s(before_s: float, batch_s: float, batches: int) -> float:
    return before_s + batch_s * batches


def _loss_lists(size: int) -> Iterator[FloatArray]:
    """Different losses; equal ones; and some that are not known yet."""
    losses = stream(size, "losses").exponential(size=size)
    yield losses
    yield np.ones(size)
    if size > 1:
        yield np.where(np.arange(size) % 3 == 0, np.nan, losses)


def _orders() -> Iterator[Order]:
    """Thresholds below, among and above all losses; deadlines for nothing, for some and for all samples."""
    for loss_threshold in (0.0, 0.5, 1000.0):
        for deadline_s in (0.5, 6.0, math.inf):
            yield order(loss_threshold=loss_threshold, deadline_s=deadline_s)


def _check_indices(checked: Checked, chosen: Any, size: int) -> None:
    checked.require(is_indices(chosen), f"selects {kind(chosen)}; sample numbers must be a 1-d array of integers")
    checked.require(len(chosen) > 0, f"selects no sample of {size}")
    inside = chosen.min() >= 0 and chosen.max() < size
    checked.require(bool(inside), f"selects samples outside 0 to {size - 1}: {chosen.tolist()}")
    checked.require(bool((np.diff(chosen) > 0).all()), f"selects unsorted or repeated samples: {chosen.tolist()}")
