"""Clients are slices of arrays; label noise changes their labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.task import MadeOnDemand
from fedbalancer.data import SlicedClients, Task, concatenate_users
from fedbalancer.data.clients import add_label_noise
from fedbalancer.data.tasks.synthetic import load
from fedbalancer.experiments.spec import RunSpec


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_every_client_has_its_own_rows_again(lengths: list[int]) -> None:
    users = {
        f"u{number}": (np.full((length, 2), number, np.float32), np.arange(length))
        for number, length in enumerate(lengths)
    }
    names, sizes, features, labels = concatenate_users(users)
    clients = SlicedClients(tuple(names), tuple(sizes), features, labels)
    assert list(clients) == list(users)
    assert len(clients) == len(users)
    assert clients.sizes == {name: len(samples[1]) for name, samples in users.items()}
    for name, (x, y) in users.items():
        assert np.array_equal(clients[name][0], x)
        assert np.array_equal(clients[name][1], y)
        assert np.shares_memory(clients[name][0], features)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.floats(0.01, 0.99), st.integers(0, 9))
def test_held_out_tests_and_the_rest_are_the_samples_of_each_client(sizes: list[int], share: float, seed: int) -> None:
    ends = np.cumsum(sizes)
    parts = {f"c{place}": np.arange(end - size, end) for place, (size, end) in enumerate(zip(sizes, ends, strict=True))}
    clients = {name: (rows[:, None].astype(np.float32), rows) for name, rows in parts.items()}
    task = Task(clients, (np.zeros((1, 1), np.float32), np.array([0])), lambda: None)
    tested = task.hold_out_tests(share, seed)
    assert set(tested.client_tests) == {name for name, rows in parts.items() if len(rows) > 1}
    for name, rows in parts.items():
        kept = tested.samples(name)[1]
        held_out = tested.client_tests[name][1] if name in tested.client_tests else kept[:0]
        assert sorted([*kept, *held_out]) == rows.tolist()
        assert len(kept) == tested.sizes[name] >= 1
    again = task.hold_out_tests(share, seed)
    assert all(np.array_equal(again.client_tests[name][1], labels) for name, (_, labels) in tested.client_tests.items())


def test_tests_are_held_out_once_and_by_a_share() -> None:
    samples = (np.zeros((4, 1), np.float32), np.zeros(4, int))
    task = Task({"a": samples}, samples, lambda: None)
    with pytest.raises(BadSetting, match="client_test_share = 1 must be greater than 0 and less than 1"):
        task.hold_out_tests(1)
    with pytest.raises(BadData, match="task 'custom' has tests of clients already"):
        task.hold_out_tests().hold_out_tests()


def test_a_task_takes_them_without_looking_at_them() -> None:
    clients = SlicedClients(("a", "b"), (2, 1), np.zeros((3, 2)), np.array([0, 1, 1]))
    assert isinstance(clients, MadeOnDemand)
    task = Task(clients=clients, test=(np.zeros((1, 2)), np.array([0])), model=lambda: None)
    assert task.sizes == {"a": 2, "b": 1}
    with pytest.raises(KeyError):
        clients["c"]


@pytest.mark.parametrize(
    ("names", "lengths", "rows", "labels", "words"),
    [
        (("a", "a"), (1, 1), 2, 2, "client 'a' occurs twice"),
        (("a",), (1, 1), 2, 2, "1 client names but 2 lengths"),
        (("a", "b"), (1, 1), 3, 3, "clients have 2 samples in total, but there are 3 features and 3 labels"),
        (("a", "b"), (1, 1), 2, 3, "2 features and 3 labels"),
    ],
)
def test_names_and_rows_that_do_not_fit_are_refused(
    names: tuple[str, ...], lengths: tuple[int, ...], rows: int, labels: int, words: str
) -> None:
    with pytest.raises(BadData, match=words):
        SlicedClients(names, lengths, np.zeros((rows, 2)), np.zeros(labels, np.int64))


def test_joining_nobody_or_uneven_users_is_refused() -> None:
    with pytest.raises(BadData, match="no users"):
        concatenate_users({})
    with pytest.raises(BadData, match="user 'b' has 2 features but 1 labels"):
        concatenate_users([("a", (np.zeros((1, 2)), np.zeros(1))), ("b", (np.zeros((2, 2)), np.zeros(1)))])


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
