"""Our LSTM gives what torch's gives, judged in float64, whatever the sizes and the width of the machine's vectors."""

from __future__ import annotations

import copy
import ctypes
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import nn  # noqa: E402

from fedbalancer.data.tasks.layers import make_one_bias_lstm, make_text_model  # noqa: E402
from fedbalancer.training.fast import kernels  # noqa: E402
from fedbalancer.training.fast import lstm as module  # noqa: E402
from fedbalancer.training.fast.lstm import FastLSTM  # noqa: E402

needs_kernel = pytest.mark.skipif(kernels.load("lstm") is None, reason=f"no kernel: {kernels.why_not('lstm')}")
CLOSE = 2e-6  # of the norm; torch's own layer in float32 is at 1e-6

SIZES = st.tuples(st.integers(1, 23), st.integers(1, 19), st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(inputs: int, hidden: int, layers: int, biases: str = "two", seed: int = 0) -> nn.LSTM:
    """Weights and biases larger than usual, so that gates are driven to their ends too."""
    torch.manual_seed(seed)
    if biases == "constant":
        return make_one_bias_lstm(inputs, hidden, layers, forget_bias=1.0)
    lstm = nn.LSTM(inputs, hidden, layers, bias=biases == "two", batch_first=True)
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.mul_(2)
    return lstm


def in_double(lstm: nn.LSTM) -> nn.LSTM:
    return copy.deepcopy(lstm).double()


def run(layer: Any, x: Any, weights: list[Any]) -> list[Any]:
    """States, last states and last cells, then the gradients of a weighted sum of all these."""
    layer.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    states, (last, cells) = layer(x)
    parts = [states, last, cells]
    sum((part * weight.to(part.dtype)).sum() for part, weight in zip(parts, weights, strict=True)).backward()
    return [part.detach() for part in parts] + [x.grad] + [parameter.grad for parameter in layer.parameters()]


def assert_close(got: list[Any], wanted: list[Any]) -> None:
    """Within float error of numbers near 1: at its ends the gradient of a gate, 1 - g^2, is a difference of such."""
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).norm() <= CLOSE * (other.norm() + math.sqrt(other.numel()))


def check(batch: int, steps: int, inputs: int, hidden: int, layers: int, biases: str = "two", seed: int = 0) -> None:
    lstm = make(inputs, hidden, layers, biases, seed)
    x = torch.randn(batch, steps, inputs)
    shapes = ((batch, steps, hidden), (layers, batch, hidden), (layers, batch, hidden))
    weights = [torch.randn(shape) for shape in shapes]
    assert_close(run(FastLSTM(lstm), x, weights), run(in_double(lstm), x.double(), weights))


@needs_kernel
@settings(max_examples=60, deadline=None)
@given(SIZES, st.sampled_from(["two", "none", "constant"]), st.integers(0, 2**31))
def test_outputs_and_all_gradients_are_those_of_torch(sizes: Any, biases: str, seed: int) -> None:
    check(*sizes, biases, seed)


@needs_kernel
@pytest.mark.parametrize("sizes", [(100, 9, 8, 256, 2), (10, 10, 256, 256, 2), (700, 2, 5, 20, 1), (3, 400, 2, 16, 1)])
def test_sizes_of_the_tasks_large_batches_and_many_steps(sizes: tuple[int, int, int, int, int]) -> None:
    check(*sizes)


@pytest.fixture
def put_in_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that makes another library the kernel."""

    def place(library: ctypes.CDLL | None) -> None:
        monkeypatch.setattr(kernels, "load", lambda name: library)
        module._kernel.cache_clear()

    yield place
    module._kernel.cache_clear()


@needs_kernel
@pytest.mark.parametrize(("lanes", "rows"), [(4, 6), (4, 12), (8, 6), (16, 12)])
def test_other_machines_vectors(lanes: int, rows: int, put_in_place: Any, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no cc")
    source = Path(module.__file__).with_suffix(".c")
    options = (f"-DLANES={lanes}", f"-DROWS={rows}", "-w", "-fPIC", "-shared", "-o", str(tmp_path / "lstm.so"))
    subprocess.run([compiler, *options, str(source)], check=True, capture_output=True)
    put_in_place(ctypes.CDLL(str(tmp_path / "lstm.so")))
    for sizes in ((13, 5, 3, 33, 2), (1, 1, 1, 1, 1), (25, 4, 50, 64, 1), (400, 2, 7, 9, 1)):
        check(*sizes)


def test_without_a_kernel_it_is_the_plain_layer(put_in_place: Any) -> None:
    put_in_place(None)
    lstm, x = make(3, 5, 2), torch.randn(4, 6, 3)
    assert torch.equal(FastLSTM(lstm)(x)[0], lstm(x)[0])


@needs_kernel
@pytest.mark.parametrize("every_step", [False, True])
def test_training_a_text_model_is_the_same_with_both(every_step: bool) -> None:
    torch.manual_seed(0)
    plain = make_text_model(symbols=31, embedding=6, hidden=24, every_step=every_step)
    fast = copy.deepcopy(plain)
    fast.lstm = FastLSTM(fast.lstm)
    judge = copy.deepcopy(plain).double()
    start = torch.nn.utils.parameters_to_vector(judge.parameters()).detach()
    features, labels = torch.randint(31, (8, 10, 12)), torch.randint(31, (8, 10, 12) if every_step else (8, 10))
    moved = []
    for net in (judge, plain, fast):
        for x, y in zip(features, labels, strict=True):
            loss = nn.functional.cross_entropy(net(x).flatten(0, -2), y.flatten())
            parameters = list(net.parameters())
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-0.5)
        moved.append(torch.nn.utils.parameters_to_vector(net.parameters()).detach().double() - start)
    assert (moved[2] - moved[0]).norm() <= 3 * (moved[1] - moved[0]).norm() + 1e-6 * moved[0].norm()


@needs_kernel
def test_the_same_bytes_again_whatever_was_computed_between() -> None:
    lstm, x = make(7, 20, 2), torch.randn(11, 5, 7)
    weights = [torch.randn(11, 5, 20), torch.randn(2, 11, 20), torch.randn(2, 11, 20)]
    first = run(FastLSTM(lstm), x, weights)
    check(30, 9, 60, 70, 2)  # leaves other numbers in the memory that is used again
    again = run(FastLSTM(lstm), x.clone(), weights)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@needs_kernel
def test_without_gradients_the_same_bytes() -> None:
    lstm, x = make(7, 20, 2), torch.randn(11, 5, 7)
    states, (last, cells) = FastLSTM(lstm)(x)
    with torch.no_grad():
        quick, (quick_last, quick_cells) = FastLSTM(lstm)(x)
    assert torch.equal(states, quick)
    assert torch.equal(last, quick_last)
    assert torch.equal(cells, quick_cells)


@needs_kernel
@pytest.mark.parametrize("hidden", [10, 32])  # filled up to the width of any kernel, and not
def test_inputs_and_gradients_that_are_not_contiguous(hidden: int) -> None:
    lstm = make(6, hidden, 1)
    wide = torch.randn(5, 8, 12)
    for x in (wide[:, :, ::2], wide.transpose(0, 1)[:, :, :6], wide[:1, :, :6].expand(4, 8, 6)):
        ours, theirs = x.detach().requires_grad_(), x.double().detach().requires_grad_()
        FastLSTM(lstm)(ours)[0].sum().backward()  # the gradient of a sum is one number, expanded
        in_double(lstm)(theirs)[0].sum().backward()
        assert_close([ours.grad], [theirs.grad])


@needs_kernel
def test_only_the_last_state_is_used() -> None:
    lstm, x = make(4, 16, 2), torch.randn(3, 6, 4)
    fast, judge = FastLSTM(lstm), in_double(lstm)
    fast(x)[0][:, -1].square().sum().backward()
    judge(x.double())[0][:, -1].square().sum().backward()
    assert_close([p.grad for p in fast.parameters()], [p.grad for p in judge.parameters()])


@needs_kernel
def test_a_graph_can_be_used_twice_and_two_graphs_can_be_open() -> None:
    lstm = make(4, 16, 1)
    fast, x = FastLSTM(lstm), torch.randn(3, 6, 4, requires_grad=True)
    one, other = fast(x)[0].square().sum(), fast(x + 1)[0].sum()
    (wanted,) = torch.autograd.grad(one, x, retain_graph=True)
    torch.autograd.grad(other, x)
    assert torch.equal(torch.autograd.grad(one, x)[0], wanted)


@needs_kernel
@pytest.mark.parametrize("hidden", [5, 16, 32])  # whole vectors of any processor, and parts of them
@pytest.mark.parametrize("value", [1e4, -1e4, 3e38, math.inf, -math.inf])
def test_numbers_beyond_all_bounds_saturate(value: float, hidden: int) -> None:
    lstm = nn.LSTM(1, hidden, batch_first=True)
    states, (_, cells) = FastLSTM(lstm)(torch.full((2, 3, 1), value))
    wanted, (_, wanted_cells) = lstm(torch.full((2, 3, 1), value))
    torch.testing.assert_close(states, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(cells, wanted_cells, rtol=1e-6, atol=1e-6)


@needs_kernel
def test_what_is_not_a_number_stays_so() -> None:
    x = torch.zeros(20, 4, 2)
    x[7, 2, 1] = math.nan
    states = FastLSTM(make(2, 12, 2))(x)[0].isnan()
    assert states[7, 2:].all()
    assert states.sum() == 2 * 12


@needs_kernel
def test_every_gate_is_right_to_the_last_digits_everywhere() -> None:
    lstm = nn.LSTM(1, 1, bias=False, batch_first=True)
    nn.init.ones_(lstm.weight_ih_l0)
    x = torch.cat([torch.linspace(-30, 30, 60_001), torch.logspace(-20, 1, 10_000)])[:, None, None]
    states, (_, cells) = FastLSTM(lstm)(x)
    sigmoid = 1 / (1 + torch.exp(-x.double()))
    wanted = sigmoid * torch.tanh(x.double())
    torch.testing.assert_close(cells[0].double(), wanted[:, 0], rtol=8e-7, atol=0)
    torch.testing.assert_close(states.double(), sigmoid * torch.tanh(wanted), rtol=1.2e-6, atol=0)


@needs_kernel
def test_a_small_number_keeps_its_digits() -> None:
    lstm = nn.LSTM(1, 16, bias=False, batch_first=True)
    x = torch.full((1, 1, 1), 1e-12)
    wanted = in_double(lstm)(x.double())[0]
    torch.testing.assert_close(FastLSTM(lstm)(x)[0].double(), wanted, rtol=1e-6, atol=0)


def test_parameters_are_shared_and_keep_their_names() -> None:
    net = make_text_model(symbols=9, embedding=3, hidden=8)
    before, names = dict(net.named_parameters()), list(net.state_dict())
    net.lstm = FastLSTM(net.lstm)
    after = dict(net.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert list(after) == list(before)
    assert list(net.state_dict()) == names
    assert {name for name, _ in net.named_buffers()} == {"lstm.bias_hh_l0", "lstm.bias_hh_l1"}


def test_a_copy_has_weights_of_its_own() -> None:
    fast = FastLSTM(make(2, 16, 1))
    twin, x, hx = copy.deepcopy(fast), torch.ones(1, 3, 2), (torch.ones(1, 1, 16), torch.ones(1, 1, 16))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin(x)[0].abs().max() == 0
    assert twin(x, hx)[0].abs().max() < fast(x, hx)[0].abs().max()
    assert fast(x)[0].abs().max() > 0


def test_a_given_state_other_types_and_wrong_sizes_are_left_to_torch() -> None:
    lstm = make(3, 5, 1)
    fast, x = FastLSTM(lstm), torch.randn(2, 4, 3)
    hx = (torch.randn(1, 2, 5), torch.randn(1, 2, 5))
    assert torch.equal(fast(x, hx)[0], lstm(x, hx)[0])
    assert torch.equal(fast(x[0])[0], lstm(x[0])[0])
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 2], batch_first=True)
    assert torch.equal(fast(packed)[0].data, lstm(packed)[0].data)
    with pytest.raises(RuntimeError, match="input"):
        fast(torch.randn(2, 4, 7))


@needs_kernel
def test_it_says_what_it_cannot_replace() -> None:
    def hooked() -> nn.LSTM:
        lstm = nn.LSTM(2, 3, batch_first=True)
        lstm.register_forward_hook(lambda *_: None)
        return lstm

    reasons = {
        "batch_first": nn.LSTM(2, 3),
        "bidirectional": nn.LSTM(2, 3, batch_first=True, bidirectional=True),
        "proj_size": nn.LSTM(2, 3, batch_first=True, proj_size=2),
        "dropout": nn.LSTM(2, 3, 2, batch_first=True, dropout=0.1),
        "hooks": hooked(),
        "GRU": nn.GRU(2, 3, batch_first=True),
    }
    for reason, layer in reasons.items():
        assert reason in str(FastLSTM.find_obstacle(layer))
    assert FastLSTM.find_obstacle(make(2, 3, 2)) is None
    assert FastLSTM.find_obstacle(make(2, 3, 2, "constant")) is None
