"""HeteroFL, FedRolex and TimelyFL's layers: the part is a smaller network, and is averaged and charged as one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_order
from experiments.tinytask import load, wide
from torch import nn

import fedbalancer as fb
from fedbalancer.client.parts import FedRolex, HeteroFL, LastLayers, channel_mask
from fedbalancer.client.training import make_part
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientWork, Layout
from fedbalancer.data.tasks.layers import make_text_model
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.training.flops import tensor_flops
from fedbalancer.training.tensors import FlatModule


def cnn(channels: int, hidden: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * channels, hidden), nn.Tanh(),
        nn.Linear(hidden, 3),
    )  # fmt: skip


def text(channels: int, hidden: int) -> Any:
    return make_text_model(symbols=11, embedding=channels, hidden=hidden)


MODELS = {"cnn": (cnn, lambda: torch.randn(5, 1, 8, 8)), "text": (text, lambda: torch.randint(0, 11, (5, 6)))}


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_part_is_a_smaller_network(name: str, first: int) -> None:
    """Literally: copy the channels of the part into a network of that size; the outputs are the same."""
    make, inputs = MODELS[name]
    whole, small = FlatModule(lambda: make(8, 12)), FlatModule(lambda: make(4, 6))
    torch.manual_seed(1)
    weights = torch.randn(whole.layout.parameters).abs().numpy()
    mask = channel_mask(whole.layout, lambda count: (np.arange(count) - first) % count < count / 2)
    assert mask.sum() == small.layout.parameters
    window = {count: [(first + place) % count for place in range(count // 2)] for count in (8, 12)}
    for (label, tensor), (_, shape) in zip(whole.layout.split(weights).items(), small.layout, strict=True):
        kept = whole.layout.split(mask)[label]
        assert kept.sum() == math.prod(shape)
        if tensor.shape[0] in window and tensor.shape != shape and tensor.ndim == 1:
            assert np.flatnonzero(kept).tolist() == sorted(window[tensor.shape[0]])
    whole.load(np.where(mask, weights, np.float32(0)))
    small.load(weights[mask])  # a window keeps the order of the layers' channels, so that the sums are the same
    whole.module.eval(), small.module.eval()
    batch = inputs()
    with torch.no_grad():
        torch.testing.assert_close(whole.module(batch), small.module(batch), rtol=1e-4, atol=1e-5)


def test_training_a_part_is_training_the_smaller_network() -> None:
    task = load(model=lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    small = load(model=lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ours, theirs = (build(RunSpec(task=each, method="heterofl", seed=0), each).executor for each in (task, small))
    weights = ours.initial_weights(0)
    part = make_part(HeteroFL(levels=2), ours.layout, "c0", 0.0, make_order())
    work = ClientWork("c0", np.arange(20), 6, 10, 0.1, 0.0, None, 0)
    update = ours.train(weights, [replace(work, part=part)])[0].update
    np.testing.assert_allclose(update[part.mask], theirs.train(weights[part.mask], [work])[0].update, atol=1e-6)
    assert not update[~part.mask].any()


def test_a_round_averages_every_parameter_over_the_clients_that_trained_it() -> None:
    """The papers' aggregation, written out, on the updates of a round of FedRolex."""
    task = load(model=wide, clients_per_round=8)
    simulation = build(RunSpec(task=task, method="fedrolex[deadline=inf,part.levels=3]", seed=0), task)
    state = simulation.server.init(simulation.executor.initial_weights(0))
    result = simulation.engine.run(simulation.server.plan(state, np.arange(8)), state.weights, 0.0)
    expected = state.weights.astype(float)
    parameters = np.random.default_rng(0).choice(len(expected), 200)
    for parameter in parameters:
        trained = [report for report in result.reports if report.part is not None and report.part[parameter]]
        if trained:
            total = sum(report.weight for report in trained)
            expected[parameter] += sum(report.weight * report.update[parameter] for report in trained) / total
    after = simulation.server.observe(state, result).weights
    np.testing.assert_allclose(after[parameters], expected[parameters], atol=1e-6)
    assert len({int(report.part.sum()) for report in result.reports if report.part is not None}) == 3


def test_widths_follow_speed_and_the_window_visits_all_channels_evenly() -> None:
    assert [HeteroFL().width(rank) for rank in (0.0, 0.2, 0.4, 0.6, 0.8)] == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]
    layout = Layout([("0.weight", (8, 3)), ("1.weight", (2, 8))])
    visits = sum(
        FedRolex(levels=3).mask(layout, "ann", 0.0, make_order(round=number)).astype(int) for number in range(1, 9)
    )
    assert set(visits.tolist()) == {2}


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ([("0.weight", (8, 3)), ("1.weight", (4, 5)), ("2.weight", (2, 4))], "5 inputs are no multiple"),
        ([("0.weight", (8, 3)), ("1.weight", (3,)), ("2.weight", (2, 8))], r"weight has the shape \(3,\)"),
        ([("0.in_proj_weight", (8, 3)), ("2.weight", (2, 8))], "in_proj_weight"),
        ([("r.weight_ih_l0", (8, 3)), ("r.weight_hh_l0", (8, 2)), ("r.bias_ih_l0_reverse", (8,))], "one direction"),
    ],
)
def test_unclear_channels_are_refused(layout: Any, why: str) -> None:
    with pytest.raises(BadSetting, match=rf"the channels of the model's layer .* are not clear: .*{why}"):
        HeteroFL().mask(Layout(layout), "ann", 0.0, make_order())


def test_timelyfl_trains_as_many_last_layers_as_its_share_allows() -> None:
    layout = Layout([("a.weight", (6, 10)), ("a.bias", (6,)), ("b.weight", (3, 6)), ("b.bias", (3,)), ("c.w", (2, 3))])
    trained = {
        share: {
            name[0]
            for name, part in layout.split(
                LastLayers().mask(layout, "ann", 0.0, make_order(shares={"ann": share}))
            ).items()
            if part.all()
        }
        for share in (0.01, 0.28, 0.3, 0.99, 1.0)
    }
    assert trained == {0.01: {"c"}, 0.28: {"c"}, 0.3: {"b", "c"}, 0.99: {"b", "c"}, 1.0: {"a", "b", "c"}}
    assert LastLayers().mask(layout, "bob", 0.0, make_order()).all()


def test_seconds_follow_the_flops_of_the_part() -> None:
    """A convolution has few parameters and most FLOPs; half its outputs are half its seconds."""
    task = load(
        model=lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 8, 3, padding=1), nn.Flatten(),
                                    nn.Linear(32, 2)),
        clients_per_round=8,
    )  # fmt: skip
    flops = tensor_flops(task)
    assert sum(flops.values()) == pytest.approx(1)
    runs = {
        name: fb.run(task, name, rounds=1).clients for name in ("fedavg+wfa", "heterofl[deadline=inf,part.levels=2]")
    }
    whole, parts = (run.sort("client")["train_s"].to_numpy() for run in runs.values())
    layout = build(RunSpec(task=task, method="fedavg+wfa"), task).executor.layout
    part = make_part(HeteroFL(levels=2), layout, "c0", 0.0, make_order(), flops)
    assert part.batch_share == pytest.approx(0.5, abs=0.01)  # of the convolution's outputs and of the dense inputs
    assert sorted({round(ratio, 6) for ratio in parts / whole}) == pytest.approx([part.batch_share, 1.0])
