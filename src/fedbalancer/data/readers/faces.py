"""Grey faces of 20 people, each with and without sunglasses, in four poses and four expressions (T. Mitchell, CMU face
images, 1997): x uint8 [n, 60, 64], person, and eyes, which are `open` or `sunglasses`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
from fedbalancer.data.readers.npz import read_npz
from fedbalancer.data.readers.user_split import UserSplit

PIXELS = 84
TRAIN_SHARE = 0.5
"""Of everybody's images, drawn once; the others are the test. By person, as in CelebA, too few would be on either side:
models that learned ten of these people do not know the other ten, and five people are 157 images."""


def read_faces(path: Path) -> UserSplit:
    """Images (n, 3, 84, 84) of 0 to 255, all three colours the same, and 1 for sunglasses, by person; everybody trains
    and is tested, on other images."""
    arrays = read_npz(path, {"x": (60, 64), "person": (), "eyes": ()})
    odd = np.flatnonzero(~np.isin(arrays["eyes"], ("open", "sunglasses")))
    if len(odd):
        person, eyes = arrays["person"][odd[0]], arrays["eyes"][odd[0]]
        raise BadData(f"{path}: person {person}, sample {odd[0]}: eyes {str(eyes)!r}; must be open or sunglasses")
    train: dict[str, Samples] = {}
    test: dict[str, Samples] = {}
    for person in np.unique(arrays["person"]):
        name = f"person{person:02d}"
        mine = stream(0, "split of images", 0, name).permutation(np.flatnonzero(arrays["person"] == person))
        first = max(1, int(TRAIN_SHARE * len(mine)))
        for users, rows in ((train, mine[:first]), (test, mine[first:])):
            labels = (arrays["eyes"][rows] == "sunglasses").astype(np.int64)
            users[name] = (np.stack([_enlarged(image) for image in arrays["x"][rows]]), labels)
    return UserSplit(train, test)


def _enlarged(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    from PIL import Image

    large = np.asarray(Image.fromarray(image).resize((PIXELS, PIXELS)))
    return np.broadcast_to(large, (3, PIXELS, PIXELS))
