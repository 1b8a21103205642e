"""Samples from tables and from folders of images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import commands
import numpy as np
import polars as pl
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")


ROWS = 12
COLUMNS: dict[str, Any] = {
    "person": ["ann", "bob", "cy"] * 4,
    "kind": ["run", "walk"] * 6,
    "a": [float(row) for row in range(ROWS)],
    "b": list(range(ROWS)),
    "signal": [[row + step / 10 for step in range(4)] for row in range(ROWS)],
    "image": [[[row, 1, 2], [3, 4, 5]] for row in range(ROWS)],
}


def load(folder: Path, columns: dict[str, Any] | None = None, schema: Any = None, **changes: Any) -> fb.Task:
    pl.DataFrame({**COLUMNS, **(columns or {})}, schema_overrides=schema).write_parquet(folder / "d.parquet")
    options = {"user": "person", "label": "kind", "features": ["a", "b"], "model": "mlp", **changes}
    return fb.Task.from_parquet(folder / "d.parquet", **options)


def everything(task: fb.Task) -> Any:
    return np.concatenate([task.test[0], *(features for features, _ in task.clients.values())])


def test_columns_become_features(tmp_path: Path) -> None:
    task = load(tmp_path)
    assert task.name == "d"
    assert task.notes["labels"] == ["run", "walk"]
    assert sorted(everything(task).tolist()) == [[row, row] for row in range(ROWS)]
    assert sorted([*task.clients, *task.notes["held_out"]]) == ["ann", "bob", "cy"]
    ann = task.clients.get("ann", task.test)[0]
    np.testing.assert_array_equal(ann[:, 0], [0, 3, 6, 9])


@pytest.mark.parametrize("schema", [None, {"signal": pl.Array(pl.Float64, 4)}])
def test_a_column_of_lists_is_a_sample(tmp_path: Path, schema: Any) -> None:
    task = load(tmp_path, schema=schema, features="signal")
    assert everything(task).shape == (ROWS, 4)
    assert load(tmp_path, features=["signal"], shape=[2, 2]).test[0].shape[1:] == (2, 2)


def test_lists_of_lists_keep_their_shape(tmp_path: Path) -> None:
    task = load(tmp_path, features="image")
    images = everything(task)
    assert images.shape == (ROWS, 2, 3)
    np.testing.assert_array_equal(images[0, 1], [3, 4, 5])


def test_users_may_be_numbers_or_categories_and_labels_numbers(tmp_path: Path) -> None:
    task = load(tmp_path, {"person": [1, 2, 3] * 4, "kind": [0, 1] * 6})
    assert set(task.clients) < {"1", "2", "3"}
    assert task.classes == 2
    assert set(load(tmp_path, schema={"person": pl.Categorical}).clients) < {"ann", "bob", "cy"}


def test_a_file_without_users_is_partitioned_and_another_file_may_be_the_test(tmp_path: Path) -> None:
    assert len(load(tmp_path, user=None, partition="shards", clients=2, shards_per_client=2).clients) == 2
    pl.DataFrame(COLUMNS).drop("person")[:5].write_parquet(tmp_path / "test.parquet")
    task = load(tmp_path, test=tmp_path / "test.parquet")
    assert len(task.clients) == 3
    assert len(task.test[1]) == 5


def broken(name: str, row: int, value: Any) -> dict[str, Any]:
    values = list(COLUMNS[name])
    values[row] = value
    return {name: values}


@pytest.mark.parametrize(
    ("columns", "changes", "words"),
    [
        ({}, {"user": "persn"}, "unknown column of .*d.parquet 'persn'; did you mean person"),
        ({}, {"label": "kinds"}, "did you mean kind"),
        ({}, {"features": ["a", "c"]}, "unknown column of .*d.parquet 'c'"),
        ({}, {"features": "kind"}, "feature column 'kind' holds String"),
        ({}, {"features": []}, "at least one column"),
        ({}, {"features": ["a", "signal"]}, "'a' and 'signal' differ in length"),
        ({}, {"features": "signal", "shape": [3, 3]}, "has 9 numbers, but a sample of .*d.parquet has 4"),
        ({}, {"features": "signal", "shape": [-2, -2]}, "at least 1"),
        ({}, {"label": "signal"}, "label column 'signal' has type List"),
        (broken("person", 4, None), {}, "column 'person' is empty in row 4"),
        (broken("kind", 4, None), {}, r"column 'kind' is empty in row 4 \(user 'bob'\)"),
        (broken("a", 3, None), {}, r"column 'a' is empty in row 3 \(user 'ann'\)"),
        (broken("a", 3, float("nan")), {}, r"column 'a' is NaN or infinite in row 3 \(user 'ann'\)"),
        (broken("signal", 2, [1.0, 2.0]), {"features": "signal"}, r"2 values in row 2 \(user 'cy'\), but 4 before"),
        (broken("signal", 2, [1.0, None, 3.0, 4.0]), {"features": "signal"}, r"empty value in row 2 \(user 'cy'\)"),
        (broken("signal", 0, []), {"features": "signal"}, "all lists must have the same length"),
        (broken("image", 7, [[1, 2, 3], [4, 5]]), {"features": "image"}, r"2 values in row 7 \(user 'bob'\)"),
        (broken("image", 7, [[1, 2, 3]]), {"features": "image"}, r"1 values in row 7 \(user 'bob'\)"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, columns: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises((BadData, BadSetting, UnknownName), match=words):
        load(tmp_path, columns, **changes)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    options: Any = {"user": "person", "label": "kind", "features": "a", "model": "mlp"}
    with pytest.raises(BadData, match=r"absent\.parquet does not exist"):
        fb.Task.from_parquet(tmp_path / "absent.parquet", **options)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(BadData, match=r"broken\.parquet cannot be read as Parquet"):
        fb.Task.from_parquet(tmp_path / "broken.parquet", **options)
    (tmp_path / "semicolons.csv").write_text("person;a;kind\nann;1;2\n")
    with pytest.raises(BadData, match=r"the header is one column, 'person;a;kind'; separate columns by commas"):
        fb.Task.from_csv(tmp_path / "semicolons.csv", **options)
    pl.DataFrame(COLUMNS)[:0].write_parquet(tmp_path / "empty.parquet")
    with pytest.raises(BadData, match=r"empty\.parquet has no rows"):
        fb.Task.from_parquet(tmp_path / "empty.parquet", **options)


PEOPLE, KINDS = ["007", "7", "9"] * 4, ["run", "walk"] * 6
CSV = "".join(["person,kind,a,b\n", *(f"{PEOPLE[row]},{KINDS[row]},{row}.5,{row}\n" for row in range(ROWS))])


def load_csv(folder: Path, text: str = CSV, name: str = "d.csv", **changes: Any) -> fb.Task:
    (folder / name).write_text(text)
    return fb.Task.from_csv(folder / name, **{"user": "person", "label": "kind", "model": "mlp", **changes})


def test_a_csv_file_is_read_with_all_other_columns_as_features(tmp_path: Path) -> None:
    task = load_csv(tmp_path)
    assert (task.name, task.notes["labels"]) == ("d", ["run", "walk"])
    assert sorted([*task.clients, *task.notes["held_out"]]) == ["007", "7", "9"]
    assert sorted(everything(task).tolist()) == [[row + 0.5, row] for row in range(ROWS)]
    tabs = load_csv(tmp_path, CSV.replace(",", "\t"), "d.tsv", features="a")
    assert everything(tabs).shape == (ROWS, 1)
    other = load_csv(tmp_path, name="train.csv", test=tmp_path / "d.csv")
    assert (len(other.clients), len(other.test[1])) == (3, ROWS)


@pytest.mark.parametrize(
    ("text", "options", "error", "words"),
    [
        (CSV, {"label": "kid"}, UnknownName, "did you mean kind"),
        (CSV, {"features": []}, BadSetting, "features must name at least one column"),
        (CSV.replace("3.5", ""), {}, BadData, "column 'a' is empty in row 3"),
        (CSV.replace("3.5", "many"), {}, BadData, "feature column 'a' holds String"),
        ("", {}, BadData, "d.csv cannot be read as CSV"),
        (CSV, {"name": "d.txt"}, BadSetting, "d.txt: the name of a CSV file ends in .csv or .tsv"),
    ],
)
def test_mistakes_in_a_csv_file_are_named(
    tmp_path: Path, text: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        load_csv(tmp_path, text, **options)


def draw(file: Path, value: int, side: int = 4) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((side, side, 3), np.uint8)
    pixels[0, 1] = (value, 0, 0)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def by_class(tmp_path: Path) -> Path:
    for number in range(12):
        draw(tmp_path / "pets" / ("cat", "dog")[number % 2] / f"{number:02d}.png", number)
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    return tmp_path / "pets"


@pytest.fixture
def by_user(tmp_path: Path) -> Path:
    for number in range(24):
        draw(tmp_path / "homes" / f"u{number % 4}" / ("cat", "dog")[number // 4 % 2] / f"{number:02d}.png", number)
    return tmp_path / "homes"


def test_a_folder_per_class_is_partitioned(by_class: Path) -> None:
    task = fb.Task.from_images(by_class, partition="iid", clients=3, model="cnn2d", test_share=0.25)
    assert (task.name, task.notes["labels"], task.classes) == ("pets", ["cat", "dog"], 2)
    assert sorted(task.sizes.values()) == [3, 3, 3]
    samples = [*task.clients.values(), task.test]
    features, labels = (np.concatenate([part[place] for part in samples]) for place in (0, 1))
    assert features.shape == (12, 3, 4, 4)
    assert features.dtype == np.uint8
    np.testing.assert_array_equal(features[:, 0, 0, 1] % 2, labels)  # the pixel is the image's number
    with_test = fb.Task.from_images(by_class, partition="iid", clients=3, model="cnn2d", test=by_class)
    assert len(with_test.test[1]) == 12


def test_a_folder_per_user_is_a_client(by_user: Path) -> None:
    task = fb.Task.from_images(by_user, by="user", color="grey", size=[2, 3], model="cnn2d")
    assert len(task.clients) == 3
    assert len(task.notes["held_out"]) == 1
    assert task.test[0].shape == (6, 1, 2, 3)


def test_a_task_file_runs_on_images(by_user: Path) -> None:
    file = by_user.parent / "homes.toml"
    data = '[data]\nkind = "images"\npath = "homes"\nby = "user"\nsize = [8, 8]\ncolor = "grey"\n'
    file.write_text(
        data
        + '[model]\nname = "cnn2d"\nfilters = [2]\n[settings]\nrounds = 1\nclients_per_round = 2\nlatency = "har"\n'
    )
    done = commands.run(by_user.parent, "run", "homes.toml", "--method", "fedavg+1t", "--out", "r", COLUMNS="160")
    assert done.returncode == 0, done.stderr
    file.write_text(file.read_text().replace('by = "user"', 'by = "owner"'))
    done = commands.run(by_user.parent, "run", "homes.toml", "--out", "r2", COLUMNS="160")
    assert done.returncode == 2
    assert "unknown by 'owner'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"by": "clas"}, UnknownName, "unknown by 'clas'; did you mean class"),
        ({"color": "gray"}, UnknownName, "unknown color 'gray'; did you mean grey"),
        ({"size": [4]}, BadSetting, r"size = \[4\] must be \[height, width\]"),
        ({"size": [0, 4]}, BadSetting, "two whole numbers of at least 1"),
        ({"by": "user", "partition": None}, BadData, r"has no images; they must be FOLDER/USER/CLASS/image.png"),
        ({"clients": None, "partition": None}, BadSetting, "specify the users, or set partition"),
    ],
)
def test_wrong_options_are_named(by_class: Path, options: dict[str, Any], error: type[Exception], words: str) -> None:
    given = {"partition": "iid", "clients": 2, "model": "cnn2d", **options}
    given = {key: value for key, value in given.items() if value is not None}
    if given.get("by") == "user":
        del given["clients"]
    with pytest.raises(error, match=words):
        fb.Task.from_images(by_class, **given)


def test_a_file_that_is_no_image_or_of_another_size_is_named(by_class: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"partition": "iid", "clients": 2, "model": "cnn2d"}
    draw(by_class / "dog" / "large.png", 1, side=6)
    with pytest.raises(BadData, match=r"large.png has 6 x 6 pixels, but .*00.png has 4 x 4; set size"):
        fb.Task.from_images(by_class, **options)
    assert fb.Task.from_images(by_class, size=(4, 4), **options).test[0].shape[1:] == (3, 4, 4)
    (by_class / "dog" / "large.png").write_text("broken")
    with pytest.raises(BadData, match=r"large.png cannot be read as an image"):
        fb.Task.from_images(by_class, **options)
    with pytest.raises(BadData, match=r"the folder .*nowhere does not exist"):
        fb.Task.from_images(by_class / "nowhere", **options)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingData, match="images need Pillow"):
        fb.Task.from_images(by_class, **options)
