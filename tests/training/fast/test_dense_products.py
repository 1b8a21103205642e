"""The products of a dense layer, by torch and by the kernel, against the same in float64."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import Tensor  # noqa: E402

from fedbalancer.training.fast import dense, kernels  # noqa: E402
from fedbalancer.training.fast.dense import CompiledProducts, Products, make_products  # noqa: E402

LIBRARY = dense.load_kernel()
needs_kernel = pytest.mark.skipif(LIBRARY is None, reason=f"no kernel: {kernels.why_not('dense')}")
KINDS = [Products(), *([] if LIBRARY is None else [CompiledProducts(LIBRARY)])]

sizes = st.integers(1, 70) | st.sampled_from([1, 7, 8, 16, 32, 33, 63, 960, 1024, 1031])
batches = st.integers(1, 20) | st.sampled_from([31, 32, 33, 40])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Tensor]:
    """Matrices of odd sizes that begin anywhere in memory; some units have no gradient in the whole batch."""
    rows, width, out = draw(batches), draw(sizes), draw(sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    offset, resting = draw(st.integers(0, 3)), draw(st.sampled_from([0.0, 0.4, 1.0]))

    def matrix(*shape: int) -> Tensor:
        return torch.randn(offset + shape[0] * shape[1], generator=generator)[offset:].view(shape)

    made = {"x": matrix(rows, width), "z": matrix(rows, width), "y": matrix(rows, out), "g": matrix(rows, out)}
    made |= {"w": matrix(out, width), "base": matrix(out, width), "to": matrix(out, width)}
    made["g"] *= torch.rand(out, generator=generator) >= resting
    return made


def close(found: Tensor, expected: Tensor) -> None:
    assert float((found.double() - expected).norm()) <= 1e-5 * float(expected.norm()) + 1e-6


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_products_with_the_weights(kind: Products, case: dict[str, Tensor]) -> None:
    x, g, w, y, z = (case[name].double() for name in "xgwyz")
    kind.dots(case["y"], case["x"], case["w"])
    kind.mix(case["z"], case["g"], case["w"])
    close(case["y"], y + x @ w.t())
    close(case["z"], z + g @ w)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(case=cases(), start=st.sampled_from(["none", "other", "same"]))
def test_product_of_gradients_and_inputs(kind: Products, case: dict[str, Tensor], start: str) -> None:
    x, g, w = (case[name].double() for name in "xgw")
    to = case["w"] if start == "same" else case["to"]
    kind.outer(to, None if start == "none" else case["w"], case["g"], -0.5, case["x"])
    close(to, (0 if start == "none" else w) - 0.5 * g.t() @ x)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(case=cases(), mixed=st.booleans(), in_place=st.booleans(), share=st.sampled_from([0.0, 0.01, 0.5]))
def test_step(kind: Products, case: dict[str, Tensor], mixed: bool, in_place: bool, share: float) -> None:
    x, g, w, z, base = (case[name].double() for name in ("x", "g", "w", "z", "base"))
    to = case["w"] if in_place else case["to"]
    pull = (case["base"], share) if share else None
    kind.step(case["z"] if mixed else None, to, case["w"], case["g"], -0.1, case["x"], pull)
    close(case["z"], z + g @ w if mixed else z)
    close(to, w - share * (w - base) - 0.1 * g.t() @ x)


@needs_kernel
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_any_width_of_the_machines_vectors(lanes: int, tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("the compiler has another name")
    source, made = Path(dense.__file__).with_name("dense.c"), tmp_path / "dense.so"
    options = (f"-DLANES={lanes}", "-O0", "-w", "-fPIC", "-shared", "-o", str(made))
    subprocess.run([compiler, *options, str(source)], check=True, capture_output=True)
    kind: Any = CompiledProducts(dense.declare_types(ctypes.CDLL(str(made))))
    for rows, width, out in ((1, 1, 1), (10, 1024, 37), (7, 83, 50), (16, 33, 19), (19, 130, 7)):
        torch.manual_seed(rows)
        x, g, w, base = (
            torch.randn(rows, width),
            torch.randn(rows, out),
            torch.randn(out, width),
            torch.randn(out, width),
        )
        y, z, moved = torch.zeros(rows, out), torch.zeros(rows, width), w.clone()
        kind.dots(y, x, w)
        kind.step(z, moved, moved, g, -0.1, x, (base, 0.25))
        x, g, w, base = x.double(), g.double(), w.double(), base.double()
        close(y, x @ w.t())
        close(z, g @ w)
        close(moved, 0.75 * w + 0.25 * base - 0.1 * g.t() @ x)


@needs_kernel
def test_the_kernel_is_used_where_it_pays() -> None:
    assert isinstance(make_products(torch.zeros(2048, 62)), CompiledProducts)
    for other in (torch.zeros(6, 256), torch.zeros(2048, 62, dtype=torch.float64), torch.zeros(2048, 62).t()):
        assert not isinstance(make_products(other), CompiledProducts)


@needs_kernel
def test_what_is_not_a_number_stays_one() -> None:
    kind = CompiledProducts(LIBRARY)
    x, g, w, y, z = torch.ones(2, 9), torch.zeros(2, 5), torch.ones(5, 9), torch.zeros(2, 5), torch.zeros(2, 9)
    x[0, 3], g[1, 2] = torch.nan, torch.nan
    kind.dots(y, x, w)
    kind.step(z, w, w, g, -1.0, torch.ones(2, 9), None)
    assert y.isnan().all(dim=1).tolist() == [True, False]
    assert z.isnan().all(dim=1).tolist() == [False, True]
    assert w.isnan().all(dim=1).tolist() == [False, False, True, False, False]


@needs_kernel
def test_same_input_same_bytes_whatever_was_computed_before() -> None:
    torch.manual_seed(0)
    x, g, w = torch.randn(10, 331), torch.randn(10, 257), torch.randn(257, 331)
    found = []
    kind = CompiledProducts(LIBRARY)
    for other in (torch.full((32, 900), torch.nan), torch.randn(3, 7), torch.randn(10, 331)):
        moved, z = w.clone(), torch.zeros(10, 331)
        kind.dots(torch.zeros(len(other), 40), other, torch.randn(40, other.shape[1]))
        kind.step(z, moved, moved, g, -0.1, x, None)
        found.append(torch.cat([moved, z]).numpy().tobytes())
    assert len(set(found)) == 1
