"""Recorded draws in the place of random ones: to replay somebody else's run, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.core.errors import BadData
from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.many import DeviceDraw

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class Replay:
    """A `DeviceModel` that only repeats what was recorded; anything else asked of it is an error.

    `draws` is by (round, client), `batch_s_10` holds the batch latencies sampled before training (ten, as published)
    and `network_s` the expected download plus upload. The recorded seconds are for the recorded model: the numbers of
    bytes that the methods are given do not matter.

    >>> replay = Replay({(1, "ann"): DeviceDraw(0.5, 2.0, 3.0)}, {"ann": [0.5, 0.6]}, {"ann": 4.0})
    >>> replay.draw("ann", 1, 0, 0).upload_s
    3.0
    """

    draws: Mapping[tuple[int, str], DeviceDraw]
    batch_s_10: Mapping[str, ArrayLike]
    network_s: Mapping[str, float]

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """The recorded expectation."""
        return float(_recorded(self.network_s, client, f"expected network seconds of client {client!r}"))

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """The first `count` recorded batch latencies."""
        recorded = _recorded(self.batch_s_10, client, f"sampled batch latencies of client {client!r}")
        values = np.array(recorded, dtype=np.float64)
        if len(values) < count:
            raise BadData(f"client {client!r} has {len(values)} recorded batch latencies; {count} are asked for")
        return values[:count]

    def draw(self, client: str, round: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        """The recorded draw."""
        return _recorded(self.draws, (round, client), f"draw of client {client!r} in round {round}")


def _recorded(records: Mapping[_Key, _Value], key: _Key, what: str) -> _Value:
    try:
        return records[key]
    except KeyError:
        raise BadData(f"the recording has no {what}; replay only the rounds and clients that were recorded") from None
