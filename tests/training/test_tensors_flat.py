"""All weights of a module as one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="modules need the extra [torch]")

from torch import nn  # noqa: E402

from fedbalancer.core.errors import BadData  # noqa: E402
from fedbalancer.training.tensors import FlatModule  # noqa: E402


class Net(nn.Module):  # type: ignore[misc]
    """Parameters shared and not, of no dimension, trained and not; buffers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.norm = nn.BatchNorm1d(3)
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head, self.tied = nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.head.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.table = nn.Parameter(torch.arange(3), requires_grad=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("constant", torch.full((2,), 7.0), persistent=False)

    def forward(self, x: Any) -> Any:
        self.steps += 1
        states, _ = self.lstm(self.norm(x).unsqueeze(1) * self.scale)
        return self.tied(self.head(states[:, -1]))


def test_a_load_sets_all_and_a_read_gives_it_back() -> None:
    flat = FlatModule(Net)
    names = [name for name, _ in flat.layout]
    assert {"scale", "lstm.weight_hh_l0", "norm.running_var"} < set(names)
    assert not {"frozen", "tied.weight", "table", "steps", "constant", "norm.num_batches_tracked"} & set(names)
    vector = np.random.default_rng(0).normal(size=flat.read().size).astype(np.float32)
    flat.load(vector)
    assert flat.read().tobytes() == vector.tobytes()
    state = flat.module.state_dict()
    parts = np.split(vector, np.cumsum([int(np.prod(shape)) for _, shape in flat.layout])[:-1])
    for (name, shape), part in zip(flat.layout, parts, strict=True):
        assert state[name].numpy().reshape(-1).tobytes() == part.tobytes()
        assert tuple(state[name].shape) == shape
    with pytest.raises(ValueError, match="expected a vector of"):
        flat.load(vector[1:])


def test_the_model_computes_what_it_computed_before_it_became_views() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    torch.manual_seed(0)
    flat = FlatModule(Net)
    x = torch.randn(5, 3)
    flat.load(torch.cat([net.state_dict()[name].reshape(-1) for name, _ in flat.layout]).numpy())
    torch.testing.assert_close(flat.module.eval()(x), net(x))


def test_what_training_changes_is_an_update_and_a_load_leaves_no_trace() -> None:
    flat = FlatModule(Net)
    weights = flat.initial(3)
    kept = weights.copy()
    flat.load(weights)
    optimizer = torch.optim.SGD(flat.parameters, 0.1)
    flat.module.train()(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    flat.module.constant.zero_()
    update = flat.update(weights)
    assert np.array_equal(flat.read() - weights, update)
    names = [name for name, _ in flat.layout]
    parts = np.split(update, np.cumsum([int(np.prod(shape)) for _, shape in flat.layout])[:-1])
    moved = {name for name, part in zip(names, parts, strict=True) if part.any()}
    assert {"scale", "head.weight", "lstm.weight_ih_l0", "norm.running_mean"} <= moved
    assert weights.tobytes() == kept.tobytes()
    flat.load(weights)
    assert flat.module.steps == flat.module.norm.num_batches_tracked == 0
    assert flat.module.constant.tolist() == [7, 7]


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(BadData, match="no parameter to train: it has none"):
        FlatModule(nn.Flatten)


def half_frozen() -> Any:
    """Frozen weights that are drawn at random, a frozen batch norm, and a trained layer."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    net[1].requires_grad_(False)
    return net


def test_frozen_parameters_are_not_in_the_vector_and_running_statistics_are() -> None:
    names = [name for name, _ in FlatModule(half_frozen).layout]
    assert names == ["2.weight", "2.bias", "1.running_mean", "1.running_var"]


def test_frozen_values_are_the_same_in_every_module_whatever_torchs_generator_was() -> None:
    modules = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        modules.append(FlatModule(half_frozen))
        assert torch.equal(torch.get_rng_state(), before)
    one, other = (flat.module.state_dict() for flat in modules)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not np.array_equal(modules[0].initial(1), modules[0].initial(2))


@pytest.mark.parametrize("write", [lambda p: p.mul_(0.5), lambda p: setattr(p, "data", p.data * 0.5)])
def test_a_frozen_parameter_that_changes_is_an_error(write: Any) -> None:
    flat = FlatModule(half_frozen)
    flat.load(flat.initial(1))
    with torch.no_grad():
        write(flat.module[0].weight)
    with pytest.raises(BadData, match=r"changes its parameter '0.weight', which has requires_grad=False"):
        flat.load(flat.initial(1))


def test_a_module_of_frozen_parameters_only_cannot_be_trained() -> None:
    with pytest.raises(BadData, match="no parameter to train"):
        FlatModule(lambda: nn.Linear(2, 2).requires_grad_(False))
