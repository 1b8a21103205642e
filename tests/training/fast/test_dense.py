"""The dense layer with its own step against a plain one with SGD in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import Tensor, nn  # noqa: E402

from fedbalancer.training.fast import dense  # noqa: E402
from fedbalancer.training.fast.dense import FusedDense  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Case:
    """A layer and the batches that it is trained with. Sizes are such that the first steps stay factored."""

    width: int
    out: int
    batches: tuple[int, ...]
    lr: float
    mu: float
    bias: bool = True
    seed: int = 0
    told: bool = False

    @property
    def rows(self) -> int | None:
        """The layer with its arguments of the beginning."""
        return sum(self.batches) if self.told else None

    def layer(self) -> nn.Linear:
        torch.manual_seed(self.seed)
        return nn.Linear(self.width, self.out, bias=self.bias)

    def inputs(self) -> list[Tensor]:
        """With a mean of their own, so that many units are off for whole batches, and short: no step is wild."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        mean, scale = torch.randn(self.width, generator=generator), self.width**-0.5
        return [scale * (torch.randn(rows, self.width, generator=generator) + mean).relu() for rows in self.batches]


cases = st.builds(
    Case,
    width=st.integers(200, 450) | st.integers(1, 40) | st.sampled_from([512, 1024]),
    out=st.integers(200, 350) | st.integers(1, 40),
    batches=st.lists(st.integers(1, 12), min_size=1, max_size=15).map(tuple)
    | st.integers(1, 5).map(lambda rows: (rows,) * 12)
    | st.just((40, 10, 3)),
    lr=st.sampled_from([0.3, 0.05]),
    mu=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
    told=st.booleans(),
)


def loss(outputs: Tensor) -> Tensor:
    """Its gradient is continuous, and 0 for units that are off."""
    return (outputs.relu() ** 2).sum(dim=1).mean()


def plain(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """Updates of weight (and bias), and the gradients of the inputs, by autograd in float64."""
    layer = case.layer().double()
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    found = []
    for batch in case.inputs():
        x = batch.double().requires_grad_()
        layer.zero_grad()
        loss(layer(x)).backward()
        found.append(x.grad)
        with torch.no_grad():
            for parameter, start in zip(layer.parameters(), before, strict=True):
                parameter.sub_(parameter.grad + case.mu * (parameter - start), alpha=case.lr)
    return [now.detach() - start for now, start in zip(layer.parameters(), before, strict=True)], found


def train(layer: FusedDense, case: Case, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The steps up to the end of the training; gives the gradients of the inputs."""
    layer.begin(case.lr, case.mu, case.rows)
    found = []
    for batch in inputs:
        x = batch.clone().requires_grad_()
        loss(layer(x)).backward()
        assert x.grad is not None
        found.append(x.grad)
    return found


def update(layer: FusedDense) -> list[Tensor]:
    made = [torch.full_like(parameter, torch.nan) for parameter in layer.parameters()]
    assert layer.update_into(made[0], made[1] if len(made) > 1 else None)
    return made


def close(found: Sequence[Tensor], expected: Sequence[Tensor], scale: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert float((one.double() - other).norm()) <= 1e-4 * float(other.norm()) + 1e-6 * scale


@settings(max_examples=40, deadline=None)
@given(case=cases)
@example(Case(700, 500, (10,) * 12, 0.05, 0.0))
@example(Case(700, 500, (5,) * 20, 0.3, 1.0))
@example(Case(700, 500, (5,) * 20, 0.3, 1.0, told=True))
@example(Case(700, 500, (5,) * 5, 0.3, 1.0, told=True))
def test_same_as_plain_sgd(case: Case) -> None:
    expected, gradients = plain(case)
    linear = case.layer()
    before = [parameter.detach().clone() for parameter in linear.parameters()]
    layer = FusedDense(linear)
    found = train(layer, case, case.inputs())
    close(found, gradients, scale=1.0)
    assert all(torch.equal(one, other) for one, other in zip(linear.parameters(), before, strict=True))
    layer.finish()
    made = [now.detach() - start for now, start in zip(linear.parameters(), before, strict=True)]
    close(made, expected, scale=float(before[0].norm()))


@settings(max_examples=20, deadline=None)
@given(case=cases)
def test_exactly_the_same_in_double_precision(case: Case) -> None:
    expected, _ = plain(case)
    layer = FusedDense(case.layer().double())
    train(layer, case, [batch.double() for batch in case.inputs()])
    for one, other in zip(update(layer), expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(case=cases)
def test_without_kernels_the_same_within_float_error(case: Case) -> None:
    expected, gradients = plain(case)
    with patch.object(dense, "load_kernel", return_value=None):
        layer = FusedDense(case.layer())
        found = train(layer, case, case.inputs())
    close(found, gradients, scale=1.0)
    close(update(layer), expected, scale=float(layer.weight.detach().norm()))


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("steps", [0, 1, 3, 30])
def test_update_is_what_finish_writes_and_leaves_the_parameters(steps: int, mu: float) -> None:
    case = Case(300, 400, (5,) * steps, 0.1, mu)
    one, other = FusedDense(case.layer()), FusedDense(case.layer())
    before = [parameter.detach().clone() for parameter in one.parameters()]
    for layer in (one, other):
        train(layer, case, case.inputs())
    made = update(one)
    other.finish()
    assert all(torch.equal(now, start) for now, start in zip(one.parameters(), before, strict=True))
    for now, start, change in zip(other.parameters(), before, made, strict=True):
        assert torch.allclose(now, start + change, rtol=1e-6, atol=1e-7)


@settings(max_examples=20, deadline=None)
@given(case=cases, earlier=st.lists(st.integers(1, 10), max_size=12).map(tuple), written=st.booleans())
def test_bytes_do_not_depend_on_what_was_trained_before(case: Case, earlier: tuple[int, ...], written: bool) -> None:
    fresh = FusedDense(case.layer())
    train(fresh, case, case.inputs())
    expected = update(fresh)
    used = FusedDense(case.layer())
    before = [parameter.detach().clone() for parameter in used.parameters()]
    others = Case(case.width, case.out, earlier, 0.2, 0.3, seed=case.seed + 1)
    train(used, others, others.inputs())
    if written:
        used.finish()
        for parameter, start in zip(used.parameters(), before, strict=True):
            parameter.data.copy_(start)
    train(used, case, case.inputs())
    for one, other in zip(update(used), expected, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_parameters_may_be_views_that_begin_anywhere(start: int) -> None:
    case = Case(331, 257, (3,) * 9, 0.1, 0.2)
    linear, vector = case.layer(), torch.zeros(start + 258 * 331 + 257)
    weight, bias = vector[start : start + 257 * 331].view(257, 331), vector[start + 257 * 331 : start + 257 * 332]
    for parameter, view in ((linear.weight, weight), (linear.bias, bias)):
        view.copy_(parameter.detach())
        parameter.data = view
    layer = FusedDense(linear)
    expected, _ = plain(case)
    before = vector.clone()
    train(layer, case, case.inputs())
    layer.finish()
    close([(weight - before[start : start + 257 * 331].view(257, 331))], expected[:1], scale=float(before.norm()))
    assert not vector[:start].any()
    assert not vector[start + 257 * 332 :].any()


def test_outputs_without_gradients_are_those_of_the_weights_so_far() -> None:
    case = Case(300, 400, (5, 5, 5, 5, 5, 5, 5), 0.5, 0.0)
    layer = FusedDense(case.layer())
    x = case.inputs()[0]
    for steps in range(len(case.batches)):
        train(layer, case, case.inputs()[:steps])
        with torch.no_grad():
            found = layer(x)
        layer.finish()
        assert torch.allclose(found, layer(x), rtol=1e-4, atol=1e-5)


def test_outside_a_training_it_is_a_plain_layer() -> None:
    linear = nn.Linear(4, 3)
    layer, x = FusedDense(linear), torch.ones(2, 4)
    assert torch.equal(layer(x), linear(x))
    layer(x).sum().backward()
    assert linear.bias.grad.tolist() == [2.0] * 3
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert not layer.update_into(torch.empty(3, 4), torch.empty(3))
    layer.finish()


def test_a_model_of_nothing_but_such_layers_has_a_backward_pass() -> None:
    one, other = FusedDense(nn.Linear(5, 4)), FusedDense(nn.Linear(4, 3))
    before = one.weight.detach().clone()
    for layer in (one, other):
        layer.begin(0.1, 0.0)
    x = torch.ones(2, 5)
    other(one(x).tanh()).sum().backward()
    for layer in (one, other):
        layer.finish()
    assert x.grad is None
    assert one.weight.grad is None
    assert not torch.equal(one.weight, before)


@pytest.mark.parametrize(
    "use",
    [
        lambda layer, x: layer(x) + layer(x),
        lambda layer, x: _two_backward(layer(x).sum()),
        lambda layer, x: layer(x[:, :2]),
        lambda layer, x: layer(x[None]),
        lambda layer, x: layer(x.double()),
    ],
)
def test_what_it_cannot_do_is_refused(use: Callable[[FusedDense, Tensor], object]) -> None:
    layer = FusedDense(nn.Linear(3, 2))
    layer.begin(0.1, 0.0)
    with pytest.raises((RuntimeError, ValueError), match="own step"):
        use(layer, torch.ones(4, 3))
    layer.begin(0.1, 0.0)  # and it can start again
    layer(torch.ones(4, 3)).sum().backward()


def _two_backward(total: Tensor) -> None:
    total.backward(retain_graph=True)
    total.backward()


def test_an_update_goes_only_where_it_fits() -> None:
    case = Case(300, 400, (5, 5), 0.1, 0.0)
    layer = FusedDense(case.layer())
    train(layer, case, case.inputs())
    bias = torch.empty(400)
    refused = [(torch.empty(300, 400), bias), (torch.empty(300, 400).t(), bias), (torch.empty(400, 300).double(), bias)]
    for weight, of_bias in [*refused, (torch.empty(400, 300), None)]:
        assert not layer.update_into(weight, of_bias)
    close(update(layer), plain(case)[0], scale=float(layer.weight.detach().norm()))
