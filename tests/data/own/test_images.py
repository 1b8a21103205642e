"""`Task.from_images`: folders by class or by user become samples; mistakes name the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName

Image = pytest.importorskip("PIL.Image", reason="images need Pillow")


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
