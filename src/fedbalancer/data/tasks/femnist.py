"""FEMNIST: which of 62 characters did a person write?

Handwritten digits and letters of NIST's forms, with 28 x 28 grey values from 0 (ink) to 1 (paper), one client per
writer. Sampled and split by user as in LEAF: 712 writers, of whom 90% train. Settings are the published ones.

At `small`, there are at most 100 training writers and 120 test writers, 14 x 14 pixels (means of four), 8 and 16
filters and a dense layer of 64 (16,734 parameters), 10 clients per round, a budget of 100 rounds, and a learning rate
of 0.015: with the published 0.001, three central epochs over 3,000 digits reach an accuracy of only 0.22. Transfer
times are those of the published model.

There are two stand-ins, with ink and paper as in FEMNIST:
`digits` is MNIST by writer, with ten of the 62 classes, in MNIST's own split by user: 539 writers with 60,000 images
train and 297 others with 10,000 test. Writers differ in style, but hardly in labels.
`strokes` has 62 characters, each drawn once by 55 writers, of whom 49 train and 6 test.
Letters whose capital looks the same differ only in size.

Measured at `small` with `digits`, seed 0: `fedavg+1t` has accuracy 0.70, 0.84, 0.88, 0.89, 0.90, 0.91, 0.92, 0.93
after rounds 10, 20, 30, 40, 50, 60, 80, 100, and `fedavg+wfa` 0.73, 0.86, 0.89, 0.91, 0.92 after rounds 10 to 50, the
end of its budget. Both still rise. The last five evaluations of `fedavg+1t` have mean 0.927 and standard deviation
0.004. Chance is 0.11. A run takes 15 s on one shared core. The learning rate was chosen on MNIST's test images, on
FedAvg.

Files:

- LEAF's JSON: x has 784 grey values from 0 (ink) to 1 (paper) per image, y is a class from 0 to 61.
- `digits`: MNIST with the writer of each image. The `.npz` file has x (uint8, n x 28 x 28, ink is 255), y and writer.
  MNIST's own split into 60,000 and 10,000 images is a split by user: no writer is in both.
- `strokes`: characters drawn with a pen (T. E. de Campos et al., "Character recognition in natural images", VISAPP
  2009: the Chars74K data, part "hnd"). The file is {character: [drawing of writer 0, drawing of writer 1, ...]}. A
  drawing is a list of strokes, a stroke is a list of points [x, y] with y downwards. Every writer drew each of the 62
  characters once.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.data import Prepared, Source, checksum, choose_source, load_or_prepare
from fedbalancer.data.readers import (
    LeafUser,
    UserSplit,
    class_labels,
    from_leaf,
    hold_out,
    leaf_checksums,
    leaf_files,
    pack,
    read_npz,
    shrink_images,
    unpack,
)
from fedbalancer.data.task import Task

if TYPE_CHECKING:
    import torch


PIXELS = 28
CLASSES = 62


def femnist_samples(user: LeafUser) -> Samples:
    """Return images (n, 1, 28, 28) and labels of a user of LEAF's FEMNIST.

    Raises:
        BadData: If an image or a label is invalid.
    """
    for index, image in enumerate(user.x):
        if not isinstance(image, list) or len(image) != PIXELS**2:
            size = len(image) if isinstance(image, list) else type(image).__name__
            raise BadData(f"{user.where}, sample {index}: an image must be a list of 28 x 28 = 784 values, not {size}")
    features = _convert_images(user)
    valid = ((features >= 0) & (features <= 1)).all(axis=1)  # False for NaN
    if not valid.all():
        index = int(np.argmin(valid))
        worst = features[index][~((features[index] >= 0) & (features[index] <= 1))][0]
        raise BadData(f"{user.where}, sample {index}: value {worst:g}; grey values must be from 0 to 1")
    return features.reshape(-1, 1, PIXELS, PIXELS), class_labels(user, CLASSES)


def _convert_images(user: LeafUser) -> NDArray[np.float32]:
    try:
        return np.array(user.x, dtype=np.float32)
    except (TypeError, ValueError):
        for index, image in enumerate(user.x):
            if not all(isinstance(value, int | float) for value in image):
                raise BadData(f"{user.where}, sample {index}: grey values must be numbers from 0 to 1") from None
        raise


TRAIN = 60_000
"""Number of MNIST's training images, which come first."""


def read_digits(path: Path, train: int = TRAIN) -> UserSplit:
    """Read MNIST by writer: images (n, 1, 28, 28) from 0 (ink) to 1 (paper) and digits, in MNIST's split.

    Args:
        path: The file.
        train: Number of training images.

    Raises:
        BadData: If the file is invalid, or a writer is in both parts.
    """
    arrays = read_npz(path, {"x": (28, 28), "y": (), "writer": ()})
    x, y, writer = arrays["x"], arrays["y"], arrays["writer"].astype(np.int64)
    if y.min() < 0 or y.max() > 9:
        bad = int(np.flatnonzero((y < 0) | (y > 9))[0])
        raise BadData(f"{path}: sample {bad} of writer {writer[bad]} has label {y[bad]}; labels must be 0 to 9")
    both = np.intersect1d(writer[:train], writer[train:])
    if len(both) or len(y) <= train:
        reason = f"writer {both[0]} is in both" if len(both) else f"there are only {len(y)} images"
        raise BadData(f"{path}: the first {train} images are training data and the others test data, but {reason}")

    return UserSplit(*(_by_writer(x[rows], y[rows], writer[rows]) for rows in (slice(train), slice(train, None))))


def _by_writer(x: NDArray[Any], y: NDArray[Any], writer: NDArray[np.int64]) -> dict[str, Samples]:
    users: dict[str, Samples] = {}
    for name in np.unique(writer):
        mine = np.flatnonzero(writer == name)
        users[f"w{name:04d}"] = (invert_ink(x[mine]), y[mine].astype(np.int64))
    return users


def invert_ink(ink: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert images with ink 255 on paper 0 to FEMNIST's (n, 1, 28, 28) with ink 0 on paper 1."""
    return np.subtract(1, ink / np.float32(255), dtype=np.float32)[:, None]


CHARACTERS = digits + ascii_uppercase + ascii_lowercase
"""The characters in the order of FEMNIST's classes."""

FINE = 4
"""Factor by which drawings are larger before they are averaged, for soft edges."""
BODY = 20
"""Size of a writer's large characters in pixels: the 90th percentile."""
LARGEST = 22
"""Largest size of a character in pixels, so that no ink reaches the edge."""
PEN = 2
"""Width of a line in pixels."""

Drawing = list[NDArray[np.float64]]


def read_strokes(path: Path) -> UserSplit:
    """Read drawings as images (n, 1, 28, 28) from 0 (ink) to 1 (paper) and classes; 90% of the writers train.

    Raises:
        BadData: If the file is damaged or a drawing is invalid.
    """
    drawings = _read_drawings(path)
    labels = np.arange(len(CHARACTERS))
    users: dict[str, Samples] = {}
    for writer in range(len(drawings[CHARACTERS[0]])):
        mine = [drawings[character][writer] for character in CHARACTERS]
        # One scale for all drawings of a writer, because o and O differ only in size.
        scale = BODY / np.percentile([_extent(drawing) for drawing in mine], 90)
        users[f"writer{writer:02d}"] = (invert_ink(np.stack([draw(drawing, scale) for drawing in mine])), labels)
    return hold_out(users)


def draw(drawing: Drawing, scale: float) -> NDArray[np.uint8]:
    """Draw strokes with ink (255) at the centre of an image of 28 x 28 pixels.

    Args:
        drawing: The strokes.
        scale: Pixels per unit; less if the drawing would not fit.
    """
    from PIL import Image, ImageDraw

    points = np.concatenate(drawing)
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    scale = FINE * min(scale, LARGEST / max(_extent(drawing), 1e-9))
    canvas = Image.new("L", (PIXELS * FINE, PIXELS * FINE))
    pen = ImageDraw.Draw(canvas)
    for stroke in drawing:
        line = [(float(x), float(y)) for x, y in (stroke - middle) * scale + PIXELS * FINE / 2]
        pen.line(line, fill=255, width=PEN * FINE)
        for x, y in (line[0], line[-1]):  # round ends, and a dot for a stroke of one point
            half = PEN * FINE / 2
            pen.ellipse((x - half, y - half, x + half, y + half), fill=255)
    return np.asarray(canvas.resize((PIXELS, PIXELS), Image.Resampling.BOX))


def _extent(drawing: Drawing) -> float:
    return float(np.ptp(np.concatenate(drawing), axis=0).max())


def _read_drawings(path: Path) -> dict[str, list[Drawing]]:
    try:
        with lzma.open(path) as file:
            document: Any = json.load(file)
    except (ValueError, EOFError, lzma.LZMAError) as error:
        raise BadData(f"{path} is damaged or not compressed JSON ({' '.join(str(error).split())})") from error
    if not isinstance(document, dict) or set(document) != set(CHARACTERS):
        raise BadData(f"{path} must have an entry for each of the 62 characters {CHARACTERS}")
    counts = {character: len(document[character]) for character in CHARACTERS}
    odd = next((character for character, count in counts.items() if count != counts[CHARACTERS[0]]), None)
    if odd is not None:
        raise BadData(f"{path}: {odd!r} was drawn by {counts[odd]} writers, '0' by {counts[CHARACTERS[0]]}")
    return {
        character: [
            _check_drawing(strokes, f"{path}: {character!r} of writer {k}") for k, strokes in enumerate(by_writer)
        ]
        for character, by_writer in document.items()
    }


def _check_drawing(strokes: Any, where: str) -> Drawing:
    try:
        arrays = [np.array(stroke, dtype=np.float64) for stroke in strokes]
    except (TypeError, ValueError) as error:
        raise BadData(f"{where} is not a list of strokes of points [x, y]") from error
    if not arrays:
        raise BadData(f"{where} has no strokes")
    for index, stroke in enumerate(arrays):
        if stroke.ndim != 2 or stroke.shape[1] != 2 or not len(stroke) or not np.isfinite(stroke).all():
            raise BadData(f"{where}: stroke {index} must be a list of points [x, y] of finite numbers")
    return arrays


_CITATION = "S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; images: NIST Special Database 19"
SOURCES: tuple[Source, ...] = (
    Source(
        task="femnist",
        variant="leaf",
        title="FEMNIST: handwritten characters by writer, as LEAF's JSON",
        files=("femnist",),
        licence="NIST's terms for Special Database 19; LEAF's scripts: BSD 2-clause",
        citation=_CITATION,
        by_hand=(
            "run LEAF's data/femnist/preprocess.sh -s niid --sf 0.2 -k 0 -t user (it downloads NIST's by_class.zip and "
            "by_write.zip), and import its folder data/femnist, with train and test in it or in its subfolder data"
        ),
    ),
    Source(
        task="femnist",
        variant="digits",
        title="MNIST by writer: FEMNIST's handwriting, its ten digits only",
        files=("mnist_by_writer.npz",),
        licence="MNIST's and QMNIST's terms",
        citation="Y. LeCun et al., MNIST, 1998; C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, 2019",
        official=False,
    ),
    Source(
        task="femnist",
        variant="strokes",
        title="Chars74K: 62 characters drawn by pen, as images",
        files=("chars74k_hnd_strokes.json.xz",),
        licence="cite the source",
        citation="T. E. de Campos et al., Character recognition in natural images, VISAPP 2009",
        official=False,
    ),
)

PAPER: Mapping[str, Any] = {
    "batch_size": 10,
    "epochs": 5,
    "learning_rate": 0.001,
    "clients_per_round": 100,
    "rounds": 1000,
    "eval_every": 5,
    "latency": "femnist",
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "paper": PAPER,
    "small": {**PAPER, "learning_rate": 0.015, "clients_per_round": 10, "rounds": 100},
}


class Shape(NamedTuple):
    """Size of the model and of its images.

    Args:
        first: Filters of the first convolution.
        second: Filters of the second convolution.
        dense: Units of the dense layer.
        every: Width of the squares of pixels that are averaged.
    """

    first: int
    second: int
    dense: int
    every: int


SHAPES = {"paper": Shape(32, 64, 2048, 1), "small": Shape(8, 16, 64, 2)}
USERS: Mapping[str, tuple[int | None, int | None]] = {"paper": (None, None), "small": (100, 120)}
"""Largest number of training users and test users. None: all."""

MODEL_BYTES = 26_414_840
"""Size of the published model, used at every scale because the batch latencies are also those of that model."""


def load(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """Load the task.

    Args:
        scale: "small" or "paper".
        users: Number of training writers. None: all of the scale.
        variant: Name of the data set. None: the first one whose files exist.

    Raises:
        MissingData: If the data are not on this computer.
    """
    source = choose_source(SOURCES, variant)
    data = prepare(source)
    clients, test = unpack(data, users, *USERS[scale])
    settings, shape = dict(SETTINGS[scale]), SHAPES[scale]
    settings["clients_per_round"] = min(settings["clients_per_round"], len(clients))
    return Task(
        clients=replace(clients, features=shrink_images(clients.features, shape.every)),
        test=(shrink_images(test[0], shape.every), test[1]),
        model=partial(make_model, *shape),
        name="femnist",
        variant=source.variant,
        model_bytes=MODEL_BYTES,
        classes=CLASSES,
        notes={"dense": shape.dense, "test_users": len(data.meta["test"]["names"][: USERS[scale][1]])},
        **settings,
    )


def prepare(source: Source) -> Prepared:
    """Return the images of a source, from the cache if possible."""
    path = source.paths[0]
    if source.variant == "leaf":
        files = leaf_files(path)
        return load_or_prepare("femnist", leaf_checksums(files), lambda: pack(from_leaf(files, femnist_samples)))
    if source.variant == "digits":
        return load_or_prepare("femnist", {"file": checksum(path)}, lambda: pack(read_digits(path)))
    pen = {"body": BODY, "largest": LARGEST, "pen": PEN}
    return load_or_prepare("femnist", {"file": checksum(path), **pen}, lambda: pack(read_strokes(path)))


def make_model(first: int = 32, second: int = 64, dense: int = 2048, every: int = 1) -> torch.nn.Module:
    """Make LEAF's CNN, which has the published 6,603,710 parameters by default.

    Weights are Glorot-uniform and biases are zero. See `Shape` for the arguments.
    """
    from torch import nn

    from fedbalancer.data.tasks.layers import init_glorot

    return init_glorot(
        nn.Sequential(
            nn.Conv2d(1, first, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after the pooling: same values, a quarter of the work
            nn.Conv2d(first, second, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(second * (PIXELS // every // 4) ** 2, dense),
            nn.ReLU(),
            nn.Linear(dense, CLASSES),
        )
    )
