"""How long transfers take: nineteen real users' speeds, drawn anew in every round.

A client is one of the users for good. In a round its two speeds are drawn from normals, again as long as they are
not positive. That leaves speeds arbitrarily near zero, so the published times have a very heavy tail; `floor` cuts it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import Keys, normals, tickets
from fedbalancer.core.types import FloatArray, IndexArray

DOWNLOAD_KB_BYTES = 1024
UPLOAD_KB_BYTES = (1000, 1024)

PROFILES: tuple[tuple[float, float, float, float], ...] = (
    (7491.4, 3369.29842, 4935.2, 2767.319309),
    (4054.8, 1819.527895, 3006.2, 890.082446),
    (2370.212121, 1388.184246, 2774.242424, 1096.948965),
    (9913.0, 1551.039965, 6635.410256, 1459.541704),
    (4208.662791, 1481.615975, 2974.465116, 833.157174),
    (3778.454545, 2843.436249, 2631.613636, 1576.359474),
    (3472.741935, 1276.731234, 5140.580645, 2277.356146),
    (4668.421053, 612.605378, 3205.473684, 419.354123),
    (3297.695652, 771.327959, 2336.608696, 1609.948169),
    (4283.575758, 1560.971765, 3641.606061, 1495.017278),
    (3658.142857, 1315.892194, 2546.857143, 1089.044231),
    (7214.076923, 3363.213412, 4039.692308, 2189.022433),
    (8885.471698, 1999.111337, 6278.566038, 489.10085),
    (5125.0, 2087.604479, 3729.75, 461.47943),
    (7271.266667, 1914.01374, 5742.533333, 1964.127995),
    (4317.628571, 1264.95222, 3285.685714, 1018.296639),
    (6708.066667, 6738.474896, 664.6, 312.000171),
    (17332.681818, 11181.572208, 5641.454545, 2549.768879),
    (3176.806452, 1837.991548, 430.967742, 157.726894),
)
"""Download mean, download deviation, upload mean, upload deviation of every user, in kB/s."""

_TABLE = np.array(PROFILES)


@dataclass(frozen=True)
class Network:
    """Transfer times of every client.

    `floor` is the share of a client's mean speed below which a drawn speed is lifted to it; None, as published, lifts
    nothing. `upload_kb_bytes` is what an upload counts as a kilobyte: the authors' UCI-HAR logs use 1000 there but
    1024 for the download, which looks like a slip, so the default is 1024 for both.

    >>> round(Network(seed=0).profile_expected_s(3, down_bytes=6410008, up_bytes=6410008), 3)
    1.575
    """

    seed: int
    floor: float | None = None
    upload_kb_bytes: int = 1024

    def __post_init__(self) -> None:
        if self.floor is not None and not 0 <= self.floor <= 1:
            raise BadSetting(
                f"network floor is {self.floor}; it must be a share of the mean speed from 0 to 1, or None"
            )
        if self.upload_kb_bytes not in UPLOAD_KB_BYTES:
            raise BadSetting(f"upload_kb_bytes is {self.upload_kb_bytes}; it must be 1024, or 1000 as in the HAR logs")

    def profiles(self, keys: Keys) -> IndexArray:
        """Which of the nineteen users every client is; clients are given by their keys."""
        return tickets(self.seed, "network profile", 0, keys, len(PROFILES))

    def expected_s(self, keys: Keys, down_bytes: int, up_bytes: int) -> FloatArray:
        """Download plus upload at every client's mean speeds (which is not the mean of the times)."""
        each = [self.profile_expected_s(profile, down_bytes, up_bytes) for profile in range(len(PROFILES))]
        return np.array(each)[self.profiles(keys)]

    def profile_expected_s(self, profile: int, down_bytes: int, up_bytes: int) -> float:
        """The same for a client that has the given profile."""
        down_kb_s, _, up_kb_s, _ = PROFILES[profile]
        return down_bytes / DOWNLOAD_KB_BYTES / down_kb_s + up_bytes / self.upload_kb_bytes / up_kb_s

    def draw_s(self, keys: Keys, round: int, down_bytes: int, up_bytes: int) -> tuple[FloatArray, FloatArray]:
        """Seconds of every client's download and upload in one round."""
        seconds = np.array([down_bytes / DOWNLOAD_KB_BYTES, up_bytes / self.upload_kb_bytes]) / self._kb_s(keys, round)
        return seconds[:, 0], seconds[:, 1]

    def _kb_s(self, keys: Keys, round: int) -> FloatArray:
        """A row of download and upload speed for every client, each drawn again as long as it is not positive."""
        table, ways = _TABLE[self.profiles(keys)], np.arange(2, dtype=np.uint64)
        mean, std = table[:, ::2], table[:, 1::2]
        speeds = normals(self.seed, "network speed", round, keys[:, None], mean, std, ways)
        drawn = 2
        while (again := speeds <= 0).any():
            row, way = np.nonzero(again)
            speeds[again] = normals(
                self.seed, "network speed", round, keys[row], mean[again], std[again], ways[way] + drawn
            )
            drawn += 2
        return speeds if self.floor is None else np.maximum(speeds, self.floor * mean)
