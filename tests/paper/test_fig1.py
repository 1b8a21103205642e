"""Gradient norms of single samples: all at once as one by one, and scaled as in the paper."""

from __future__ import annotations

import numpy as np
import pytest
from experiments import tinytask
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.paper.items.fig1 import SampleNorms, scale_norms

torch = pytest.importorskip("torch")


def test_all_at_once_is_one_by_one() -> None:
    task = tinytask.load(model=tinytask.wide)
    samples = tinytask.samples(12, 3)
    together, alone = SampleNorms(task), SampleNorms(task)
    alone.vectorized = False
    weights = together._flat.initial(0)
    norms = together(weights, samples)
    assert together.vectorized
    assert norms == pytest.approx(alone(weights, samples), rel=1e-4)
    assert norms.min() > 0


def test_the_norm_of_a_linear_model_is_known() -> None:
    """Softmax regression: the gradient is (p - y) times (x, 1)."""
    task = tinytask.load()
    features, labels = samples = tinytask.samples(5, 1)
    norms = SampleNorms(task)
    module = norms._flat.module
    weights = norms._flat.initial(0)
    found = norms(weights, samples)
    with torch.no_grad():
        p = torch.softmax(module(torch.from_numpy(features)), dim=1).numpy()
    error = np.linalg.norm(p - np.eye(2)[labels], axis=1)
    assert found == pytest.approx(error * np.sqrt((features**2).sum(axis=1) + 1), rel=1e-4)


def test_an_lstm_has_norms_too() -> None:
    def lstm() -> torch.nn.Module:
        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lstm, self.dense = torch.nn.LSTM(4, 3, batch_first=True), torch.nn.Linear(3, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                out: torch.Tensor = self.dense(self.lstm(x[:, None])[0][:, -1])
                return out

        return Net()

    norms = SampleNorms(tinytask.load(model=lstm))
    found = norms(norms._flat.initial(0), tinytask.samples(4, 2))
    assert found.shape == (4,)
    assert (found > 0).all()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_scaled_norms_are_from_0_to_1_without_the_top(values: list[float]) -> None:
    found = scale_norms(np.array(values))
    assert len(found) == max(1, int(np.ceil(len(values) * 0.95)))
    assert found.min() == 0
    assert found.max() <= 1
    assert (np.diff(found) >= 0).all()
