"""The task that users build: `BaseTask` with constructors for the user's own data."""

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

    def hold_out_tests(self, share: float = 0.2, seed: int = 0) -> Task:
        """Return the task with a share of every client's samples held out as the client's own test data.

        Args:
            share: Share of the samples, at least one sample per client. A client with a single sample keeps it.
            seed: Draws the samples.

        Raises:
            BadSetting: If the share is not between 0 and 1.
            BadData: If the task has such tests already.

        >>> import numpy as np
        >>> x, y = np.zeros((10, 3), dtype=np.float32), np.arange(10) % 2
        >>> task = Task(clients={"ann": (x, y)}, test=(x, y), model=lambda: None).hold_out_tests(0.2)
        >>> task.sizes, len(task.client_tests["ann"][1])
        ({'ann': 8}, 2)
        """
        from fedbalancer.data.clients import hold_out_tests

        return hold_out_tests(self, share, seed)

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
        """Build a task from arrays with one row per sample.

        Args:
            x: Features.
            y: Labels: 0, 1, 2, ... or text.
            model: Name of a built-in model (mlp, cnn1d, cnn2d or lstm), an import path "package.module:function", a
                mapping of such a name and options, or a function that returns a model.
            users: User of every row. Without users, `partition` (dirichlet, shards or iid) and `clients` distribute
                the samples over clients.
            test: Test data (features, labels). Default: `test_share` (0.1) of the users is held out, or of the samples
                if there are no users.
            classes: Number of classes. Default: from the labels.
            **options: Options of the split (`partition`, `clients`, `alpha`, `shards_per_client`, `test_share`,
                `client_test_share`, `seed`) and settings of the task.

        Raises:
            BadData: If the data cannot be used.
            BadSetting: If an option is invalid.

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
        test_samples = as_samples(test, "test") if test is not None else None
        ids = np.asarray(users) if users is not None else None
        return from_table(
            as_samples((x, y), "the data"), ids, test_samples, model, classes, split, settings, "the data"
        )

    @classmethod
    def from_folder(
        cls, path: Path | str, *, model: Model, classes: int | None = None, **options: Unpack[OwnOptions]
    ) -> Task:
        """Build a task from a folder with one `.npz` file per client.

        Args:
            path: The folder. A file has the arrays `x` and `y`, and its name is the client id. `test.npz` has the test
                data; without it, `test_share` (0.1) of the clients is held out.
            model: See `from_arrays`.
            classes: Number of classes. Default: from the labels.
            **options: `test_share`, `seed` and settings of the task.

        Raises:
            BadData: If the data cannot be used.
            BadSetting: If an option is invalid.

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
        """Build a task from a Parquet file.

        Args:
            path: The file.
            model: See `from_arrays`.
            label: Column of the labels.
            features: Columns of numbers, or one column of lists.
            user: Column of the users. Without it, `partition` and `clients` are required, as in `from_arrays`.
            shape: Shape of a sample. Default: the length of its list.
            test: File with the test data, with the same columns.
            classes: Number of classes. Default: from the labels.
            **options: Options of the split and settings of the task, as in `from_arrays`.

        Raises:
            BadData: If the data cannot be used.
            BadSetting: If an option is invalid.

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
        test_samples = read_table(Path(test), features, label, shape, None)[0] if test is not None else None
        settings.setdefault("name", Path(path).stem)
        return from_table(samples, users, test_samples, model, classes, split, settings, str(path))
