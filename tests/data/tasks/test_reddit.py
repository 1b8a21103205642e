"""The next word: the published model and settings, on LEAF's JSON or on chat messages."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.types import ClientWork
from fedbalancer.data import load_task
from fedbalancer.data.tasks import reddit
from fedbalancer.data.tasks.reddit import cut_sequences
from fedbalancer.training.tensors import masked_loss
from fedbalancer.training.trainer import TorchTrainer

IRC = reddit.SOURCES[1].files[0]


def shared_data() -> Path:
    named = os.environ.get("FEDBALANCER_DATA")
    return Path(named) if named else Path(__file__).parents[3].parent / "shared" / "data"


SHARED = shared_data()
needs_irc = pytest.mark.skipif(
    not (SHARED / IRC).is_file(), reason=f"{IRC} is neither in FEDBALANCER_DATA nor in ../shared/data"
)


def document(texts: dict[str, list[str]]) -> dict[str, Any]:
    data = {}
    for user, comments in texts.items():
        parts = [cut_sequences(text.split()) for text in comments]
        data[user] = {
            "x": [[part.inputs for part in comment] for comment in parts],
            "y": [{"score": 1, "target_tokens": [part.targets for part in comment]} for comment in parts],
        }
    return {"users": list(texts), "num_samples": [5 for _ in texts], "user_data": data}


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LEAF's folder with four users of three comments for training and one for the test."""
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "cache"))
    users = [str(number) for number in range(1, 5)]
    parts = {
        "train": {user: ["the dog barks", f"the cat {user}", "a " * 12] for user in users},
        "val": {user: ["never seen"] for user in users},
        "test": {user: [f"the dog {user} sleeps"] for user in users},
    }
    for part, texts in parts.items():
        (tmp_path / "reddit" / part).mkdir(parents=True)
        (tmp_path / "reddit" / part / f"reddit_0_{part}.json").write_text(json.dumps(document(texts)))
    return tmp_path


def test_the_published_model_has_6180624_parameters() -> None:
    assert sum(parameter.numel() for parameter in reddit.make_model().parameters()) == 6_180_624


def test_the_published_settings(official: Path) -> None:
    task = load_task("reddit", scale="paper")
    assert (task.batch_size, task.epochs, task.learning_rate, task.rounds) == (10, 5, 2.0, 600)
    assert (task.eval_every, task.clip_norm, task.prox_mu, task.latency) == (5, 5.0, 0.0, "reddit")
    assert task.sample_selection_deadline == 2
    assert reddit.SETTINGS["paper"]["clients_per_round"] == 100
    assert reddit.WORDS["paper"] == 10_000


def test_leaf_json_is_read_with_words_of_the_training_only(official: Path) -> None:
    task = reddit.load()
    assert task.variant == "leaf"
    assert task.sizes == dict.fromkeys(task.clients, 4)
    assert sorted(task.clients) == ["1", "2", "3", "4"]
    # <BOS> <EOS> the dog barks cat a 1 2 3 4
    assert task.notes["known_words"] == 11
    features, labels = task.test
    assert features.shape == labels.shape == (4, 10)
    words = reddit.WORDS["small"]
    assert ((labels == words) == (features == 0)).all()
    assert (features == 1).sum() == 0  # "sleeps" is unknown, and left out
    assert (load_task("reddit", scale="paper").test[0] == 1).sum() == 4


def test_the_loss_is_the_mean_over_ten_steps_of_those_that_count() -> None:
    outputs, labels = torch.zeros(2, 10, 7), torch.full((2, 10), 7)
    labels[0, :4] = 3
    losses = masked_loss(outputs, labels)
    torch.testing.assert_close(losses, torch.tensor([0.4 * np.log(7), 0.0], dtype=torch.float32))


def test_unknown_words_and_padding_are_never_right() -> None:
    labels = torch.tensor([[2, 3, 1, 0, 4, 7, 7, 7, 7, 7]])
    guesses = torch.tensor([[2, 4, 1, 0, 4, 0, 0, 1, 2, 3]])
    outputs = torch.nn.functional.one_hot(guesses, 7).float()
    assert reddit.count_hits(outputs, labels) == (2.0, 5.0)


def test_a_number_of_users_out_of_range_and_unknown_names_are_told(official: Path) -> None:
    two = reddit.load(users=2)
    assert len(two.clients) == 2
    assert len(two.test[1]) == 2
    with pytest.raises(BadSetting, match="users is 5, but reddit at scale small can have 1 to 4"):
        reddit.load(users=5)
    with pytest.raises(UnknownName, match="unknown scale 'big'"):
        reddit.load("big")


def test_a_damaged_file_is_told_also_when_a_good_one_is_cached(official: Path) -> None:
    reddit.load()
    file = official / "reddit" / "train" / "reddit_0_train.json"
    file.write_text(file.read_text()[:-30])
    with pytest.raises(BadData, match=r"reddit_0_train\.json is damaged or not JSON"):
        reddit.load()


def test_it_trains_and_travels(official: Path) -> None:
    task = pickle.loads(pickle.dumps(reddit.load()))
    trainer = TorchTrainer(task)
    weights = trainer.initial_weights(0)
    client = next(iter(task.clients))
    work = ClientWork(client, np.arange(4), 30, 4, 2.0, mu=0.0, clip_norm=5.0, seed=0)
    trained = trainer.train(weights, work)
    assert trainer.evaluate(weights + trained.update).loss < trainer.evaluate(weights).loss - 1


@needs_irc
def test_chat_messages_stand_in_for_as_many_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBALANCER_DATA", str(SHARED))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path))
    task = load_task("reddit", scale="paper", variant="irc")
    assert task.variant == "irc"
    assert len(task.clients) == 813
    assert all(int(task.clients[client][0].max()) < 10_000 for client in task.clients)
    start = time.process_time()
    load_task("reddit", scale="paper", variant="irc")
    assert time.process_time() - start < 1
