"""Readers for CelebA and its stand-in.

- LEAF's JSON: x has the names of image files, y is 1 for a smile. The aligned images, 178 x 218 pixels, are in
  `raw/img_align_celeba`.
- Grey faces of 20 people, with and without sunglasses, in four poses and four expressions (T. Mitchell, CMU face
  images, 1997). The `.npz` file has x (uint8, n x 60 x 64), person, and eyes (`open` or `sunglasses`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
from fedbalancer.data.readers.files import LeafUser, class_labels, leaf_checksums, leaf_files, leaf_users, read_npz
from fedbalancer.data.readers.user_split import UserSplit, from_leaf

ALIGNED = (178, 218)
"""Width and height of the aligned images."""
PIXELS = 84
_IMAGES = ("raw/img_align_celeba", "data/raw/img_align_celeba")


def read_celeba(folder: Path) -> UserSplit:
    """Read images (n, 3, 84, 84) from 0 to 255 and labels (1: smiling) by person, from LEAF's folder."""
    return from_leaf(leaf_files(folder), partial(celeba_samples, images=images_folder(folder)))


def images_folder(folder: Path) -> Path:
    """Return the folder of the aligned images.

    Raises:
        MissingData: If it does not exist.
    """
    for name in _IMAGES:
        if (folder / name).is_dir():
            return folder / name
    raise MissingData(f"{folder} lacks the folder raw/img_align_celeba with the aligned images of CelebA")


def celeba_key(folder: Path) -> dict[str, Any]:
    """Return the key of a cache entry: checksums of the JSON files, and size and time of every image.

    Reading the content of 20,000 images would dominate the time of a second start.
    """
    files, images = leaf_files(folder), images_folder(folder)
    return {"json": leaf_checksums(files), "images": _fingerprint(files, images)}


def _fingerprint(files: Mapping[str, Iterable[Path]], images: Path) -> str:
    digest = hashlib.sha256()
    for paths in files.values():
        for user in leaf_users(paths):
            for index, name in enumerate(user.x):
                stat = _image_path(user, index, images).stat()
                digest.update(f"{name}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def celeba_samples(user: LeafUser, images: Path) -> Samples:
    """Return images and labels of one person.

    Args:
        user: The person.
        images: Folder of the images.

    Raises:
        BadData: If an image or a label is invalid.
    """
    labels = class_labels(user, 2)
    return np.stack([_read_image(user, index, images) for index in range(len(user.x))]), labels


def _image_path(user: LeafUser, index: int, images: Path) -> Path:
    name = user.x[index]
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise BadData(f"{user.where}, sample {index}: {name!r} is not the name of an image file")
    if not (images / name).is_file():
        raise BadData(f"{user.where}, sample {index}: the image {images / name} does not exist")
    return images / name


def _read_image(user: LeafUser, index: int, images: Path) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    path = _image_path(user, index, images)
    try:
        with Image.open(path) as image:
            if image.size != ALIGNED:
                size = f"{image.size[0]} x {image.size[1]}"
                raise BadData(f"{user.where}, sample {index}: {path} is {size}; aligned images are 178 x 218")
            small = np.asarray(image.resize((PIXELS, PIXELS)).convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise BadData(f"{user.where}, sample {index}: {path} is damaged or not an image ({error})") from error
    return np.ascontiguousarray(small.transpose(2, 0, 1))


TRAIN_SHARE = 0.5
"""Share of each person's images for training; the others are test images.

A split by person, as in CelebA, would leave too few on either side: a model trained on ten of these people does not
generalize to the other ten, and five people have 157 images.
"""


def read_faces(path: Path) -> UserSplit:
    """Read grey images (n, 3, 84, 84) from 0 to 255 and labels (1: sunglasses), by person.

    Every person has training images and test images.

    Raises:
        BadData: If the file is invalid.
    """
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
            users[name] = (np.stack([_enlarge(image) for image in arrays["x"][rows]]), labels)
    return UserSplit(train, test)


def _enlarge(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    from PIL import Image

    large = np.asarray(Image.fromarray(image).resize((PIXELS, PIXELS)))
    return np.broadcast_to(large, (3, PIXELS, PIXELS))
