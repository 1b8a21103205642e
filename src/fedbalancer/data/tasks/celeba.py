"""CelebA: is the person on a photograph smiling?

Photographs of celebrities, one client per person, with 84 x 84 pixels of three colours from 0 to 255, labelled by the
attribute "Smiling" (Z. Liu et al., "Deep Learning Face Attributes in the Wild", 2015). Sampled and split by person as
in LEAF: 915 people, of whom 90% train.

Settings are the published ones, converted to the mean loss. The published code minimises the *sum* of the losses of a
batch: its step is 0.001 (sum of the gradients + 0.1 (w - w0)) with Prox's mu of 0.1. For batches of 10 this equals
0.01 (mean of the gradients + 0.01 (w - w0)). The learning rate is therefore ten times the published one, and mu a
tenth of it. A shorter last batch takes a longer step here. Batch norm always uses the statistics of the current batch.
In the published test a batch contains the images of one person; here it contains up to 256 images of several people.

At `small`, images have 42 x 42 pixels (means of four), convolutions have 8 filters (2,186 parameters), and the budget
is 100 rounds with 5 clients. Transfer times are those of the published model.

The variant `sunglasses` is a different question about different people: 20 people of CMU's face images, in grey,
enlarged to 84 x 84. About half of the images show sunglasses. Every person has training images (309 in total, 14 to 16
each; CelebA has 22 per person) and test images (315), because a model trained on ten people does not generalize to the
other ten (accuracy 0.75, varying by 0.02).

Measured at `small` with `sunglasses`, seed 0: `fedavg+1t` has accuracy 0.74, 0.84, 0.87, 0.87, 0.87, 0.89, 0.90, 0.89,
0.90, 0.90 after rounds 10 to 100 in steps of 10. Its last five evaluations have mean 0.898 and standard deviation
0.005. With another draw of the images and 80 rounds, `fedavg+wfa` had 0.80, 0.86, 0.88, 0.89, 0.91 after rounds 10 to
50, and a final mean of 0.900 with standard deviation 0.009. Chance is 0.51. A run takes 12 s on one shared core.

Files:

- LEAF's JSON: x has the names of image files, y is 1 for a smile. The aligned images, 178 x 218 pixels, are in
  `raw/img_align_celeba`.
- Grey faces of 20 people, with and without sunglasses, in four poses and four expressions (T. Mitchell, CMU face
  images, 1997). The `.npz` file has x (uint8, n x 60 x 64), person, and eyes (`open` or `sunglasses`).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
from fedbalancer.data import Prepared, Source, checksum, choose_source, load_or_prepare
from fedbalancer.data.readers import (
    LeafUser,
    UserSplit,
    class_labels,
    from_leaf,
    leaf_checksums,
    leaf_files,
    leaf_users,
    pack,
    read_npz,
    shrink_images,
    unpack,
)
from fedbalancer.data.task import Task

if TYPE_CHECKING:
    import torch


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


SOURCES: tuple[Source, ...] = (
    Source(
        task="celeba",
        variant="leaf",
        title="CelebA: smiling or not, by celebrity, as LEAF's JSON with the aligned images",
        files=("celeba",),
        licence="non-commercial research only",
        citation="Z. Liu et al., Deep Learning Face Attributes in the Wild, ICCV 2015; S. Caldas et al., LEAF, 2018",
        by_hand=(
            "download img_align_celeba.zip, identity_CelebA.txt and list_attr_celeba.txt from the authors' page, run "
            "LEAF's data/celeba/preprocess.sh -s niid --sf 0.1 -k 5 -t user, and import its folder data/celeba, with "
            "train, test and raw/img_align_celeba in it or in its subfolder data"
        ),
    ),
    Source(
        task="celeba",
        variant="sunglasses",
        title="CMU faces: sunglasses or not, by person",
        files=("cmu_faces_64x60.npz",),
        licence="cite the source",
        citation="T. Mitchell, CMU Face Images, UCI Machine Learning Repository, 1997",
        official=False,
    ),
)

PAPER: Mapping[str, Any] = {
    "batch_size": 10,
    "epochs": 5,
    "learning_rate": 0.01,
    "clients_per_round": 100,
    "rounds": 100,
    "eval_every": 5,
    "prox_mu": 0.01,
    "latency": "celeba",
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "paper": PAPER,
    "small": {**PAPER, "clients_per_round": 5, "rounds": 100},
}
FILTERS = {"paper": 32, "small": 8}
"""Filters of each of the four convolutions."""
EVERY = {"paper": 1, "small": 2}
"""Width of the squares of pixels that are averaged."""
MODEL_BYTES = 124_808
"""Size of the published model, used at every scale because the batch latencies are also those of that model."""
USERS: Mapping[str, tuple[int | None, int | None]] = {"paper": (None, None), "small": (100, 20)}
"""Largest number of training users and test users. None: all."""


def load(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """Load the task.

    Args:
        scale: "small" or "paper".
        users: Number of training people. None: all of the scale.
        variant: Name of the data set. None: the first one whose files exist.

    Raises:
        MissingData: If the data are not on this computer.
    """
    source = choose_source(SOURCES, variant)
    data = prepare(source)
    clients, test = unpack(data, users, *USERS[scale])
    settings = dict(SETTINGS[scale])
    settings["clients_per_round"] = min(settings["clients_per_round"], len(clients))
    return Task(
        clients=replace(clients, features=shrink_images(clients.features, EVERY[scale])),
        test=(shrink_images(test[0], EVERY[scale]), test[1]),
        model=partial(make_model, FILTERS[scale], PIXELS // EVERY[scale]),
        name="celeba",
        variant=source.variant,
        model_bytes=MODEL_BYTES,
        classes=2,
        notes={"test_users": len(data.meta["test"]["names"][: USERS[scale][1]])},
        **settings,
    )


def prepare(source: Source) -> Prepared:
    """Return the images of a source, from the cache if possible."""
    path = source.paths[0]
    key: dict[str, Any] = {"variant": source.variant, "pixels": PIXELS}
    if source.official:
        return load_or_prepare("celeba", {**key, **celeba_key(path)}, lambda: pack(read_celeba(path)))
    key |= {"file": checksum(path), "train_share": TRAIN_SHARE, "split": "images"}
    return load_or_prepare("celeba", key, lambda: pack(read_faces(path)))


def make_model(filters: int = 32, side: int = PIXELS) -> torch.nn.Module:
    """Make LEAF's CNN, which has the published 31,202 parameters at scale `paper`.

    Weights are Glorot-uniform and biases are zero. The channels-last layout makes a step a third faster.

    Args:
        filters: Filters of every convolution.
        side: Height and width of the images.
    """
    from torch import nn

    from fedbalancer.data.tasks.layers import init_glorot
    from fedbalancer.training.fast.chain import ChannelsLast

    blocks = nn.Sequential(*(layer for inputs in (3, filters, filters, filters) for layer in _block(inputs, filters)))
    head = nn.Linear(filters * (-(-side // 16)) ** 2, 2)  # halved four times, rounded up
    layers = {"layout": ChannelsLast(), "blocks": blocks, "flat": nn.Flatten(), "head": head}
    return init_glorot(nn.Sequential(OrderedDict(layers)))


def _block(inputs: int, filters: int) -> tuple[torch.nn.Module, ...]:
    """Make a block of convolution, batch norm, pooling and ReLU.

    As in LEAF's model, batch norm always uses the statistics of the current batch, also in tests. Pooling rounds up:
    84, 42, 21, 11, 6.
    """
    from torch import nn

    return (
        nn.Conv2d(inputs, filters, 3, padding=1),
        nn.BatchNorm2d(filters, eps=1e-3, track_running_stats=False),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.ReLU(),
    )
