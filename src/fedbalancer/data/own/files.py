"""Samples from tables (Parquet, CSV) and from folders of images."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.core.task import Samples


def read_table(
    path: Path, features: str | Sequence[str], label: str, shape: Sequence[int] | None, user: str | None
) -> tuple[Samples, NDArray[Any] | None]:
    """Read the samples of a file: CSV if its name ends in .csv or .tsv, else Parquet.

    Args:
        path: The file.
        features: Columns of features, or one column of lists.
        label: Column of labels.
        shape: Shape of a sample. None: the length of its list.
        user: Column of users. None: there are none.

    Returns:
        The samples, and the user of each if there is a column of users.

    Raises:
        BadData: If the file cannot be read or has invalid values.
        BadSetting: If `features` or `shape` is invalid.
    """
    names = [features] if isinstance(features, str) else list(features)
    if not names:
        raise BadSetting(f"features must name at least one column of {path}")
    frame = read_columns(path, [*names, label, *([user] if user is not None else [])], user)
    samples = _convert_samples(frame, names, label, shape, path, user)
    return samples, frame[user].to_numpy() if user is not None else None


def list_features(path: Path, label: str, user: str | None) -> list[str]:
    """Return all columns of a file but the label and the user."""
    return [name for name in _open(path, user)[0] if name not in (label, user)]


def read_columns(path: Path, columns: Sequence[str], user: str | None) -> pl.DataFrame:
    """Read columns of a file, which must have no missing values.

    Args:
        path: The file.
        columns: The columns.
        user: Column of users, which errors name.
    """
    known, read = _open(path, user)
    for column in columns:
        if column not in known:
            raise UnknownName(f"column of {path}", column, known)
    frame = read(list(dict.fromkeys(columns)))
    for column in frame.columns:
        if frame[column].null_count():
            row = int(frame[column].is_null().arg_true()[0])
            raise BadData(f"{path}: column {column!r} is empty in row {row}{_name_user(frame, user, row)}")
        if isinstance(frame[column].dtype, pl.Categorical | pl.Enum):
            frame = frame.with_columns(pl.col(column).cast(pl.String))
    return frame


CSV = {".csv": ",", ".tsv": "\t"}
"""Separators of files with columns of text."""


def _open(path: Path, user: str | None) -> tuple[list[str], Callable[[list[str]], pl.DataFrame]]:
    """Return the columns of a file, and a function that reads some of them."""
    if not path.is_file():
        raise BadData(f"the file {path} does not exist")
    try:
        if path.suffix.lower() not in CSV:
            return list(pl.read_parquet_schema(path)), lambda names: pl.read_parquet(path, columns=names, glob=False)
        as_text = {user: pl.String} if user is not None else None  # the users 7 and 007 are two
        frame = pl.read_csv(
            path, separator=CSV[path.suffix.lower()], schema_overrides=as_text, infer_schema_length=None, glob=False
        )
        if len(frame.columns) == 1 and re.search("[;\t|,]", frame.columns[0]):
            right = "commas" if CSV[path.suffix.lower()] == "," else "tabs"
            raise BadData(f"{path}: the header is one column, {frame.columns[0]!r}; separate columns by {right}")
        return frame.columns, frame.select
    except pl.exceptions.PolarsError as error:
        kind = "CSV" if path.suffix.lower() in CSV else "Parquet"
        raise BadData(f"{path} cannot be read as {kind}: {error}") from error


def _convert_samples(
    frame: pl.DataFrame, names: Sequence[str], label: str, shape: Sequence[int] | None, path: Path, user: str | None
) -> Samples:
    if len(frame) == 0:
        raise BadData(f"{path} has no rows")
    columns = [_convert_column(frame, name, path, user) for name in names]
    odd = next((name for name, column in zip(names, columns, strict=True) if column.shape != columns[0].shape), None)
    if odd is not None:
        raise BadData(
            f"{path}: features {names[0]!r} and {odd!r} differ in length; use one column of lists or columns of numbers"
        )
    features = columns[0] if len(columns) == 1 and columns[0].ndim > 1 else np.stack(columns, axis=1)
    if shape is not None:
        if any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in shape):
            raise BadSetting(f"shape = {list(shape)} must be whole numbers of at least 1")
        actual, expected = math.prod(features.shape[1:]), math.prod(shape)
        if actual != expected:
            raise BadSetting(f"shape = {list(shape)} has {expected} numbers, but a sample of {path} has {actual}")
        features = features.reshape(len(features), *shape)
    labels = frame[label]
    if not (labels.dtype.is_numeric() or labels.dtype in (pl.Boolean, pl.String)):
        raise BadData(f"{path}: label column {label!r} has type {labels.dtype}; it must contain numbers or text")
    return features, labels.to_numpy()


def _convert_column(frame: pl.DataFrame, name: str, path: Path, user: str | None) -> NDArray[Any]:
    """Convert a column to an array: one number per row, or (nested) lists of the same length."""
    values, shape = frame[name], [len(frame)]
    while isinstance(values.dtype, pl.List | pl.Array):
        lists = values.arr.to_list() if isinstance(values.dtype, pl.Array) else values
        lengths = lists.list.len()
        odd = (lengths != lengths[0]).arg_true()
        if len(odd) or lengths[0] == 0:
            at = int(odd[0]) if len(odd) else 0
            row = at * shape[0] // len(lists)
            raise BadData(
                f"{path}: column {name!r} has {lengths[at]} values in row {row}{_name_user(frame, user, row)}, "
                f"but {lengths[0]} before; all lists must have the same length, at least 1"
            )
        values, shape = lists.explode(), [*shape, int(lengths[0])]
    if not (values.dtype.is_numeric() or values.dtype == pl.Boolean):
        raise BadData(
            f"{path}: feature column {name!r} holds {values.dtype}; features must be numbers or lists of them"
        )
    if values.null_count():
        row = int(values.is_null().arg_true()[0]) * shape[0] // len(values)
        raise BadData(f"{path}: column {name!r} has an empty value in row {row}{_name_user(frame, user, row)}")
    if values.dtype != pl.UInt8:  # bytes are pixels
        values = values.cast(pl.Int64 if values.dtype.is_integer() else pl.Float32)
    array = values.to_numpy().reshape(shape)
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))[0])
        raise BadData(f"{path}: column {name!r} is NaN or infinite in row {row}{_name_user(frame, user, row)}")
    return array


def _name_user(frame: pl.DataFrame, user: str | None, row: int) -> str:
    return f" (user {str(frame[user][row])!r})" if user is not None and frame[user][row] is not None else ""


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
