"""CelebA as its users have it: LEAF's JSON, where x are names of image files and y is 1 for a smile, and the aligned
images themselves, 178 x 218, in `raw/img_align_celeba`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.task import Samples
from fedbalancer.data.readers.femnist_json import class_labels
from fedbalancer.data.readers.leaf import LeafUser, leaf_checksums, leaf_files, leaf_users
from fedbalancer.data.readers.user_split import UserSplit, from_leaf

ALIGNED = (178, 218)
"""Width and height of the aligned images."""
PIXELS = 84
_IMAGES = ("raw/img_align_celeba", "data/raw/img_align_celeba")


def read_celeba(folder: Path) -> UserSplit:
    """Images (n, 3, 84, 84) of 0 to 255 and 1 for a smile, by person."""
    return from_leaf(leaf_files(folder), partial(celeba_samples, images=images_folder(folder)))


def images_folder(folder: Path) -> Path:
    """Where the aligned images are."""
    for place in _IMAGES:
        if (folder / place).is_dir():
            return folder / place
    raise MissingData(f"{folder} lacks the folder raw/img_align_celeba with the aligned images of CelebA")


def celeba_key(folder: Path) -> dict[str, Any]:
    """What a cache entry depends on: the JSON files, and of every image named there its size and time. The contents of
    20,000 images would take longer to read than everything else that a second start does."""
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
    """Checked images and labels of one person."""
    labels = class_labels(user, 2)
    return np.stack([_image(user, index, images) for index in range(len(user.x))]), labels


def _image_path(user: LeafUser, index: int, images: Path) -> Path:
    name = user.x[index]
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise BadData(f"{user.where}, sample {index}: {name!r} is not the name of an image file")
    if not (images / name).is_file():
        raise BadData(f"{user.where}, sample {index}: there is no image {images / name}")
    return images / name


def _image(user: LeafUser, index: int, images: Path) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    path = _image_path(user, index, images)
    try:
        with Image.open(path) as image:
            if image.size != ALIGNED:
                size = f"{image.size[0]} x {image.size[1]}"
                raise BadData(f"{user.where}, sample {index}: {path} is {size}; aligned images are 178 x 218")
            small = np.asarray(image.resize((PIXELS, PIXELS)).convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise BadData(f"{user.where}, sample {index}: {path} is damaged or no image ({error})") from error
    return np.ascontiguousarray(small.transpose(2, 0, 1))
