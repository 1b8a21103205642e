"""The synthetic users: the same ones every time, unlike each other as asked, cheap until they train."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.data.tasks import synthetic


def test_the_same_seed_makes_the_same_users_and_another_seed_others() -> None:
    first, again, other = synthetic.load(), synthetic.load(), synthetic.load(data_seed=1)
    assert list(first.clients) == [f"u{user:05d}" for user in range(30)]
    for client in ("u00000", "u00017"):
        for one, two, three in zip(first.clients[client], again.clients[client], other.clients[client], strict=True):
            assert one.tobytes() == two.tobytes()
            assert one.tobytes() != three.tobytes()
    assert first.test[0].tobytes() == again.test[0].tobytes()


def test_sizes_are_known_beforehand_and_true() -> None:
    task = synthetic.load(users=12)
    for client, size in task.sizes.items():
        features, labels = task.clients[client]
        assert features.shape == (size, 60)
        assert features.dtype == np.float32
        assert labels.shape == (size,)
        assert 0 <= labels.min() <= labels.max() < 10
        assert 45 <= size <= 360


def test_held_out_samples_are_not_trained_on() -> None:
    task = synthetic.load(users=5)
    trained = {row.tobytes() for client in task.clients for row in task.clients[client][0]}
    assert not any(row.tobytes() in trained for row in task.test[0])


def test_ten_thousand_users_load_in_two_seconds() -> None:
    start = time.process_time()
    task = synthetic.load(users=10_000)
    assert len(task.sizes) == len(task.clients) == 10_000
    assert time.process_time() - start < 2
    assert len(task.test[1]) < 5_000


def test_beta_sets_how_unlike_the_data_are_and_alpha_cancels() -> None:
    def spread_of_centres(beta: float) -> float:
        clients = synthetic.load(users=40, beta=beta).clients
        return float(np.std([clients[client][0].mean() for client in clients]))

    assert spread_of_centres(4.0) > 3 * spread_of_centres(0.0)
    for client in ("u00000", "u00001", "u00002"):
        labels = [synthetic.load(users=3, alpha=alpha).clients[client][1] for alpha in (0.0, 4.0)]
        np.testing.assert_array_equal(*labels)


def test_the_paper_scale_has_larger_users() -> None:
    small, paper = (sum(synthetic.load(scale=scale, users=500).sizes.values()) for scale in ("small", "paper"))
    assert paper > 1.5 * small


def test_tasks_can_be_sent_to_another_process() -> None:
    task = synthetic.load(users=4)
    copy = pickle.loads(pickle.dumps(task))
    assert copy.sizes == task.sizes
    assert copy.clients["u00002"][0].tobytes() == task.clients["u00002"][0].tobytes()


def test_bad_options_are_named() -> None:
    with pytest.raises(BadSetting, match="users is 0"):
        synthetic.load(users=0)
    with pytest.raises(BadSetting, match="alpha is -1"):
        synthetic.load(alpha=-1)
    with pytest.raises(UnknownName, match="scale 'large'"):
        synthetic.load(scale="large")
    with pytest.raises(KeyError):
        synthetic.load(users=3).clients["u00003"]


def test_the_model_fits_the_data_and_learns() -> None:
    pytest.importorskip("torch", reason="the model needs the extra [torch]")
    from fedbalancer.core.types import ClientWork
    from fedbalancer.training.trainer import TorchTrainer

    task = synthetic.load(users=3)
    trainer = TorchTrainer(task)
    weights = trainer.initial_weights(0)
    job = ClientWork("u00002", np.arange(task.sizes["u00002"]), 50, 10, 0.01, 0.0, None, 0)
    before = trainer.losses(weights, "u00002").mean()
    assert trainer.losses(weights + trainer.train(weights, job).update, "u00002").mean() < before


def test_the_size_that_is_charged_is_the_models() -> None:
    task = synthetic.load()
    parameters = sum(parameter.numel() for parameter in task.model().parameters())
    assert task.model_bytes == 4 * parameters
