"""The task that users build: `BaseTask` with constructors for the user's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.task import BaseTask

if TYPE_CHECKING:
    from fedbalancer.data.own.models import Model
    from fedbalancer.data.own.options import OwnOptions


class Task(BaseTask):
    """A learning problem: the clients' data, the test data, the model and the settings of the training.

    Only `clients`, `test` and `model` are required. `BaseTask` documents all fields. The class methods build a task
    from arrays, files, folders, Hugging Face data sets and the partitions of flwr-datasets.

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
        x: Any,
        y: Any,
        *,
        model: Model,
        users: ArrayLike | None = None,
        test: tuple[Any, Any] | None = None,
        classes: int | None = None,
        **options: Unpack[OwnOptions],
    ) -> Task:
        """Build a task from arrays with one row per sample.

        Args:
            x: Features: an array, tensor, list or `Ragged`, or a dictionary or tuple of these.
            y: Labels: 0, 1, 2, ... or text. None: there are no labels.
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
        features: str | Sequence[str] | None = None,
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
            features: Columns of numbers, or one column of lists. Default: all but the label and the user.
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
        from fedbalancer.data.own.files import list_features, read_table
        from fedbalancer.data.own.options import check_options, split_options

        split, settings = split_options(options)
        check_options(split, user is not None, test is not None)
        features = features if features is not None else list_features(Path(path), label, user)
        samples, users = read_table(Path(path), features, label, shape, user)
        test_samples = read_table(Path(test), features, label, shape, None)[0] if test is not None else None
        settings.setdefault("name", Path(path).stem)
        return from_table(samples, users, test_samples, model, classes, split, settings, str(path))

    @classmethod
    def from_csv(
        cls,
        path: Path | str,
        *,
        model: Model,
        label: str,
        features: str | Sequence[str] | None = None,
        user: str | None = None,
        shape: Sequence[int] | None = None,
        test: Path | str | None = None,
        classes: int | None = None,
        **options: Unpack[OwnOptions],
    ) -> Task:
        """Build a task from a CSV file with a header and one row per sample.

        Args:
            path: The file. Values are separated by commas, or by tabs if the name ends in `.tsv`.
            model: See `from_arrays`.
            label: Column of the labels.
            features: Columns of numbers. Default: all but the label and the user.
            user: Column of the users. Without it, `partition` and `clients` are required, as in `from_arrays`.
            shape: Shape of a sample. Default: one number per column.
            test: File with the test data, with the same columns.
            classes: Number of classes. Default: from the labels.
            **options: Options of the split and settings of the task, as in `from_arrays`.

        Raises:
            BadData: If the data cannot be used.
            BadSetting: If an option is invalid.

        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "rooms.csv"
        ...     _ = file.write_text("who,light,room\\nann,3,hall\\nann,9,attic\\nbob,2,hall\\nbob,8,attic\\n")
        ...     task = Task.from_csv(file, user="who", label="room", model="mlp", test_share=0.5)
        >>> task.name, task.notes["labels"], task.test[0].shape
        ('rooms', ['attic', 'hall'], (2, 1))
        """
        from fedbalancer.data.own.files import CSV

        for file in (path, test):
            if file is not None and Path(file).suffix.lower() not in CSV:
                raise BadSetting(f"{file}: the name of a CSV file ends in {' or '.join(CSV)}")
        return cls.from_parquet(
            path, model=model, label=label, features=features, user=user, shape=shape, test=test, classes=classes,
            **options,
        )  # fmt: skip

    @classmethod
    def from_images(
        cls,
        path: Path | str,
        *,
        model: Model,
        by: str = "class",
        size: Sequence[int] | None = None,
        color: str = "rgb",
        test: Path | str | None = None,
        classes: int | None = None,
        **options: Unpack[OwnOptions],
    ) -> Task:
        """Build a task from a folder of images. Samples are bytes of shape (channels, height, width).

        Args:
            path: The folder: `FOLDER/CLASS/image.png`, or `FOLDER/USER/CLASS/image.png` with users.
            model: See `from_arrays`. Built-in models divide the bytes by 255.
            by: "class" if the folder has one folder per class; then `partition` and `clients` are required, as in
                `from_arrays`. "user" if it has one folder per user.
            size: Height and width to which images are scaled. Default: all images have the same size.
            color: "rgb" (3 channels) or "grey" (1 channel).
            test: Folder of the test data, with the same structure.
            classes: Number of classes. Default: from the names of the folders.
            **options: Options of the split and settings of the task, as in `from_arrays`.

        Raises:
            BadData: If the images cannot be used.
            BadSetting: If an option is invalid.
            MissingData: If Pillow is not installed.
        """
        from fedbalancer.data.own.build import from_table
        from fedbalancer.data.own.files import LAYOUTS, read_images
        from fedbalancer.data.own.options import check_names, check_options, split_options

        split, settings = split_options(options)
        check_names([by], LAYOUTS, "by")
        check_options(split, by == "user", test is not None)
        samples, users, sides = read_images(Path(path), by, size, color)
        test_samples = read_images(Path(test), by, sides, color)[0] if test is not None else None
        settings.setdefault("name", Path(path).resolve().name)
        return from_table(samples, users, test_samples, model, classes, split, settings, str(path))

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        model: Model,
        partition_by: str | None = None,
        features: str | Sequence[str] | None = None,
        label: str | None = None,
        test: Any = None,
        split: str = "train",
        subset: str | None = None,
        padding: float | Mapping[str, float] = 0,
        mask: str | None = None,
        classes: int | None = None,
        **options: Unpack[OwnOptions],
    ) -> Task:
        """Build a task from a Hugging Face data set. Clients are read when they train.

        A column of lists of different lengths is padded per batch. A format or transform of the data set is kept.

        Args:
            dataset: A `datasets.Dataset`, a `DatasetDict`, a folder that `save_to_disk` wrote, a folder of Parquet, CSV
                or JSON files, or the name of a data set, which is downloaded.
            model: See `from_arrays`. It is called as `model(**features)` if there are several columns of features.
            partition_by: Column of the users. Without it, `partition` and `clients` are required, as in `from_arrays`.
            features: Column or list of columns. One name gives one input, a list gives named inputs. Default: all
                columns but the label and the users.
            label: Column of the labels. Default: `label` or `labels`; without such a column there are no labels.
            test: Test data, or the name of a split. Default: the split `test`, or a held-out share as in
                `from_arrays`.
            split: Split of the training data, if the data set has splits.
            subset: Configuration of a data set that is loaded by name.
            padding: Value that fills shorter lists, for all columns or by column. Padded labels are ignored.
            mask: Name of a mask that the model receives with padded features: 1 for values, 0 for padding.
            classes: Number of classes. Default: from the labels.
            **options: Options of the split and settings of the task, as in `from_arrays`.

        Raises:
            BadData: If the data cannot be used.
            BadSetting: If an option is invalid.
            MissingData: If `fedbalancer[data]` is not installed.

        >>> import datasets  # doctest: +SKIP
        >>> notes = datasets.Dataset.from_dict(
        ...     {"who": ["ann", "bob", "cy"] * 4, "ids": [[1, 2], [3], [4, 5, 6]] * 4, "label": ["no", "yes"] * 6}
        ... )  # doctest: +SKIP
        >>> task = Task.from_huggingface(notes, partition_by="who", model=make_model)  # doctest: +SKIP
        >>> task.sizes, task.notes["labels"]  # doctest: +SKIP
        ({'bob': 4, 'cy': 4}, ['no', 'yes'])
        """
        from fedbalancer.data.own.huggingface import Columns, from_huggingface

        columns = Columns.of(features, label, padding, mask)
        return from_huggingface(
            dataset, columns=columns, model=model, test=test, split=split, subset=subset, partition_by=partition_by,
            classes=classes, **options,
        )  # fmt: skip

    @classmethod
    def from_flower_datasets(
        cls,
        data: Any,
        *,
        model: Model,
        features: str | Sequence[str] | None = None,
        label: str | None = None,
        test: Any = None,
        split: str | None = None,
        padding: float | Mapping[str, float] = 0,
        mask: str | None = None,
        classes: int | None = None,
        **options: Unpack[OwnOptions],
    ) -> Task:
        """Build a task whose clients are the partitions of flwr-datasets. Clients are read when they train.

        All partitioners that split rows work. A natural id names its client. Empty partitions are left out.

        Args:
            data: A `FederatedDataset`, or a pair (dataset, partitioner).
            model: See `from_huggingface`.
            features: See `from_huggingface`.
            label: See `from_huggingface`.
            test: Test data, or the name of a split of the `FederatedDataset`. Default: its split `test`, or
                `test_share` (0.1) of the partitions is held out.
            split: Partitioned split. Default: the only one.
            padding: See `from_huggingface`.
            mask: See `from_huggingface`.
            classes: Number of classes. Default: from the labels.
            **options: `test_share`, `client_test_share`, `seed` and settings of the task.

        Raises:
            BadData: If the data cannot be used.
            BadSetting: If an option is invalid.
            MissingData: If `fedbalancer[data]` is not installed.

        >>> from flwr_datasets.partitioner import DirichletPartitioner  # doctest: +SKIP
        >>> parts = DirichletPartitioner(num_partitions=20, partition_by="label", alpha=0.5)  # doctest: +SKIP
        >>> task = Task.from_flower_datasets((dataset, parts), model=make_model)  # doctest: +SKIP
        """
        from fedbalancer.data.own.huggingface import Columns, from_flower_datasets

        columns = Columns.of(features, label, padding, mask)
        return from_flower_datasets(
            data, columns=columns, model=model, test=test, split=split, classes=classes, **options
        )
