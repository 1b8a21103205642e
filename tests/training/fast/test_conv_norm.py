"""A block with a batch norm gives what torch gives in float64, whatever the sizes and the signs of the scales."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import nn  # noqa: E402
from windows import clear  # noqa: E402

from fedbalancer.training.fast import kernels  # noqa: E402
from fedbalancer.training.fast.conv import ConvNormBlock  # noqa: E402
from fedbalancer.training.fast.layers import NORM_BLOCK, find_conv_blocks  # noqa: E402
from fedbalancer.training.fast.plan import TORCH, make_plan  # noqa: E402

pytestmark = pytest.mark.skipif(kernels.load("conv") is None, reason=f"no kernel: {kernels.why_not('conv')}")
NEAR = 2e-5
"""Of the largest value."""


def layers_of(channels: int, filters: int, window: int, padding: int, pool: Any, relu: bool) -> list[Any]:
    torch.manual_seed(1)
    norm = nn.BatchNorm2d(filters, eps=1e-3, track_running_stats=False)
    norm.weight.data.normal_()  # of either sign
    norm.bias.data.normal_()
    layers = [nn.Conv2d(channels, filters, window, padding=padding), norm, nn.MaxPool2d(pool, ceil_mode=True)]
    return [*layers, nn.ReLU()] if relu else layers


def block_of(layers: list[Any]) -> tuple[ConvNormBlock, Any]:
    (match,) = find_conv_blocks(layers)
    assert match.norm
    return ConvNormBlock(layers[0], layers[1], match.shape), match.shape


@pytest.mark.parametrize(
    ("images", "channels", "height", "width", "filters", "window", "padding", "pool", "relu"),
    [
        (3, 3, 84, 84, 32, 3, 1, 2, True),  # the sizes of CelebA
        (2, 32, 42, 42, 32, 3, 1, 2, True),
        (2, 32, 21, 21, 32, 3, 1, 2, True),
        (1, 32, 11, 11, 32, 3, 1, 2, True),
        (2, 16, 11, 13, 37, 3, 1, 2, True),
        (1, 48, 12, 12, 17, 3, 1, 4, True),
        (2, 16, 9, 11, 20, 3, 2, (1, 2), False),
        (4, 2, 9, 11, 20, 5, 0, (3, 2), True),
        (3, 2, 7, 5, 3, 1, 0, 2, False),
        (2, 5, 8, 9, 33, 2, 1, (2, 3), True),
    ],
)
def test_outputs_and_gradients_are_those_of_torch(
    images: int, channels: int, height: int, width: int, filters: int, window: int, padding: int, pool: Any, relu: bool
) -> None:
    layers = layers_of(channels, filters, window, padding, pool, relu)
    block, shape = block_of(layers)
    first = channels < 16  # pixels; such a layer has no gradient of its input
    x = (
        torch.randint(256, (images, channels, height, width)).float()
        if first
        else torch.randn(images, channels, height, width)
    )
    exact = copy.deepcopy(nn.Sequential(*layers)).double()
    wide = x.double()
    for tensor in (x, wide):
        tensor.requires_grad_(not first)
    outputs, expected = block(x), exact(wide)
    clearly = clear(exact[:2](wide).detach(), shape)
    towards = torch.randn(outputs.shape) * clearly
    mine = [layers[0].weight, *layers[1].parameters(), *([] if first else [x])]
    theirs = [exact[0].weight, *exact[1].parameters(), *([] if first else [wide])]
    made = torch.autograd.grad(outputs, mine, towards)
    wanted = torch.autograd.grad(expected, theirs, towards.double())
    for one, other in [(outputs.detach(), expected.detach()), *zip(made, wanted, strict=True)]:
        assert float((one - other).abs().max()) <= NEAR * float(other.abs().max()) + 1e-12
    with torch.no_grad():
        assert torch.equal(block(x), outputs)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    layers = layers_of(3, 8, 3, 0, 2, True)
    block, _ = block_of(layers)
    x = 1000.0 + torch.randn(4, 3, 20, 20)
    expected = copy.deepcopy(nn.Sequential(*layers)).double()(x.double())
    assert float((block(x) - expected).detach().abs().max()) < 5e-3 * float(expected.detach().abs().max())
    plain = nn.Sequential(*layers)(x)
    assert float((block(x) - expected).detach().norm()) <= 4 * float((plain - expected).detach().norm()) + 1e-6


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False, track_running_stats=False), nn.InstanceNorm2d(4),
        nn.BatchNorm2d(4, track_running_stats=False).requires_grad_(False),
    ],
)  # fmt: skip
def test_other_norms_are_left_alone(norm: Any) -> None:
    assert find_conv_blocks([nn.Conv2d(3, 4, 3), norm, nn.MaxPool2d(2), nn.ReLU()]) == []


def hows(*layers: Any, side: int = 12, channels: int = 3) -> list[str]:
    plan = make_plan(nn.Sequential(*layers, nn.Flatten()), torch.randn(3, channels, side, side))
    return [layer.how for layer in plan.layers]


def test_positions_that_no_window_has_count_in_the_statistics() -> None:
    norm = nn.BatchNorm2d(16, track_running_stats=False)
    assert hows(nn.Conv2d(3, 16, 3), norm, nn.MaxPool2d(2), nn.ReLU()) == [NORM_BLOCK] * 2
    assert (
        hows(nn.Conv2d(3, 16, 4), norm, nn.MaxPool2d(2), nn.ReLU()) == [TORCH] * 2
    )  # 9 x 9, of which 8 x 8 are pooled


def test_small_windows_only_where_no_gradient_of_the_input_is_wanted() -> None:
    layers = layers_of(3, 8, 3, 1, 2, True)
    block, _ = block_of(layers)
    outputs = block(torch.randn(2, 3, 8, 8, requires_grad=True))
    with pytest.raises(ValueError, match="no gradient of the input"):
        outputs.sum().backward()
    before = nn.Conv2d(1, 3, 1)
    assert hows(before, *layers, channels=1, side=8) == [TORCH, TORCH, TORCH]


def test_one_value_of_a_channel_is_refused_as_by_torch() -> None:
    block, _ = block_of(layers_of(3, 8, 3, 0, (1, 2), True))
    with pytest.raises(ValueError, match="more than one value"):
        block(torch.randn(1, 3, 3, 3))
