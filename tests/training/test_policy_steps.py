"""Local training with a policy in slot `train` or `part`: the arithmetic of single trainings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from experiments.tinytask import load
from scaffold import Ditto, Doubled, FirstRows, FrozenBias, Scaffold

from fedbalancer.client.training import LOCAL, LocalLayers, PlainTraining, make_part
from fedbalancer.core.contracts import LocalTraining
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientWork, Order, TrainResult
from fedbalancer.training.trainer import TorchTrainer

TRAINER = TorchTrainer(load(), "plain")
START = TRAINER.initial_weights(0)
ORDER = Order(1, 0.0, 60.0, 1, 10, 0)


def train(train: LocalTraining | None = None, batches: int = 4, **changes: Any) -> TrainResult:
    work = ClientWork("c0", np.arange(20), batches, 10, 0.1, 0.0, None, 7, train=train)
    return TRAINER.train(START, replace(work, **changes))


def test_a_policy_that_changes_nothing_trains_the_same_bytes() -> None:
    assert train(PlainTraining()).update.tobytes() == train().update.tobytes()


def test_scaffold_steps_along_the_corrected_gradient() -> None:
    ones = np.ones_like(START)
    plain, corrected = train(batches=1), train(Scaffold(), batches=1, state={"c": 3 * ones}, arrays={"c": ones})
    np.testing.assert_allclose(corrected.update, plain.update + 0.1 * 2, atol=1e-6)


def test_scaffold_keeps_and_sends_option_two() -> None:
    server = np.full_like(START, 0.5)
    result = train(Scaffold(), arrays={"c": server})
    own = 0 - server - result.update / (4 * np.float32(0.1))
    np.testing.assert_allclose(result.state["c"], own, atol=1e-5)
    np.testing.assert_allclose(result.arrays["c"], own, atol=1e-5)


def test_the_objective_is_minimised() -> None:
    np.testing.assert_allclose(train(Doubled(), batches=1).update, 2 * train(batches=1).update, rtol=1e-5)


def test_gradients_at_other_weights_do_not_disturb_the_training() -> None:
    ditto = train(Ditto(pull=0.0))
    assert ditto.update.tobytes() == train().update.tobytes()
    np.testing.assert_allclose(ditto.state["personal"], START + ditto.update, atol=1e-6)


def test_a_personal_model_continues_from_its_state() -> None:
    first = train(Ditto())
    again = train(Ditto(), state=first.state)
    assert not np.allclose(again.state["personal"], first.state["personal"])


def test_an_absent_part_is_zero_and_stays_zero() -> None:
    part = make_part(FirstRows(), TRAINER.layout, "c0", 0.0, ORDER)
    assert part is not None
    smaller = np.where(part.mask, START, 0).astype(np.float32)
    result = train(part=part)
    assert not result.update[~part.mask].any()
    assert result.update[part.mask].any()
    plain = TRAINER.train(smaller, ClientWork("c0", np.arange(20), 1, 10, 0.1, 0.0, None, 7))
    np.testing.assert_allclose(train(part=part, batches=1).update, np.where(part.mask, plain.update, 0), atol=1e-7)


def test_frozen_parameters_are_received_but_not_trained() -> None:
    part = make_part(FrozenBias(), TRAINER.layout, "c0", 0.0, ORDER)
    assert part is not None
    result = train(part=part, batches=1)
    np.testing.assert_array_equal(result.update, np.where(part.mask, train(batches=1).update, 0))


def test_local_layers_are_trained_and_stay_on_the_client() -> None:
    part = make_part(LocalLayers("bias"), TRAINER.layout, "c0", 0.0, ORDER)
    assert part is not None
    result, plain = train(part=part), train()
    np.testing.assert_array_equal(result.update, np.where(part.mask, plain.update, 0))
    np.testing.assert_allclose(result.state[LOCAL], (START + plain.update)[~part.mask], rtol=1e-6)
    again = train(part=part, state=result.state)
    assert not np.array_equal(again.state[LOCAL], result.state[LOCAL])


def test_clipping_measures_the_changed_gradient() -> None:
    ones = np.ones_like(START)
    result = train(Scaffold(), batches=1, arrays={"c": 100 * ones}, clip_norm=1.0)
    assert np.linalg.norm(result.update) == pytest.approx(0.1, rel=1e-3)


def test_a_name_that_matches_no_layer_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"no tensor of the model matches 'head\.\*'; it has weight, bias"):
        make_part(LocalLayers("head.*"), TRAINER.layout, "c0", 0.0, ORDER)


@dataclass(frozen=True)
class Forgetful(Scaffold):
    def finish(self, update: Any, run: Any) -> Any:
        return update


@dataclass(frozen=True)
class Short(LocalTraining):
    def gradient(self, gradient: Any, weights: Any, run: Any) -> Any:
        return gradient[:-1]


def test_what_differs_from_the_declaration_is_refused() -> None:
    with pytest.raises(BadSetting, match="the order has no array 'c', which is declared"):
        train(Scaffold())
    with pytest.raises(BadSetting, match="Forgetful sends no array 'c'"):
        train(Forgetful(), arrays={"c": START})
    with pytest.raises(BadSetting, match=r"Short.gradient returned shape \(9,\); it must be \(10,\)"):
        train(Short())
