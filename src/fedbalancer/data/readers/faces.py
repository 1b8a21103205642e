"""Grey faces of 20 people, each with and without sunglasses, in four poses and four expressions (T. Mitchell, CMU face
images, 1997): x uint8 [n, 60, 64], person, and eyes, which are `open` or `sunglasses`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbalancer.data.readers.npz import read_npz
from fedbalancer.data.readers.user_split import UserSplit, held_out
from fedbalancer.errors import BadData
from fedbalancer.task import Samples

PIXELS = 84
TRAIN_SHARE = 0.75
"""15 of the 20 people: with 9 of 10 as in CelebA, two people alone would be the test."""


def read_faces(path: Path) -> UserSplit:
    """Images (n, 3, 84, 84) of 0 to 255, all three colours the same, and 1 for sunglasses, by person."""
    arrays = read_npz(path, {"x": (60, 64), "person": (), "eyes": ()})
    odd = np.flatnonzero(~np.isin(arrays["eyes"], ("open", "sunglasses")))
    if len(odd):
        person, eyes = arrays["person"][odd[0]], arrays["eyes"][odd[0]]
        raise BadData(f"{path}: person {person}, sample {odd[0]}: eyes {str(eyes)!r}; must be open or sunglasses")
    users: dict[str, Samples] = {}
    for person in np.unique(arrays["person"]):
        mine = np.flatnonzero(arrays["person"] == person)
        labels = (arrays["eyes"][mine] == "sunglasses").astype(np.int64)
        users[f"person{person:02d}"] = (np.stack([_enlarged(image) for image in arrays["x"][mine]]), labels)
    return held_out(users, TRAIN_SHARE)


def _enlarged(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    from PIL import Image

    large = np.asarray(Image.fromarray(image).resize((PIXELS, PIXELS)))
    return np.broadcast_to(large, (3, PIXELS, PIXELS))
