"""A learning problem: who has what data, and what is trained on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.errors import BadData

if TYPE_CHECKING:
    from fedbalancer.tasks.own.models import Model
    from fedbalancer.tasks.own.options import OwnOptions

Samples = tuple[NDArray[Any], NDArray[Any]]
"""Features and labels, row by row."""

TEST = "the test data"


@runtime_checkable
class MadeOnDemand(Protocol):
    """Clients whose samples are made when they are asked for: a mapping that knows all sizes beforehand, in the order
    of its keys. Such clients are not looked at when a task is made, so that ten thousand of them cost nothing."""

    @property
    def sizes(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, eq=False)
class Task:
    """A learning problem. Only `clients`, `test` and `model` are needed; the rest are settings with defaults.

    `clients` maps an id to (features, labels); `model` makes a fresh `torch.nn.Module`, called without arguments.
    `loss` gives one value per sample from (outputs, labels); `metric` how many of how many are right, for losses
    that are not the cross-entropy of one label. `rounds` is the budget rule: a comparison gives every method the
    seconds that FedAvg+1T needs for that many rounds. `latency` names the row of batch latencies of the device model
    (a task of the paper), or gives your own: a mapping of slow, mid and fast to (mean, standard deviation) in
    milliseconds.

    >>> import numpy as np
    >>> x, y = np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])
    >>> task = Task(clients={"ann": (x, y), "bob": (x, y)}, test=(x, y), model=lambda: None)
    >>> task.sizes
    {'ann': 4, 'bob': 4}
    """

    clients: Mapping[str, Samples]
    test: Samples
    model: Callable[[], Any]
    name: str = "custom"
    variant: str = ""
    batch_size: int = 10
    epochs: int = 5
    learning_rate: float = 0.01
    clients_per_round: int = 10
    rounds: int = 50
    eval_every: int = 5
    clip_norm: float | None = None
    prox_mu: float = 0.0
    sample_selection_deadline: int = 1
    loss: str | Callable[[Any, Any], Any] = "cross_entropy"
    metric: str | Callable[[Any, Any], tuple[float, float]] = "accuracy"
    latency: str | Mapping[str, tuple[float, float]] = "femnist"
    model_bytes: int | None = None
    classes: int | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.clients:
            raise BadData(f"task {self.name!r} has no clients; give at least one as an id and (features, labels)")
        parts: dict[str, Samples] = {}
        if isinstance(self.clients, MadeOnDemand):
            for client, size in self.clients.sizes.items():
                if size < 1:
                    raise BadData(f"client {client!r} has no samples; leave it out or give it at least one")
        else:
            parts = {f"client {client!r}": samples for client, samples in self.clients.items()}
        parts[TEST] = self.test
        check_alike({where: check_samples(samples, where, self.classes) for where, samples in parts.items()})

    @property
    def sizes(self) -> dict[str, int]:
        """Samples per client, in the order of the clients."""
        if isinstance(self.clients, MadeOnDemand):
            return dict(self.clients.sizes)
        return {client: len(labels) for client, (_, labels) in self.clients.items()}

    def settings(self) -> dict[str, Any]:
        """The values of the task that a configuration or `--set` may override."""
        names = (
            "batch_size", "epochs", "learning_rate", "clients_per_round", "rounds", "eval_every", "clip_norm",
            "prox_mu", "sample_selection_deadline",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        if isinstance(self.latency, str):
            values["latency"] = self.latency
        return values

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        model: Model,
        users: ArrayLike | None = None,
        test: tuple[ArrayLike, ArrayLike] | None = None,
        classes: int | None = None,
        **options: Unpack[OwnOptions],
    ) -> Task:
        """A task of arrays with one row per sample; labels are 0, 1, 2, ... or text.

        `users` has the user of every row; without users, `partition` (dirichlet, shards or iid) and `clients` share
        the samples out. Without a `test`, a `test_share` is held out: of the users, or of the samples where there are
        no users. `model` is mlp, cnn1d, cnn2d, lstm, "package.module:function", a mapping of such a name and options,
        or a factory. Other options are those of the split (`tasks/own/options.py`) and any setting of a task.

        >>> import numpy as np
        >>> x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
        >>> task = Task.from_arrays(x, y, model="mlp", users=["ann", "bob", "cy", "di"] * 10, test_share=0.25)
        >>> task.sizes, task.notes["held_out"], task.classes
        ({'bob': 10, 'cy': 10, 'di': 10}, ['ann'], 2)
        >>> Task.from_arrays(x, y, model="mlp", partition="iid", clients=3, rounds=5).sizes
        {'client-0': 12, 'client-1': 12, 'client-2': 12}
        """
        from fedbalancer.tasks.own.arrays import from_arrays

        return from_arrays(x, y, model=model, users=users, test=test, classes=classes, **options)

    @classmethod
    def from_folder(
        cls, path: Path | str, *, model: Model, classes: int | None = None, **options: Unpack[OwnOptions]
    ) -> Task:
        """A task of a folder with one `.npz` file per client: its name is the file's, its arrays are `x` and `y`.

        `test.npz` is the test; without it a `test_share` of the clients is held out. The rest is as in `from_arrays`.

        >>> import numpy as np, tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for user in ("ann", "bob", "test"):
        ...         np.savez(Path(folder) / f"{user}.npz", x=np.zeros((4, 3)), y=["run", "walk", "run", "walk"])
        ...     task = Task.from_folder(folder, model={"name": "mlp", "hidden": [8]}, name="gait")
        >>> task.sizes, task.notes["labels"]
        ({'ann': 4, 'bob': 4}, ['run', 'walk'])
        """
        from fedbalancer.tasks.own.folder import from_folder

        return from_folder(path, model=model, classes=classes, **options)

    @classmethod
    def from_parquet(
        cls,
        path: Path | str,
        *,
        model: Model,
        label: str,
        features: str | Sequence[str],
        user: str | None = None,
        shape: Sequence[int] | None = None,
        test: Path | str | None = None,
        classes: int | None = None,
        **options: Unpack[OwnOptions],
    ) -> Task:
        """A task of a Parquet file: a column of users, one of labels, and columns of features or one of lists.

        `shape` is that of a sample, where it is not the length of the list; `test` is another file with the same
        columns. The rest, a file without users included, is as in `from_arrays`.

        >>> import polars as pl, tempfile
        >>> from pathlib import Path
        >>> frame = pl.DataFrame({"who": ["ann", "bob", "cy"] * 4, "age": range(12), "kind": ["a", "b"] * 6})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frame.write_parquet(Path(folder) / "people.parquet")
        ...     task = Task.from_parquet(
        ...         Path(folder) / "people.parquet", user="who", label="kind", features=["age"], model="mlp"
        ...     )
        >>> task.name, len(task.clients), len(task.test[1])
        ('people', 2, 4)
        """
        from fedbalancer.tasks.own.parquet import from_parquet

        return from_parquet(
            path, model=model, label=label, features=features, user=user, shape=shape, test=test, classes=classes,
            **options,
        )  # fmt: skip


def check_samples(samples: Samples, where: str, classes: int | None) -> Samples:
    """The samples as arrays. Raises `BadData` with place and index for anything that cannot be trained on."""
    try:
        features, labels = (np.asarray(part) for part in samples)
    except (TypeError, ValueError) as error:
        raise BadData(f"{where} must be a pair (features, labels) of arrays, not {type(samples).__name__}") from error
    if not features.ndim or not labels.ndim:
        raise BadData(f"{where} must have one row of features and one label per sample, not single values")
    if len(features) != len(labels):
        raise BadData(f"{where} has {len(features)} features but {len(labels)} labels")
    if len(labels) == 0:
        raise BadData(f"{where} has no samples; leave it out or give it at least one")
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        bad = int(np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(axis=1))[0])
        raise BadData(f"{where} has a NaN or infinite feature in sample {bad}")
    if labels.dtype.kind in "iu" and (labels.min() < 0 or (classes is not None and labels.max() >= classes)):
        bad = int(np.flatnonzero((labels < 0) | (labels >= (classes if classes is not None else np.inf)))[0])
        top = f"0 to {classes - 1}" if classes is not None else "0 or more"
        raise BadData(f"{where} has label {labels.flat[bad]} in sample {bad}; labels must be {top}")
    return features, labels


def check_alike(parts: Mapping[str, Samples]) -> None:
    """Raise `BadData` unless all parts, each named by where it is from, have the shapes and types of the first one: a
    kernel that was made for one kind of samples must never meet another."""
    check_shapes(parts)
    for noun, place, floats in (("features", 0, ("f", "b", "u1")), ("labels", 1, ("f",))):
        types = {where: _trains_as(part[place], where, floats) for where, part in parts.items()}
        _check_same({where: f"{noun} that train as {name}" for where, name in types.items()})


def check_shapes(parts: Mapping[str, Samples]) -> None:
    """Raise `BadData` unless features and labels have the shapes of the first part's."""
    _check_same({where: f"samples of shape {np.shape(features)[1:]}" for where, (features, _) in parts.items()})
    _check_same({where: f"labels of shape {np.shape(labels)[1:]}" for where, (_, labels) in parts.items()})


def _check_same(parts: Mapping[str, str]) -> None:
    first = next(iter(parts))
    for where, has in parts.items():
        if has != parts[first]:
            raise BadData(f"{where} has {has}, but {first} has {parts[first]}; all of a task must be of one kind")


def _trains_as(array: ArrayLike, where: str, floats: tuple[str, ...]) -> str:
    """The type in which values reach a model, as `client.tensors.stored` decides: those whose numpy code begins with
    one of `floats` as float32, other numbers as int64."""
    dtype = np.asarray(array).dtype
    if dtype.kind not in "fiub":
        raise BadData(f"{where} has values of type {dtype}; features and labels must be numbers")
    return "float32" if dtype.str[1:].startswith(floats) else "int64"
