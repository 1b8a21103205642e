"""Optimizers as text: one canonical form for names, tables, classes and partials."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.optimizers import OPTIMIZERS, optimizer_text, read_optimizer

torch = pytest.importorskip("torch")

values = st.one_of(st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.none())
keys = st.sampled_from(["weight_decay", "momentum", "eps", "betas", "amsgrad"])


@given(st.sampled_from(OPTIMIZERS), st.dictionaries(keys, values | st.tuples(st.floats(0, 1), st.floats(0, 1))))
def test_a_table_and_its_text_are_the_same_optimizer(name: str, options: dict[str, Any]) -> None:
    text = optimizer_text({"name": name, **options})
    assert optimizer_text(text) == text
    assert read_optimizer(text) == (name, options)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("SGD", "sgd"),
        ("sgd()", "sgd"),
        ("adam( betas = [0.8, 0.9] )", "adam(betas=(0.8, 0.9))"),
        (torch.optim.AdamW, "adamw"),
        (partial(torch.optim.AdamW, weight_decay=0.01), "adamw(weight_decay=0.01)"),
        (partial(torch.optim.SGD, momentum=0.9, nesterov=True), "sgd(momentum=0.9,nesterov=True)"),
        (lambda parameters, lr: torch.optim.Adam(parameters, lr=lr), "custom"),
        (type("Mine", (torch.optim.SGD,), {}), "custom"),
        (partial(torch.optim.Adam, eps=torch.tensor(1e-3)), "custom"),
    ],
)
def test_what_a_user_of_torch_writes_has_one_text(value: Any, text: str) -> None:
    assert optimizer_text(value) == text


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("adamz", UnknownName, "did you mean adam"),
        ("lbfgs", BadSetting, "several times per step"),
        (torch.optim.LBFGS, BadSetting, "several times per step"),
        (torch.optim.SparseAdam, BadSetting, "sparse gradients"),
        ("adam(lr=0.1)", BadSetting, "set learning_rate = 0.1 instead"),
        (partial(torch.optim.Adam, lr=0.1), BadSetting, "set learning_rate = 0.1 instead"),
        (partial(lambda parameters, lr: None, lr=0.1), BadSetting, "set learning_rate = 0.1 instead"),
        (partial(torch.optim.Adam, []), BadSetting, "keyword arguments only"),
        ("adam(0.9)", BadSetting, "must look like adamw(weight_decay=0.01)"),
        ("adam(eps=__import__('os'))", BadSetting, "must look like"),
        ({"name": "adam", "eps": {}}, BadSetting, "eps = {} must be"),
        ("custom(a=1)", BadSetting, "has no options"),
        (3, BadSetting, "optimizer is 3; give a text"),
        (None, BadSetting, "optimizer is an object of NoneType"),
    ],
)
def test_what_does_not_work_is_named(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        optimizer_text(value)
    assert words in str(caught.value)


def test_an_optimizer_in_place_of_its_class_is_refused_in_one_line() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(BadSetting, match="optimizer is an object of Adam; give a text") as raised:
        optimizer_text(optimizer)
    assert "\n" not in str(raised.value)
