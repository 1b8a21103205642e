"""The next character: the published model and settings, on Gutenberg's text or on the Moby edition."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.core.types import ClientWork
from fedbalancer.data import load_task
from fedbalancer.data.tasks import shakespeare
from fedbalancer.training.trainer import TorchTrainer

MOBY = shakespeare.SOURCES[2].files[0]


def shared_data() -> Path:
    named = os.environ.get("FEDBALANCER_DATA")
    return Path(named) if named else Path(__file__).parents[3].parent / "shared" / "data"


SHARED = shared_data()
needs_moby = pytest.mark.skipif(
    not (SHARED / MOBY).is_file(), reason=f"{MOBY} is neither in FEDBALANCER_DATA nor in ../shared/data"
)
LINE = "    And this same line goes on and on, so that {} may have his windows too.\n"


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of the format of 1994: one play with 20 roles of 4 lines, some 200 samples each."""
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "cache"))
    roles = [f"ROLE {chr(65 + number)}" for number in range(20)]
    speeches = [f"  {role}. Hear me.\n{LINE.format(role) * 3}" for role in roles]
    (tmp_path / "100.txt").write_text("A PLAY\n\nby William Shakespeare\n\n" + "".join(speeches))
    return tmp_path


def test_the_published_model_has_817872_parameters() -> None:
    assert sum(parameter.numel() for parameter in shakespeare.make_model().parameters()) == 817_872


def test_the_published_settings(official: Path) -> None:
    task = load_task("shakespeare", scale="paper", variant="gutenberg")
    assert (task.batch_size, task.epochs, task.learning_rate, task.rounds) == (100, 5, 0.8, 40)
    assert (task.eval_every, task.clip_norm, task.prox_mu, task.latency) == (5, None, 0.0, "shakespeare")
    assert shakespeare.SETTINGS["paper"]["clients_per_round"] == 10


def test_the_official_text_is_split_by_role(official: Path) -> None:
    task = shakespeare.load()
    assert task.variant == "gutenberg"
    assert len(task.clients) == 18
    assert task.notes["test_roles"] == 2
    for client, size in task.sizes.items():
        features, labels = task.clients[client]
        assert features.shape == (size, shakespeare.CHARACTERS["small"])
        assert labels.shape == (size,)
        assert 0 <= features.min() <= features.max() < 80
    assert len(task.test[1]) == 2 * shakespeare.MOST_TEST_SAMPLES["small"]


def test_small_gives_the_last_characters_of_the_same_windows(official: Path) -> None:
    paper, small = shakespeare.load("paper"), shakespeare.load()
    client = next(client for client, size in paper.sizes.items() if small.sizes[client] == size)
    (long, after), (short, same) = paper.clients[client], small.clients[client]
    np.testing.assert_array_equal(long[:, -10:], short)
    np.testing.assert_array_equal(after, same)


def test_the_paper_takes_a_fifth_of_the_samples_as_whole_roles(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shakespeare.MOST_TEST_SAMPLES, "small", None)
    everything = shakespeare.load()
    total = sum(everything.sizes.values()) + len(everything.test[1])
    task = shakespeare.load("paper")
    assert sum(task.sizes.values()) + len(task.test[1]) == int(0.2 * total)
    assert len(task.sizes) == 3


def test_by_time_the_labels_of_the_test_come_after_those_of_the_training(official: Path) -> None:
    task = shakespeare.load(split="time")
    assert task.variant == "gutenberg by time"
    assert shakespeare.load_by_time().sizes == task.sizes
    samples = {name: size for name, size in shakespeare.load().sizes.items() if name in task.sizes}
    assert all(task.sizes[name] == int(0.9 * size) for name, size in samples.items())
    first = next(iter(task.clients))
    last_row = np.append(task.clients[first][0][-1][1:], task.clients[first][1][-1])
    np.testing.assert_array_equal(task.test[0][0], last_row)


def test_a_number_of_users_out_of_range_and_unknown_names_are_told(official: Path) -> None:
    assert len(shakespeare.load(users=3).clients) == 3
    with pytest.raises(BadSetting, match="users is 19, but shakespeare at scale small can have 1 to 18"):
        shakespeare.load(users=19)
    with pytest.raises(UnknownName, match="unknown scale 'smal'"):
        shakespeare.load("smal")
    with pytest.raises(UnknownName, match="unknown split 'users'; did you mean user"):
        shakespeare.load(split="users")
    with pytest.raises(MissingData, match=r"pg100\.txt"):
        shakespeare.load(variant="gutenberg-today")


def test_a_changed_file_is_read_again(official: Path) -> None:
    before = sum(shakespeare.load().sizes.values())
    file = official / "100.txt"
    file.write_text(file.read_text() + LINE)
    assert sum(shakespeare.load().sizes.values()) + len(shakespeare.load().test[1]) > before
    file.write_text("nothing of it")
    with pytest.raises(BadData, match=r"100\.txt has no speech"):
        shakespeare.load()


def test_it_trains_and_travels(official: Path) -> None:
    task = pickle.loads(pickle.dumps(shakespeare.load(users=2)))
    trainer = TorchTrainer(task)
    weights = trainer.initial_weights(0)
    client = next(iter(task.clients))
    work = ClientWork(client, np.arange(20), 2, 10, 0.8, mu=0.0, clip_norm=None, seed=0)
    assert np.abs(trainer.train(weights, work).update).max() > 0
    assert trainer.losses(weights, client) == pytest.approx(np.log(80), abs=0.5)


@needs_moby
def test_the_moby_edition_has_as_many_roles_as_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", str(SHARED))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path))
    task = load_task("shakespeare", scale="paper", variant="moby")
    assert task.variant == "moby"
    assert len(task.clients) + task.notes["test_roles"] == 171
    assert sum(task.sizes.values()) + len(task.test[1]) == pytest.approx(845_231, rel=0.01)
    start = time.process_time()
    small = load_task("shakespeare", variant="moby")
    assert time.process_time() - start < 1
    assert len(small.clients) == 100
    assert max(small.sizes.values()) == 300
    assert small.model_bytes == task.model_bytes == 3_271_488
