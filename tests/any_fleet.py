"""Hypothesis strategies for fleets."""

from __future__ import annotations

from hypothesis import strategies as st

from fedbalancer.simulation.devices import Device, Fleet

positive = st.floats(min_value=1e-6, max_value=1e6)
ids = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F, categories=("L", "N", "P", "S")), min_size=1)


@st.composite
def devices(draw: st.DrawFn, device_id: str) -> Device:
    """Any valid device."""
    seconds = draw(st.sampled_from(["batch_s", "sample_s", ""]))
    speed: dict[str, object] = {"device_class": draw(st.sampled_from(["", "slow", "mid", "fast"]))}
    if seconds:
        speed = {seconds: draw(positive), "std_s": draw(st.floats(0, 10)), "device_class": draw(ids | st.just(""))}
        speed |= draw(st.sampled_from([{}, {"model": "har"}, {"flops": 2.5e6}]))
        if seconds == "batch_s":
            speed["batch_size"] = draw(st.none() | st.integers(1, 1000))
    network = (
        {"down_mbit_s": draw(positive), "down_std_mbit_s": draw(st.floats(0, 10)), "up_mbit_s": draw(positive)}
        if draw(st.booleans())
        else {}
    )
    cuts = draw(st.lists(st.integers(0, 200_000), unique=True, max_size=6))
    pairs = sorted(cuts)[: len(cuts) // 2 * 2]
    online = None if draw(st.booleans()) else list(zip(pairs[::2], pairs[1::2], strict=True))
    return Device(id=device_id, online=online, **speed, **network)  # type: ignore[arg-type]


fleets = st.lists(ids, unique=True, min_size=1, max_size=6).flatmap(
    lambda names: st.tuples(*(devices(name) for name in names)).map(Fleet)
)
