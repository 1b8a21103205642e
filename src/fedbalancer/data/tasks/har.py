"""UCI-HAR: which of six activities is a person doing, from a smartphone at the waist?

30 people, of whom 21 train and 9 test (the official split). A sample is a window of 2.56 s of nine signals at 50 Hz:
total acceleration, body acceleration and angular velocity, not normalised (D. Anguita et al., "A Public Domain Dataset
for Human Activity Recognition Using Smartphones", 2013). A person is a client.

Settings are the published ones. `small` has all people and windows, and therefore the same clock, but 32 filters and
64 units on every second reading (35,558 parameters instead of 1,602,502), and a budget of 100 rounds instead of 50,
because the paper's control loop first acts after 40 rounds. Transfer times are those of the published model at both
scales. Accuracy is over all test windows, which equals the published mean over test people weighted by their windows.

Measured with `hapt` at `small`, seeds 0 to 2: `fedavg+wfa` (61 to 66 rounds in the budget) has accuracy 0.79, 0.81,
0.83, 0.86, 0.87, 0.87, 0.88 after rounds 5, 10, 20, 30, 40, 50, 60, and still rises a little at its end. Its last five
evaluations have means 0.872, 0.880 and 0.893 and standard deviations of 0.004 to 0.009. `fedavg+1t` drops nearly every
slow phone, so seeds differ as the phones do: 0.877, 0.818 and 0.856, and single evaluations differ by 0.02 where few
people train. A run takes about 15 s on one core.

Measured at `paper`, seed 0: FedAvg+2T has 0.77, 0.79, 0.84, 0.85, 0.85, 0.86, 0.86, 0.86 after rounds 5 to 40 in steps
of 5, so 0.86 at its budget (10,750 s, 34 rounds). Published are 0.82, 0.84 and 0.80 at about this budget, on the
official windows. No client misses 2T, so waiting for all gives the same. Trained centrally, the same model has 0.84
after three epochs and 0.90 after nine. The most frequent activity has 19% of the test windows. A round takes about 9 s
on one core.

The variant `hapt` is made from the raw recordings of the same people (see `fedbalancer.data.readers.har`). Their
activities were labelled again: walking, upstairs and downstairs have the official number of windows (except for one
more), and the three postures up to 5% more: 7,415 and 2,996 windows instead of 7,352 and 2,947.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.data import Prepared, SlicedClients, Source, check_user_count, checksum, choose_source, load_or_prepare
from fedbalancer.data.readers.har import ACTIVITIES, FILTERS, SIGNALS, WINDOW, read_hapt, read_uci, uci_files
from fedbalancer.data.task import Task

if TYPE_CHECKING:
    import torch

OFFICIAL = Source(
    task="har",
    variant="uci",
    title="UCI-HAR: Human Activity Recognition Using Smartphones",
    files=("UCI HAR Dataset",),
    licence="CC BY 4.0 (its own README: cite, no commercial use)",
    citation="D. Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, ESANN 2013",
    urls=("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",),
    by_hand="unpack the archive and the one inside it, so that the folder 'UCI HAR Dataset' holds train and test",
)
SOURCES: tuple[Source, ...] = (
    OFFICIAL,
    Source(
        task="har",
        variant="hapt",
        title="the raw recordings behind UCI-HAR, filtered and cut as it documents",
        files=("ucihar_hapt_raw_int16.npz",),
        licence="cite; no commercial use",
        citation="J.-L. Reyes-Ortiz et al., Transition-Aware Human Activity Recognition Using Smartphones, 2016",
        official=False,
    ),
)

PAPER = {
    "batch_size": 10,
    "epochs": 5,
    "learning_rate": 0.005,
    "clients_per_round": 5,
    "rounds": 50,
    "eval_every": 5,
    "latency": "har",
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {"paper": PAPER, "small": {**PAPER, "rounds": 100}}
MODEL_BYTES = 6_410_008
"""Size of the published model, used at every scale because the batch latencies are also those of that model."""


class Shape(NamedTuple):
    """Size of the model and of its input.

    Args:
        filters: Filters of the convolution.
        dense: Units of the dense layer.
        every: Step between the readings of a window that the model receives.
    """

    filters: int
    dense: int
    every: int


SHAPES = {"paper": Shape(192, 256, 1), "small": Shape(32, 64, 2)}


def load(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """Load the task.

    Args:
        scale: "small" or "paper".
        users: Number of training subjects. None: all 21.
        variant: Name of the data set. None: the first one whose files exist.

    Raises:
        MissingData: If the data are not on this computer.
    """
    source = choose_source(SOURCES, variant)
    data = prepare(source)
    names, lengths = data.meta["names"], data.meta["lengths"]
    users = check_user_count(users, len(names), "har")
    settings = dict(SETTINGS[scale])
    settings["clients_per_round"] = min(settings["clients_per_round"], users)
    rows, shape = slice(sum(lengths[:users])), SHAPES[scale]
    features, test = (_thin(data.arrays[part], shape.every) for part in ("x", "test_x"))
    return Task(
        clients=SlicedClients(tuple(names[:users]), tuple(lengths[:users]), features[rows], data.arrays["y"][rows]),
        test=(test, data.arrays["test_y"]),
        model=partial(make_model, *shape),
        name="har",
        variant=source.variant,
        model_bytes=MODEL_BYTES,
        classes=len(ACTIVITIES),
        notes={"activities": ACTIVITIES, "signals": SIGNALS, "test_subjects": data.meta["test_names"]},
        **settings,
    )


def prepare(source: Source) -> Prepared:
    """Return the windows of a source, from the cache if possible."""
    path: Path = source.paths[0]
    if source.official:
        key: dict[str, Any] = {"files": [checksum(file) for file in uci_files(path) if file.is_file()]}
        return load_or_prepare("har", key, lambda: read_uci(path))
    return load_or_prepare("har", {"file": checksum(path), **FILTERS}, lambda: read_hapt(path))


def _thin(windows: NDArray[np.float32], every: int) -> NDArray[np.float32]:
    return windows if every == 1 else np.ascontiguousarray(windows[:, :, ::every])


def make_model(filters: int = 192, dense: int = 256, every: int = 1) -> torch.nn.Sequential:
    """Make the published CNN, which has 1,602,502 parameters by default.

    Weights are Glorot-uniform and biases are zero. A filter always spans a third of a second. See `Shape` for the
    arguments.
    """
    from torch import nn

    from fedbalancer.data.tasks.layers import init_glorot

    width, steps, pool = 16 // every, WINDOW // every, 4
    return init_glorot(
        nn.Sequential(
            nn.ConstantPad1d(((width - 1) // 2, width // 2), 0.0),  # same length
            nn.Conv1d(len(SIGNALS), filters, width),
            nn.MaxPool1d(pool),
            nn.ReLU(),  # after the pooling: same values, a quarter of the work
            nn.Flatten(),
            nn.Linear(filters * steps // pool, dense),
            nn.ReLU(),
            nn.Linear(dense, len(ACTIVITIES)),
        )
    )
