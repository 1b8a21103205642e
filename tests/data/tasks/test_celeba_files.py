"""CelebA and its stand-in are read, and errors name what does not fit."""

from __future__ import annotations

import json
import os
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.data.tasks.celeba import celeba_key, read_celeba, read_faces


def picture(path: Path, colour: tuple[int, int, int] = (200, 100, 50), size: tuple[int, int] = (178, 218)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def people(folder: Path, base: str = ".", **changes: Any) -> Path:
    """Two celebrities to train and one to test, as LEAF writes them, labels as floats; returns the images' folder."""
    names = {"10": ["000001.jpg", "000002.jpg"], "11": ["000003.jpg"], "12": ["000004.jpg"]}
    for image in chain(*names.values()):
        picture(folder / base / "raw" / "img_align_celeba" / image)
    for part, users in (("train", ["10", "11"]), ("test", ["12"])):
        data = {user: {"x": names[user], "y": [float(k % 2) for k in range(len(names[user]))]} for user in users}
        data = {user: {**samples, **changes.get(f"u{user}", {})} for user, samples in data.items()}
        document = {"users": users, "num_samples": [len(names[user]) for user in users], "user_data": data}
        (folder / base / part).mkdir(parents=True, exist_ok=True)
        (folder / base / part / f"all_data_{part}_9.json").write_text(json.dumps(document), encoding="utf-8")
    return folder / base / "raw" / "img_align_celeba"


@pytest.mark.parametrize("base", [".", "data"])
def test_images_are_made_small_with_colours_first(tmp_path: Path, base: str) -> None:
    people(tmp_path, base)
    split = read_celeba(tmp_path)
    assert list(split.train) == ["10", "11"]
    assert list(split.test) == ["12"]
    features, labels = split.train["10"]
    assert features.shape == (2, 3, 84, 84)
    assert features.dtype == np.uint8
    np.testing.assert_allclose(features[0].mean(axis=(1, 2)), (200, 100, 50), atol=3)
    assert labels.tolist() == [0, 1]


def test_a_grey_image_becomes_one_of_three_colours(tmp_path: Path) -> None:
    images = people(tmp_path)
    Image.new("L", (178, 218), 77).save(images / "000003.jpg")
    features, _ = read_celeba(tmp_path).train["11"]
    assert features.shape == (1, 3, 84, 84)
    assert set(np.unique(features)) == {77}


def test_a_missing_image_is_named_with_its_user_and_index(tmp_path: Path) -> None:
    images = people(tmp_path)
    (images / "000002.jpg").unlink()
    for read in (read_celeba, celeba_key):
        with pytest.raises(BadData, match=r"train_9\.json: user '10', sample 1: the image .*000002\.jpg does not"):
            read(tmp_path)


def test_an_image_of_another_size_is_named(tmp_path: Path) -> None:
    images = people(tmp_path)
    picture(images / "000004.jpg", size=(178, 200))
    with pytest.raises(BadData, match=r"user '12', sample 0: .*000004\.jpg is 178 x 200; .* 178 x 218"):
        read_celeba(tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 600])
def test_a_damaged_image_is_named(tmp_path: Path, keep: int) -> None:
    images = people(tmp_path)
    whole = (images / "000003.jpg").read_bytes()
    (images / "000003.jpg").write_bytes(whole[:keep])
    with pytest.raises(BadData, match=r"user '11', sample 0: .*000003\.jpg is damaged"):
        read_celeba(tmp_path)


@pytest.mark.parametrize("name", ["../000003.jpg", 3, "", None])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: Any) -> None:
    people(tmp_path, u11={"x": [name]})
    with pytest.raises(BadData, match=r"user '11', sample 0: .*not the name of an image"):
        read_celeba(tmp_path)


def test_a_label_other_than_zero_or_one_is_refused(tmp_path: Path) -> None:
    people(tmp_path, u10={"y": [0, 2]})
    with pytest.raises(BadData, match="user '10', sample 1: label 2; labels must be 0 to 1"):
        read_celeba(tmp_path)


def test_without_images_it_says_what_is_lacking(tmp_path: Path) -> None:
    people(tmp_path).rename(tmp_path / "elsewhere")
    with pytest.raises(MissingData, match="raw/img_align_celeba"):
        read_celeba(tmp_path)


def test_the_key_changes_with_the_images_and_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "celeba"
    images = people(folder)
    keys = [celeba_key(folder), celeba_key(folder)]
    assert keys[0] == keys[1]
    os.utime(images / "000004.jpg", ns=(1, 1))
    keys.append(celeba_key(folder))
    people(folder, u10={"y": [1, 1]})
    keys.append(celeba_key(folder))
    assert keys[1]["images"] != keys[2]["images"]
    assert keys[2]["json"] != keys[3]["json"]


def file(folder: Path, **changes: Any) -> Path:
    """Four people with two images each, brighter from person to person."""
    person = np.repeat(np.arange(4, dtype=np.uint8), 2)
    arrays = {
        "x": (person[:, None, None] * 50 * np.ones((1, 60, 64))).astype(np.uint8),
        "person": person,
        "eyes": np.array(["open", "sunglasses"] * 4),
    }
    np.savez(folder / "faces.npz", **(arrays | changes))
    return folder / "faces.npz"


def test_images_are_split_and_enlarged_in_three_equal_colours(tmp_path: Path) -> None:
    split = read_faces(file(tmp_path))
    assert list(split.train) == list(split.test) == [f"person0{k}" for k in range(4)]
    for name, (features, labels) in [*split.train.items(), *split.test.items()]:
        assert features.shape == (1, 3, 84, 84)
        assert features.dtype == np.uint8
        assert np.unique(features).tolist() == [50 * int(name[-1])]
        assert len(labels) == 1
    for name, (_, labels) in split.train.items():
        assert sorted([*labels, *split.test[name][1]]) == [0, 1]  # nobody's image is on both sides


def test_eyes_of_another_kind_are_named(tmp_path: Path) -> None:
    path = file(tmp_path, eyes=np.array(["open"] * 5 + ["shut"] * 3))
    with pytest.raises(BadData, match="person 2, sample 5: eyes 'shut'; must be open or sunglasses"):
        read_faces(path)


def test_images_of_another_size_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="'x' has shape"):
        read_faces(file(tmp_path, x=np.zeros((8, 64, 60), dtype=np.uint8)))
