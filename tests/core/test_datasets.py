"""Every form of data that users have becomes the same features and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedbalancer.core.datasets import is_dataset, read_dataset, to_samples
from fedbalancer.core.errors import BadData, UnknownName
from fedbalancer.core.samples import Ragged

torch = pytest.importorskip("torch", reason="data sets of torch need the extra [torch]")
X, Y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 0, 1])


class Items:
    """A map-style data set of any items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


PAIRS = {
    "arrays": (X, Y),
    "lists": (X.tolist(), Y.tolist()),
    "tensors": (torch.tensor(X, requires_grad=True), torch.tensor(Y)),
    "half tensors": (torch.tensor(X).bfloat16(), torch.tensor(Y)),
    "list of tensors": (list(torch.tensor(X)), list(torch.tensor(Y))),
    "torch data set": torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "pairs": Items(list(zip(X, Y.tolist(), strict=True))),
    "dictionaries": Items([{"x": x, "label": int(y)} for x, y in zip(X, Y, strict=True)]),
}


@pytest.mark.parametrize("form", PAIRS)
def test_every_form_gives_the_same_arrays(form: str) -> None:
    features, labels = to_samples(PAIRS[form], "the data")
    np.testing.assert_array_equal(features, X)
    np.testing.assert_array_equal(labels, Y)


def test_items_of_several_inputs_keep_their_form() -> None:
    by_name, _ = read_dataset(Items([{"a": x, "b": x[:1], "labels": 0} for x in X]))
    assert {name: column.shape for name, column in by_name.items()} == {"a": (4, 3), "b": (4, 1)}
    nested, labels = read_dataset(Items([({"a": x, "b": x[:1]}, 1) for x in X]))
    assert nested["b"].shape == (4, 1)
    assert labels.tolist() == [1] * 4
    first, second = read_dataset(Items([(x, x[:2], 1) for x in X]))[0]
    assert (first.shape, second.shape) == ((4, 3), (4, 2))
    alone, absent = to_samples(Items(list(torch.tensor(X))), "it")
    assert alone.shape == (4, 3)
    assert absent.shape == (4, 0)


def test_columns_are_chosen_padded_and_masked() -> None:
    dataset = Items([{"ids": list(range(1, size + 1)), "extra": 1.0, "kind": size % 2} for size in (1, 3, 2)])
    features, labels = read_dataset(dataset, features=["ids"], label="kind", padding={"ids": 9}, mask="mask")
    assert list(features) == ["ids"]
    assert features["ids"].pad().tolist() == [[1, 9, 9], [1, 2, 3], [1, 2, 9]]
    assert features["ids"].mask == "mask"
    assert labels.tolist() == [1, 1, 0]
    single, _ = read_dataset(dataset, features="ids", label="kind")
    assert isinstance(single, Ragged)
    with pytest.raises(UnknownName, match=r"there is no column .*'idz'|idz"):
        read_dataset(dataset, features="idz", label="kind")


def test_a_collate_function_sees_one_item_at_a_time() -> None:
    def collate(items: list[Any]) -> Any:
        return {
            "x": torch.stack([torch.as_tensor(x) for x, _ in items]) * 2,
            "labels": torch.tensor([y for _, y in items]),
        }

    features, labels = read_dataset(PAIRS["torch data set"], collate_fn=collate)
    np.testing.assert_array_equal(features, X * 2)
    np.testing.assert_array_equal(labels, Y)
    as_list = read_dataset(PAIRS["torch data set"], collate_fn=torch.utils.data.default_collate)
    np.testing.assert_array_equal(as_list[0], X)
    rows = read_dataset(
        PAIRS["torch data set"], collate_fn=lambda items: ([x for x, _ in items], [y for _, y in items])
    )
    np.testing.assert_array_equal(rows[1], Y)
    with pytest.raises(BadData, match=r"it: collate_fn\(\[item\]\) must return a batch of one row"):
        read_dataset(PAIRS["torch data set"], "it", lambda items: (torch.zeros(2, 3), torch.zeros(2)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (5, "^ann must be a pair .* not int"),
        ((X,), "^ann must be a pair"),
        (iter([(X, Y)]), "^ann must be a pair"),
        (Items([]), "^ann has no samples"),
        (Items([{"a": 1, "label": 0}, {"b": 1}]), "^ann: its items differ in form"),
        (([np.ones((2, 3)), np.ones((2, 4))], [0, 1]), "^ann: row 1 has shape"),
    ],
)
def test_other_forms_are_refused_by_name(data: Any, words: str) -> None:
    with pytest.raises(BadData, match=words):
        to_samples(data, "ann")


def test_arrays_and_tensors_are_no_data_sets() -> None:
    assert not any(map(is_dataset, (X, torch.tensor(X), [1], (1,), {"a": 1}, Ragged([[1]]), "text", 5)))
