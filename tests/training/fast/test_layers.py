"""Which runs of layers are one block."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import nn  # noqa: E402

from fedbalancer.training.fast.conv import Shape  # noqa: E402
from fedbalancer.training.fast.layers import Match, find_conv_blocks, is_plain  # noqa: E402


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Conv2d(1, 2, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()], Match(0, 3, 0, Shape((2, 2, 2, 2), (2, 2)))),
        ([nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d((2, 3))], Match(0, 3, 0, Shape((0, 0, 0, 0), (2, 3)))),
        (
            [nn.Conv2d(1, 2, (2, 5), padding="same"), nn.MaxPool2d(2, ceil_mode=True)],
            Match(0, 2, 0, Shape((0, 1, 2, 2), (2, 2), ceil=True, relu=False)),
        ),
        (
            [nn.Tanh(), nn.ConstantPad1d((7, 8), 0.0), nn.Conv1d(1, 2, 16), nn.MaxPool1d(4), nn.ReLU()],
            Match(1, 4, 1, Shape((0, 0, 7, 8), (1, 4))),
        ),
        (
            [nn.ZeroPad2d((1, 2, 3, 4)), nn.Conv2d(1, 2, 3, padding=(1, 0)), nn.MaxPool2d(2), nn.Flatten()],
            Match(0, 3, 1, Shape((4, 5, 1, 2), (2, 2), relu=False)),
        ),
        (
            [nn.Conv1d(1, 2, 3, padding="valid"), nn.MaxPool1d(2)],
            Match(0, 2, 0, Shape((0, 0, 0, 0), (1, 2), relu=False)),
        ),
        (
            [nn.ConstantPad1d(1, 1.0), nn.Conv1d(1, 2, 3), nn.MaxPool1d(2)],
            Match(1, 2, 0, Shape((0, 0, 0, 0), (1, 2), relu=False)),
        ),
        (
            [nn.Conv1d(1, 2, 3), nn.MaxPool1d(2), nn.MaxPool1d(2)],
            Match(0, 2, 0, Shape((0, 0, 0, 0), (1, 2), relu=False)),
        ),
    ],
)
def test_a_run_is_found_with_all_its_numbers(layers: list[Any], expected: Match) -> None:
    assert find_conv_blocks(layers) == [expected]


def hooked() -> Any:
    conv = nn.Conv2d(1, 2, 3)
    conv.register_forward_hook(lambda *_: None)
    return conv


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(1, 2, 3, stride=2), nn.Conv2d(1, 2, 3, dilation=2), nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Conv2d(1, 2, 3).requires_grad_(False), hooked(),
        type("Own", (nn.Conv2d,), {})(1, 2, 3), nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 2, 3)),
        nn.Identity(),
    ],
)  # fmt: skip
def test_what_the_kernel_cannot_do_is_left_alone(conv: Any) -> None:
    assert find_conv_blocks([conv, nn.MaxPool2d(2), nn.ReLU()]) == []


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, dilation=2), nn.AvgPool2d(2),
        nn.MaxPool2d(2, return_indices=True), nn.MaxPool1d(2), nn.MaxPool2d(1), nn.ReLU(),
    ],
)  # fmt: skip
def test_without_a_pooling_that_it_can_do_there_is_no_block(pool: Any) -> None:
    assert find_conv_blocks([nn.Conv2d(1, 2, 3), pool]) == []


def test_hooks_and_a_forward_of_its_own_are_seen() -> None:
    assert is_plain(nn.ReLU())
    assert not is_plain(hooked())
    other = nn.ReLU()
    other.forward = lambda x: x  # type: ignore[method-assign]
    assert not is_plain(other)
