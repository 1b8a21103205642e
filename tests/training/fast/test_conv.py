"""A block of convolution, pooling and ReLU gives what torch gives in float64, whatever the sizes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import nn  # noqa: E402
from windows import NEAR, clear  # noqa: E402

from fedbalancer.training.fast import kernels  # noqa: E402
from fedbalancer.training.fast.conv import ConvBlock, Shape  # noqa: E402

F = torch.nn.functional
needs_kernel = pytest.mark.skipif(kernels.load("conv") is None, reason=f"no kernel: {kernels.why_not('conv')}")


def pooled(sums: Any, shape: Shape) -> Any:
    outputs = F.max_pool2d(sums, shape.pool, ceil_mode=shape.ceil)
    return torch.relu(outputs) if shape.relu else outputs


def sums_of(x: Any, weight: Any, bias: Any, shape: Shape) -> Any:
    top, bottom, left, right = shape.padding
    return F.conv2d(F.pad(x, (left, right, top, bottom)), weight, bias)


def check(x: Any, weight: Any, bias: Any, shape: Shape, layer: Any) -> None:
    """Outputs and gradients of the layer against torch in float64."""
    tensors = [x, weight] if bias is None else [x, weight, bias]
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    sums = sums_of(exact[0], exact[1], None if bias is None else exact[2], shape)
    expected = pooled(sums, shape)
    outputs = layer(x).reshape(expected.shape)
    towards = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5)) * clear(sums.detach(), shape)
    wanted = torch.autograd.grad(expected, exact, towards.double())
    found = torch.autograd.grad(outputs, tensors, towards)
    assert (
        float((outputs.detach() - expected.detach()).abs().max()) <= NEAR * float(expected.detach().abs().max()) + 1e-12
    )
    terms = float(towards.abs().max())  # a gradient is a sum of terms of this size, which may cancel
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).abs().max()) <= NEAR * max(float(other.abs().max()), terms) + 1e-12


@st.composite
def extents(draw: Any, window: int, padding: int, pool: int, more: int) -> tuple[int, int, int, int, int]:
    """Along one side, at most: window, padding before and after, pooling, and a length for at least one output."""
    size, before, after, step = (draw(st.integers(least, most)) for least, most in
                                 ((1, window), (0, padding), (0, padding), (1, pool)))  # fmt: skip
    return size, before, after, step, max(1, size + step - 1 - before - after) + draw(st.integers(0, more))


@st.composite
def cases(draw: Any) -> tuple[tuple[int, ...], Shape, int]:
    flat = draw(st.booleans())
    upright = (1, 0, 0, 1, 1) if flat else draw(extents(6, 3, 3, 9))
    along = draw(extents(17, 8, 5, 40) if flat else extents(6, 3, 3, 9))
    (rows, top, bottom, pool_rows, height), (columns, left, right, pool_columns, width) = upright, along
    channels = draw(st.one_of(st.integers(1, 13), st.sampled_from([16, 24, 32])))
    filters = draw(st.one_of(st.integers(1, 40), st.sampled_from([16, 48])))
    images = draw(st.integers(1, 4))
    shape = Shape((top, bottom, left, right), (pool_rows, pool_columns), draw(st.booleans()), draw(st.booleans()))
    return (images, channels, height, width, filters, rows, columns), shape, draw(st.integers(0, 2**31))


@needs_kernel
@settings(max_examples=100, deadline=None)
@given(cases())
def test_outputs_and_gradients_are_those_of_torch(case: tuple[tuple[int, ...], Shape, int]) -> None:
    (images, channels, height, width, filters, rows, columns), shape, seed = case
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(images, channels, height, width, generator=generator).requires_grad_()
    conv = nn.Conv2d(channels, filters, (rows, columns), bias=seed % 5 > 0)
    for parameter in conv.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / (rows * columns * channels) ** 0.5
    check(x, conv.weight, conv.bias, shape, ConvBlock(conv, shape))


@needs_kernel
@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((3, 1, 28, 28, 32, 5, 5), Shape((2, 2, 2, 2), (2, 2))),
        ((3, 32, 14, 14, 64, 5, 5), Shape((2, 2, 2, 2), (2, 2))),
        ((2, 16, 15, 13, 20, 5, 5), Shape((2, 1, 0, 2), (2, 1), ceil=True)),
        ((2, 32, 21, 21, 37, 3, 3), Shape((1, 1, 1, 1), (2, 2), ceil=True)),
        ((2, 16, 9, 11, 48, 3, 3), Shape((0, 0, 0, 0), (4, 4), ceil=True, relu=False)),
        ((1, 1, 4, 5, 1, 1, 1), Shape((0, 0, 0, 0), (2, 3), ceil=True, relu=False)),
        ((13, 9, 1, 128, 196, 1, 16), Shape((0, 0, 7, 8), (1, 4))),
        ((2, 5, 1, 57, 21, 1, 11), Shape((0, 0, 3, 0), (1, 2), ceil=True)),
        ((3, 5, 1, 16, 17, 1, 3), Shape((1, 2, 0, 2), (2, 2))),  # a line with empty ones above and below
    ],
)
def test_the_sizes_of_the_tasks_and_those_of_every_algorithm(sizes: tuple[int, ...], shape: Shape) -> None:
    images, channels, height, width, filters, rows, columns = sizes
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(images, channels, height, width, generator=generator).requires_grad_()
    conv = nn.Conv2d(channels, filters, (rows, columns))
    check(x, conv.weight, conv.bias, shape, ConvBlock(conv, shape))


@needs_kernel
def test_one_dimension_is_a_height_of_one() -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv1d(3, 4, 5), torch.randn(2, 3, 20)
    block = ConvBlock(conv, Shape((0, 0, 2, 2), (1, 2)))
    expected = F.max_pool1d(F.conv1d(x, conv.weight, conv.bias, padding=2), 2).relu()
    assert block(x).shape == expected.shape
    torch.testing.assert_close(block(x), expected)


@needs_kernel
def test_any_memory_layout_of_inputs_weights_and_gradients() -> None:
    torch.manual_seed(0)
    conv, shape = nn.Conv2d(6, 10, 3), Shape((1, 1, 1, 1), (2, 2))
    flat = torch.randn(conv.weight.numel() + conv.bias.numel() + 3)
    conv.weight.data = flat[3 : 3 + conv.weight.numel()].view_as(conv.weight)  # not at a multiple of a vector
    block, x = ConvBlock(conv, shape), torch.randn(4, 6, 10, 8)
    layouts = [x, x.contiguous(memory_format=torch.channels_last), torch.stack([x, x], dim=-1)[..., 1]]
    expected = block(layouts[0])
    for layout in layouts:
        assert block(layout).detach().numpy().tobytes() == expected.detach().numpy().tobytes()
    dense = torch.autograd.grad(block(x), conv.weight, torch.ones_like(expected))[0]
    assert torch.equal(torch.autograd.grad(block(x).sum(), conv.weight)[0], dense)  # a gradient of stride 0


@needs_kernel
def test_not_a_number_goes_where_torch_lets_it_go() -> None:
    torch.manual_seed(0)
    conv, shape, x = nn.Conv2d(2, 3, 3), Shape((1, 1, 1, 1), (2, 2)), torch.randn(2, 2, 8, 8)
    x[1, 0, 3, 5] = float("nan")
    expected = pooled(sums_of(x, conv.weight, conv.bias, shape), shape)
    assert torch.equal(ConvBlock(conv, shape)(x).isnan(), expected.isnan())
    assert expected.isnan().any()


@needs_kernel
def test_the_same_bytes_every_time_and_for_a_sample_in_any_batch() -> None:
    torch.manual_seed(0)
    for conv, shape, x in (
        (nn.Conv2d(16, 32, 5), Shape((2, 2, 2, 2), (2, 2)), torch.randn(5, 16, 12, 12)),
        (nn.Conv1d(9, 20, 16), Shape((0, 0, 7, 8), (1, 4)), torch.randn(5, 9, 64)),
    ):
        block = ConvBlock(conv, shape)
        first = block(x)
        assert torch.equal(block(x), first)
        assert torch.equal(block(x[3:4]), first[3:4])


@needs_kernel
def test_what_does_not_fit_is_refused() -> None:
    block = ConvBlock(nn.Conv2d(2, 3, 5), Shape((0, 0, 0, 0), (2, 2)))
    with pytest.raises(ValueError, match="too small"):
        block(torch.randn(1, 2, 5, 9))
    with pytest.raises(ValueError, match="shape"):
        block(torch.randn(1, 3, 9, 9))
    with pytest.raises(ValueError, match="float32"):
        block(torch.randn(1, 2, 9, 9).double())
    with pytest.raises(ValueError, match="too large"):  # places in an image are kept in 32 bits
        block.call_for(torch.Size((1, 2, 4000, 4000)))


@needs_kernel
@pytest.mark.parametrize("flags", ["-DLANES=16 -DTILE=12 -Wno-psabi", "-DLANES=4"])
def test_other_widths_of_vectors_compute_the_same(flags: str, tmp_path: Path) -> None:
    compiler = os.environ.get("CC") or next(name for name in ("cc", "gcc", "clang") if shutil.which(name))
    environment = os.environ | {"CC": f"{compiler} {flags}", "FEDBALANCER_CACHE": str(tmp_path)}
    names = "torch or sizes or dimension"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", __file__, "-k", names],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout
