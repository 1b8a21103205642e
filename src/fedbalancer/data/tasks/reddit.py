"""Reddit: which word comes next? Comments of one author, cut into sequences of ten tokens, each with a next word.

A client is an author. By time, the first 60% of its comments train and the last 20% are test data, pooled over all
clients. The 20% between them are LEAF's validation data and are not used. The official data are LEAF's sub-sample of
Reddit in December 2017 (813 authors, 32,680 sequences). The stand-in `irc` has messages of a help channel of Ubuntu,
with a vocabulary counted on its training messages. As in LEAF, authors have 5 to 1000 messages; 813 of them are used.

Loss and accuracy are LEAF's. The loss of a sequence is the mean cross-entropy over its ten steps, and 0 where the
input is padding. A word is correct if it has the highest score and is neither padding nor unknown. Accuracy is the
share of all tokens that are not padding. As in LEAF, the end of a comment counts as a token whose target, padding, is
never correct.

The paper's settings are in `SETTINGS`. At `small`, there are 250 authors (with 15 to 80 messages), 20 per round,
layers of width 32, and a text of only the 500 most frequent words: other words are removed. If unknown words were one
more word, they would be the most likely answer nearly everywhere, but never correct, and accuracy would jump between
0.00 and 0.09. Initial weights are larger, because fewer are added up. Transfer times are those of the published model.

Measured at `small` with `irc`: `fedavg+1t`, seed 0, has accuracy 0.11, 0.09, 0.12, 0.14, 0.11, 0.14, 0.14, 0.12, 0.14,
0.14 after rounds 10 to 100 in steps of 10, and a test loss that falls from 2.56 to 2.41. Its last five evaluations
have mean 0.132 and standard deviation 0.012, because the few authors in time change from round to round. Waiting for
all is steadier (150 authors, ten per round, seeds 0 and 1: standard deviation 0.005 to 0.008; 0.11, 0.12, 0.13 after
rounds 10, 20, 30). Half the learning rate varied as much. A run takes 30 s on one shared core.

Differences from the published code: every sequence starts with a state of zeros, while the published code keeps the
state of the previous batch. The mean over a batch divides by its size at every step, not by the number of tokens that
count at that step, because the loss of a sample must not depend on its batch. No filler sequences count in the test.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadData, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.data import (
    Prepared,
    SlicedClients,
    Source,
    check_user_count,
    checksum,
    choose_source,
    concatenate_users,
    load_or_prepare,
)
from fedbalancer.data.readers.files import leaf_checksums, leaf_files
from fedbalancer.data.readers.reddit import (
    UNKNOWN,
    ByUser,
    Tokens,
    build_vocabulary,
    cut_sequences,
    drop_unknown_words,
    number_words,
    read_irc,
    read_reddit,
)
from fedbalancer.data.task import Task
from fedbalancer.data.tasks.layers import make_text_model
from fedbalancer.training.tensors import masked_loss

if TYPE_CHECKING:
    import torch

SOURCES = (
    Source(
        task="reddit",
        variant="leaf",
        title="LEAF's sub-sample of Reddit, December 2017",
        files=("reddit",),
        licence="Reddit's user content, as published by pushshift.io; for research",
        citation="S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018",
        by_hand="download the sub-sampled data that LEAF's data/reddit/README.md links to, and unpack its folders "
        "train, val and test into reddit/ in the data folder",
    ),
    Source(
        task="reddit",
        variant="irc",
        title="messages of the Ubuntu help channel by author (a stand-in)",
        files=("ubuntu_irc_by_user.jsonl.xz",),
        licence="CC BY 4.0",
        citation="J. K. Kummerfeld et al., A Large-Scale Corpus for Conversation Disentanglement, ACL 2019",
        official=False,
    ),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"clients_per_round": 100, "batch_size": 10, "epochs": 5, "learning_rate": 2.0, "rounds": 600},
    "small": {"clients_per_round": 20, "batch_size": 10, "epochs": 5, "learning_rate": 2.0, "rounds": 100},
}
WORDS = {"paper": 10_000, "small": 500}
WIDTH = {"paper": 256, "small": 32}
"""Size of the embedding and of both LSTM layers."""
UNIFORM = {"paper": 0.1, "small": 0.3}
"""Initial weights are within plus and minus this value; larger at `small`, where a layer adds up fewer of them."""
MODEL_BYTES = 24_722_496
"""Size of the published model, used at every scale because the batch latencies are also those of that model."""
KNOWN_ONLY = {"paper": False, "small": True}
"""Whether words outside the vocabulary are removed from the text."""
USERS = {"paper": 813, "small": 250}
MESSAGES = {"paper": (5, 1000), "small": (15, 80)}
"""Smallest and largest number of messages of an author of `irc`. LEAF's data already have such limits."""
DATA_SEED = 0


def load(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """Load the task.

    Args:
        scale: "small" or "paper".
        users: Number of training authors. None: all of the scale.
        variant: Name of the data set. None: the first one whose files exist.

    Raises:
        MissingData: If the data are not on this computer.
    """
    if scale not in SETTINGS:
        raise UnknownName("scale", scale, SETTINGS)
    source = choose_source(SOURCES, variant)
    prepared = _load_prepared(source, scale)
    names, lengths = prepared.meta["names"], prepared.meta["lengths"]
    users = check_user_count(users, len(names), f"reddit at scale {scale}")
    names, lengths, tests = names[:users], lengths[:users], prepared.meta["test_lengths"][:users]
    rows, test_rows = sum(lengths), sum(tests)
    arrays, settings = prepared.arrays, SETTINGS[scale]
    return Task(
        clients=SlicedClients(tuple(names), tuple(lengths), arrays["train_x"][:rows], arrays["train_y"][:rows]),
        test=(arrays["test_x"][:test_rows], arrays["test_y"][:test_rows]),
        model=partial(make_model, WORDS[scale], WIDTH[scale], UNIFORM[scale]),
        name="reddit",
        variant=source.variant,
        eval_every=5,
        clip_norm=5.0,
        sample_selection_deadline=2,
        loss=masked_loss,
        metric=count_hits,
        latency="reddit",
        model_bytes=MODEL_BYTES,
        notes={"words": WORDS[scale], "width": WIDTH[scale], "known_words": prepared.meta["known_words"]},
        **{**settings, "clients_per_round": min(settings["clients_per_round"], len(names))},
    )


def make_model(words: int = 10_000, width: int = 256, uniform: float = 0.1) -> torch.nn.Module:
    """Make the published model: an embedding, two LSTM layers without forget bias, and a dense layer at every step.

    Args:
        words: Size of the vocabulary.
        width: Size of the embedding and of the LSTM layers.
        uniform: Initial weights are uniform within plus and minus this value.
    """
    return make_text_model(
        symbols=words, embedding=width, hidden=width, forget_bias=0.0, every_step=True, uniform=uniform
    )


def count_hits(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Return the number of correct words and of words that count. Padding and unknown words are never correct."""
    correct = (outputs.argmax(dim=2) == labels) & (labels > UNKNOWN)
    return float(correct.sum()), float((labels != outputs.shape[2]).sum())


def _load_prepared(source: Source, scale: str) -> Prepared:
    path = source.paths[0]
    sums: Any = checksum(path) if source.variant == "irc" else leaf_checksums(leaf_files(path))
    key = {
        "text": sums,
        "words": WORDS[scale],
        "known_only": KNOWN_ONLY[scale],
        "users": USERS[scale],
        "messages": MESSAGES[scale],
    }
    return load_or_prepare("reddit", key, partial(_prepare, source, scale))


def _prepare(source: Source, scale: str) -> Prepared:
    train, test = _split_irc(source.paths[0], scale) if source.variant == "irc" else read_reddit(source.paths[0])
    names = _draw_users(train.keys() & test.keys(), scale, source)
    size = WORDS[scale]
    words = build_vocabulary(chain.from_iterable(train[name] for name in names), size)
    if KNOWN_ONLY[scale]:
        train, test = ({name: drop_unknown_words(part[name], words) for name in names} for part in (train, test))
        names = [name for name in names if train[name] and test[name]]
    _, lengths, train_x, train_y = concatenate_users([(name, number_words(train[name], words, size)) for name in names])
    _, tests, test_x, test_y = concatenate_users([(name, number_words(test[name], words, size)) for name in names])
    arrays = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}
    known = len(words) - 1  # without padding
    return Prepared(arrays, {"names": names, "lengths": lengths, "test_lengths": tests, "known_words": known})


def _split_irc(path: Path, scale: str) -> tuple[ByUser, ByUser]:
    """Split the messages of the scale's authors by time, as LEAF does."""
    least, most = MESSAGES[scale]
    messages = {user: texts for user, texts in read_irc(path).items() if least <= len(texts) <= most}
    chosen = _draw_users(messages.keys(), scale, SOURCES[1])

    def cut(start: float, end: float) -> ByUser:
        return {user: _sequences_between(messages[user], start, end) for user in chosen}

    return cut(0.0, 0.6), cut(0.8, 1.0)


def _sequences_between(messages: list[list[str]], start: float, end: float) -> list[Tokens]:
    span = messages[int(start * len(messages)) : int(end * len(messages))]
    return [part for message in span for part in cut_sequences(message)]


def _draw_users(users: Collection[str], scale: str, source: Source) -> list[str]:
    """Draw the scale's number of users, always in the same random order."""
    if not users:
        raise BadData(f"{source.paths[0]} has no user with enough comments for both training and test")
    order = stream(DATA_SEED, "reddit users").permutation(len(users))
    names = sorted(users)
    return [names[row] for row in order[: USERS[scale]]]
