"""Labels that are wrong on purpose."""

from __future__ import annotations

import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting
from fedbalancer.data.clients import add_label_noise
from fedbalancer.data.tasks.synthetic import load
from fedbalancer.experiments.spec import RunSpec


def a_task(labels: np.ndarray) -> fb.Task:
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return fb.Task(clients={"ann": (x, labels), "bob": (x, labels)}, test=(x, labels), model=lambda: None)


def test_about_so_many_labels_are_another_class_and_the_test_stays_clean() -> None:
    labels = np.arange(5000) % 7
    task = add_label_noise(a_task(labels), 0.2)
    for _, found in task.clients.values():
        assert set(found.tolist()) == set(range(7))
        assert 0.18 < (found != labels).mean() < 0.22
        wrong = (found - labels)[found != labels] % 7
        assert np.bincount(wrong, minlength=7)[1:].min() > 100  # every other class is as likely
    assert (task.clients["ann"][1] != task.clients["bob"][1]).any()
    assert (task.test[1] == labels).all()


def test_it_is_the_same_noise_every_time_and_never_twice() -> None:
    clean = a_task(np.arange(100) % 3)
    once = add_label_noise(clean, 0.5)
    assert add_label_noise(once, 0.5) is once
    assert add_label_noise(clean, 0.0) is clean
    assert (add_label_noise(clean, 0.5).clients["ann"][1] == once.clients["ann"][1]).all()


def test_clients_that_are_made_on_demand_stay_so() -> None:
    clean = load(users=5)
    noisy = add_label_noise(clean, 0.3)
    assert noisy.sizes == clean.sizes
    changed = [(noisy.clients[name][1] != clean.clients[name][1]).mean() for name in clean.sizes]
    assert 0.2 < np.mean(changed) < 0.4


def test_labels_that_are_no_classes_are_refused() -> None:
    with pytest.raises(BadSetting, match="does not have one class per sample"):
        add_label_noise(a_task(np.arange(4.0)), 0.2)


def test_a_run_trains_on_the_noise_in_workers_too() -> None:
    options = {"users": 4, "rounds": 3, "seed": 0}
    clean = fb.run("synthetic", "fedavg+1t", **options)
    noisy = fb.run("synthetic", "fedavg+1t", settings={"label_noise": 0.9}, **options)
    there = fb.run("synthetic", "fedavg+1t", settings={"label_noise": 0.9}, executor="pool", workers=2, **options)
    assert (noisy.weights == there.weights).all()
    assert (noisy.weights != clean.weights).any()
    assert RunSpec(task="synthetic", users=4, settings={"label_noise": 0.9}).load_task().notes["label_noise"] == 0.9
