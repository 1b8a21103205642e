"""Which clients take part, and how often."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import polars as pl

import fedbalancer as fb


@pytest.mark.skipif(find_spec("seglearn") is None, reason="the recordings need the extra [demo]")
@pytest.mark.parametrize("seed", [0, 1])
def test_oortbalancer_does_not_stand_still(seed: int) -> None:
    """Once a few clients had all the places: the utility of what is known grows with every participation, where a list
    is never made whole. Of 240 places the five most invited of 16 clients had 226."""
    settings = {"clients_per_round": 4, "eval_every": 60}
    result = fb.run("watch", "oortbalancer", seed, rounds=60, settings=settings)
    counts = result.clients.group_by("client").agg(places=pl.len(), looks=(pl.col("forward_s") > 0).sum())
    places = counts["places"].sort(descending=True)
    assert places.sum() == 240
    assert places[:5].sum() < 0.75 * 240
    assert (places > 3).sum() >= 9
    looked = result.clients.sort("round").group_by("client", maintain_order=True).first()
    assert counts["looks"].max() == 1  # each makes its list once, when first invited
    assert (looked["forward_s"] > 0).all()
