"""Traces of torch models, which hold for every batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small_nets

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from fedbalancer.core.errors import BadData
from fedbalancer.export.executorch import TorchReplay
from fedbalancer.export.layers import make_windows
from fedbalancer.export.trace import PerBatch, trace, trace_model
from fedbalancer.training.tensors import build_module


def steps(function: Any, *shape: int) -> Any:
    return trace(function, lambda size: (torch.ones(size, *shape),), nn.Identity()).steps


def test_batch_dependent_numbers_are_distinguished_from_equal_constants() -> None:
    (view,) = (step for step in steps(lambda x: (x.reshape(x.shape[0] * 7, 3),), 7, 3) if "view" in step.kind)
    assert view.args[1] == (PerBatch(7.0), 3)
    (scaled,) = (step for step in steps(lambda x: (x * (3 / len(x)),), 2) if "mul" in step.kind)
    assert scaled.args[1] == PerBatch(3.0, divided=True)


def test_a_function_that_differs_by_size_of_batch_is_refused() -> None:
    with pytest.raises(BadData, match="7 samples than for 11"):
        steps(lambda x: (x + 1 if len(x) > 10 else x * 2,), 2)
    with pytest.raises(BadData, match="49 for 7 samples and 121 for 11"):
        steps(lambda x: (x * len(x) ** 2,), 2)


def test_every_step_of_a_model_knows_its_layer() -> None:
    model = trace_model(small_nets.make, "cross_entropy", small_nets.samples())
    layers = {step.kind: step.layer for step in model.train.steps if "conv" in step.kind or "pool" in step.kind}
    assert layers["aten.convolution.default"] == layers["aten.convolution_backward.default"] == "1 (Conv1d)"
    assert {layers[kind] for kind in layers if "pool" in kind} == {"2 (MaxPool1d)"}
    assert len(model.train.outputs) == 1 + len(model.layout)


def test_running_statistics_are_refused_with_the_layer() -> None:
    def make() -> Any:
        return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(30, 3))

    with pytest.raises(BadData, match=r"layer 1 \(BatchNorm1d\) keeps '1.running_mean'"):
        trace_model(make, "cross_entropy", small_nets.samples())


def test_frozen_parameters_are_constants_and_have_no_gradient() -> None:
    def make() -> Any:
        return nn.Sequential(nn.Flatten(), nn.Linear(24, 5).requires_grad_(False), nn.Linear(5, 3))

    model = trace_model(make, "cross_entropy", small_nets.samples())
    assert [name for name, _ in model.layout] == ["2.weight", "2.bias"]
    assert len(model.train.outputs) == 1 + len(model.layout)
    shapes = {step.args[0].shape for step in model.infer.steps if step.kind == "constant"}
    assert {(5, 24), (5,)} <= shapes
    net = build_module(make)
    x, y = (torch.as_tensor(part) for part in small_nets.samples(5))
    losses = nn.functional.cross_entropy(net(x), y, reduction="none")
    gradients = torch.autograd.grad(losses.mean(), list(net[2].parameters()))
    replayed = TorchReplay().run(model.train, [*(p.detach() for p in net[2].parameters()), x, y], 5)
    for one, other in zip(replayed, (losses.detach(), *gradients), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [((3, 2), (1, 1), (0, 0), (1, 1)), ((3, 3), (2, 2), (1, 1), (1, 1)), ((2, 2), (2, 2), (0, 0), (1, 1)),
     ((2, 3), (1, 2), (1, 0), (2, 1))],
)  # fmt: skip
def test_windows_are_torchs(kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> None:
    """The largest value of every window is torch's pooling, and every occurrence refers back to its position."""
    x = np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32)
    windows = make_windows(x.shape, kernel, stride, padding, dilation, ceil)
    wanted = nn.functional.max_pool2d(torch.from_numpy(x)[None], kernel, stride, padding, dilation, ceil)[0]
    largest = np.append(x.ravel(), -np.inf)[windows.index].max(axis=1).reshape(windows.out)
    assert largest.tolist() == wanted.tolist()
    back = np.append(windows.index.ravel(), -1)[windows.occurs]
    assert all(set(row) <= {place, -1} for place, row in enumerate(back))
    assert (windows.occurs < windows.index.size).sum() == (windows.index < windows.places).sum()
