"""Only tensors of the declared shape, type and device reach a kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from fedbalancer.training.fast import dense, kernels, pointers  # noqa: E402
from fedbalancer.training.fast.lstm import _forward, _kernel  # noqa: E402
from fedbalancer.training.fast.pointers import pointer, scratch, strided  # noqa: E402

GRID = torch.zeros(4, 6)


def test_the_address_of_what_fits_is_its_own() -> None:
    assert pointer(GRID, (4, 6)) == strided(GRID, (4, 6)) == GRID.data_ptr()
    assert pointer(GRID[2:], (2, 6)) == GRID.data_ptr() + 2 * 6 * 4
    assert strided(GRID.t(), (6, 4)) == GRID.data_ptr()
    assert pointer(GRID.int(), (4, 6), torch.int32)


@pytest.mark.parametrize(
    ("tensor", "shape", "reason"),
    [
        (GRID, (4, 7), r"needs \(4, 7\) of torch.float32 on the cpu, not \(4, 6\) of torch.float32"),
        (GRID, (24,), "not"), (GRID[None], (4, 6), "not"), (GRID[:0], (4, 6), "not"),
        (GRID.double(), (4, 6), "torch.float64"), (GRID.long(), (4, 6), "torch.int64"),
        (GRID.to("meta"), (4, 6), "on meta"),
        (GRID.t(), (6, 4), "strides"), (GRID[:, :3], (4, 3), "strides"), (GRID[:1].expand(4, 6), (4, 6), "strides"),
    ],
)  # fmt: skip
def test_all_else_is_refused(tensor: torch.Tensor, shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        pointer(tensor, shape)


def test_nobody_else_takes_an_address() -> None:
    folder = Path(pointers.__file__).parent
    takers = {file.name for file in folder.glob("*.py") if re.search(r"data_ptr|numpy\(\)\.ctypes", file.read_text())}
    assert takers == {"pointers.py"}


def test_scratch_grows_and_is_kept() -> None:
    first = scratch(10)
    assert scratch(5) == first
    assert scratch(2**22)
    assert scratch(10) == scratch(2**22)


@pytest.mark.skipif(dense.load_kernel() is None, reason=f"no kernel: {kernels.why_not('dense')}")
def test_every_argument_of_the_dense_kernel_is_looked_at() -> None:
    kind = dense.CompiledProducts(dense.load_kernel())
    good = {"z": (5, 9), "to": (7, 9), "w": (7, 9), "g": (5, 7), "x": (5, 9), "base": (7, 9)}
    wrong = {"z": (5, 8), "to": (6, 9), "w": (7, 8), "g": (4, 7), "x": (5, 10), "base": (7, 1)}
    for name in ("", *wrong):
        shapes = good | {key: shape for key, shape in wrong.items() if key == name}
        z, to, w, g, x, base = (torch.zeros(shapes[key]) for key in good)
        if not name:
            kind.step(z, to, w, g, -1.0, x, (base, 0.5))
            continue
        with pytest.raises(ValueError, match="a kernel needs"):
            kind.step(z, to, w, g, -1.0, x, (base, 0.5))
    for y, x, w in (((5, 7), (5, 8), (7, 9)), ((5, 6), (5, 9), (7, 9)), ((4, 7), (5, 9), (7, 9))):
        with pytest.raises(ValueError, match="a kernel needs"):
            kind.dots(torch.zeros(y), torch.zeros(x), torch.zeros(w))
        with pytest.raises(ValueError, match="a kernel needs"):
            kind.mix(torch.zeros(x), torch.zeros(y), torch.zeros(w))


@pytest.mark.skipif(kernels.load("lstm") is None, reason=f"no kernel: {kernels.why_not('lstm')}")
def test_every_argument_of_the_lstm_kernel_is_looked_at() -> None:
    hidden = _kernel().lstm_width()
    good = [(3, 2, 5), (4 * hidden, 5), (4 * hidden, hidden), (4 * hidden,)]
    _forward(*(torch.zeros(shape) for shape in good))
    for place in range(1, 4):
        shapes = [*good[:place], (good[place][0] - 1, *good[place][1:]), *good[place + 1 :]]
        with pytest.raises(ValueError, match="a kernel needs"):
            _forward(*(torch.zeros(shape) for shape in shapes))
    with pytest.raises(ValueError, match="whole vectors"):
        _forward(*(torch.zeros(shape) for shape in [(3, 2, 5), (4, 5), (4, 1), (4,)]))
