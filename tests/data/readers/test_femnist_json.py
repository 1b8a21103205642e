"""FEMNIST's images and labels in LEAF's JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.femnist import femnist_samples
from fedbalancer.data.readers.leaf import LeafUser, class_labels

WHITE = [1.0] * 784


def user(x: list[Any], y: list[Any]) -> LeafUser:
    return LeafUser("f0000_14", x, y, Path("all_data_0.json"))


def test_images_keep_the_order_of_their_pixels() -> None:
    image = [k / 783 for k in range(784)]
    features, labels = femnist_samples(user([WHITE, image], [0, 61]))
    assert features.shape == (2, 1, 28, 28)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features[1, 0, 1, 2], 30 / 783, rtol=1e-6)
    assert labels.tolist() == [0, 61]


@pytest.mark.parametrize(
    ("image", "named"),
    [
        (WHITE[1:], "784 values, not 783"),
        (7, "784 values, not int"),
        ([*WHITE[1:], math.nan], "value nan"),
        ([*WHITE[1:], 255], "value 255"),
        ([*WHITE[1:], -0.1], "value -0.1"),
        ([*WHITE[1:], "ink"], "must be numbers"),
        ([*WHITE[1:], None], "value nan"),
        ([*WHITE[1:], [1.0]], "must be numbers"),
    ],
)
def test_a_bad_image_is_named_with_file_user_and_index(image: Any, named: str) -> None:
    with pytest.raises(BadData, match=named) as error:
        femnist_samples(user([WHITE, image], [0, 1]))
    assert "all_data_0.json: user 'f0000_14', sample 1" in str(error.value)


@pytest.mark.parametrize("label", [-1, 62, 1.5, math.nan, "A", None, [1]])
def test_a_bad_label_is_named_with_file_user_and_index(label: Any) -> None:
    with pytest.raises(BadData, match="labels must be 0 to 61") as error:
        femnist_samples(user([WHITE, WHITE], [0, label]))
    assert "all_data_0.json: user 'f0000_14', sample 1" in str(error.value)


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert class_labels(user([], [0.0, 1.0, 1]), 2).tolist() == [0, 1, 1]
