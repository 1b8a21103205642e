"""Samples from folders of images: one folder per class, or one folder per user with a folder per class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.core.task import Samples

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
COLORS = {"rgb": "RGB", "grey": "L"}
"""Modes of Pillow by the names of the option `color`."""
LAYOUTS = {"class": "FOLDER/CLASS/image.png", "user": "FOLDER/USER/CLASS/image.png"}
"""What the folders of the option `by` are."""


class ImageFile(NamedTuple):
    """An image and where it belongs.

    Args:
        path: The file.
        label: Name of its class.
        user: Name of its user. Empty without users.
    """

    path: Path
    label: str
    user: str


def read_images(
    folder: Path, by: str, size: Sequence[int] | None, color: str
) -> tuple[Samples, NDArray[Any] | None, tuple[int, int]]:
    """Read all images of a folder as bytes of shape (samples, channels, height, width).

    Args:
        folder: The folder.
        by: "class" or "user"; see `LAYOUTS`.
        size: Height and width to which images are scaled. None: all images must have the size of the first.
        color: "rgb" or "grey".

    Returns:
        The samples, the user of each if there are users, and the height and width.

    Raises:
        BadData: If there are no images, or one cannot be read.
        BadSetting: If an option is invalid.
        MissingData: If Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingData("images need Pillow; install it with: pip install pillow") from error
    if color not in COLORS:
        raise UnknownName("color", str(color), COLORS)
    target = _check_size(size)
    files = list(_list_files(folder, by))
    if not files:
        raise BadData(f"{folder} has no images; they must be {LAYOUTS[by]} ({', '.join(SUFFIXES)})")
    pixels: NDArray[np.uint8] | None = None
    for row, file in enumerate(files):
        try:
            with Image.open(file.path) as image:
                found = image.convert(COLORS[color])
                if size is not None:
                    found = found.resize(target[::-1], Image.Resampling.BILINEAR)
                array = np.asarray(found, dtype=np.uint8)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise BadData(f"{file.path} cannot be read as an image: {error}") from error
        array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        if pixels is None:
            pixels = np.empty((len(files), *array.shape), dtype=np.uint8)
        if array.shape != pixels.shape[1:]:
            raise BadData(
                f"{file.path} has {array.shape[1]} x {array.shape[2]} pixels, but {files[0].path} has "
                f"{pixels.shape[2]} x {pixels.shape[3]}; set size = [height, width] to scale all images"
            )
        pixels[row] = array
    assert pixels is not None
    labels = np.array([file.label for file in files])
    users = np.array([file.user for file in files], dtype=object) if by == "user" else None
    return (pixels, labels), users, (pixels.shape[2], pixels.shape[3])


def _check_size(size: Sequence[int] | None) -> tuple[int, int]:
    if size is None:
        return 0, 0
    sides: list[Any] = list(size) if isinstance(size, list | tuple) else [size]
    if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
        raise BadSetting(f"size = {size!r} must be [height, width], two whole numbers of at least 1")
    return int(sides[0]), int(sides[1])


def _list_files(folder: Path, by: str) -> Iterator[ImageFile]:
    """Yield the images of a folder in the order of their names."""
    if not folder.is_dir():
        raise BadData(f"the folder {folder} does not exist")
    users = _list_folders(folder) if by == "user" else [folder]
    for user in users:
        for label in _list_folders(user):
            for path in sorted(label.iterdir()):
                if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
                    yield ImageFile(path, label.name, user.name if by == "user" else "")


def _list_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
