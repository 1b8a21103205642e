"""The task that users see: as the engines need it, with ways to make one of your own data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.core.task import BaseTask

if TYPE_CHECKING:
    from fedbalancer.data.own.models import Model
    from fedbalancer.data.own.options import OwnOptions


class Task(BaseTask):
    """A learning problem: the clients' data, the test data, the model and the settings of the training.

    Only `clients`, `test` and `model` are required. `BaseTask` documents all fields. The class methods build a task
    from arrays, from a folder of files or from a Parquet file.

    >>> import numpy as np
    >>> x, y = np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])
    >>> task = Task(clients={"ann": (x, y), "bob": (x, y)}, test=(x, y), model=lambda: None)
    >>> task.sizes
    {'ann': 4, 'bob': 4}
    """

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
        from fedbalancer.data.own.build import as_samples, from_table
        from fedbalancer.data.own.options import split_options

        split, settings = split_options(options)
        held = as_samples(test, "test") if test is not None else None
        ids = np.asarray(users) if users is not None else None
        return from_table(as_samples((x, y), "the data"), ids, held, model, classes, split, settings, "the data")

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
        from fedbalancer.data.own.build import from_folder

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
        from fedbalancer.data.own.build import from_table
        from fedbalancer.data.own.options import check_options, split_options
        from fedbalancer.data.own.parquet import read_table

        split, settings = split_options(options)
        check_options(split, user is not None, test is not None)
        samples, users = read_table(Path(path), features, label, shape, user)
        held = read_table(Path(test), features, label, shape, None)[0] if test is not None else None
        settings.setdefault("name", Path(path).stem)
        return from_table(samples, users, held, model, classes, split, settings, str(path))
