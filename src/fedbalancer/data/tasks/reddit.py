"""Which word comes next? Comments of one author, cut into sequences of ten tokens; each of the ten has a next word.

A client is an author. By time, the first 60 % of its comments train and the last 20 % are the test, pooled over all;
the 20 % between are LEAF's validation data and stay unused. The official data are LEAF's sub-sample of Reddit in
December 2017 (813 authors, 32,680 sequences). `irc` is a stand-in: messages of a help channel of Ubuntu, with a
vocabulary of its own, counted on the training messages; as LEAF does, authors with 5 to 1000 messages are taken, here
813 of them.

Loss and accuracy are LEAF's: a sequence's loss is the mean over its ten steps of the cross-entropy, 0 where the input
is padding; a word is right if it has the highest score and is neither padding nor unknown; the share is of all tokens
that are not padding. The end of a comment counts as a token whose next one, padding, can never be right, as in LEAF.

The paper's settings are in `SETTINGS`. At `small` there are 250 authors (of 15 to 80 messages), of whom 20 a round
train, layers 32 wide, and a text of the 500 most frequent words alone: what is not among them is left out of it. As one
more word, the unknown ones would be the most likely answer nearly everywhere, never right, and accuracy would jump
between .00 and .09 as they are just more or just less likely than a word. The weights begin larger, as fewer are added
up. Transfers take the time of the published model.

Measured at `small` with `irc`: `fedavg+1t`, seed 0, has .11 .09 .12 .14 .11 .14 .14 .12 .14 .14 after rounds 10 to 100
by tens, with a test loss that falls from 2.56 to 2.41; its last five evaluations have a mean of .132 and a standard
deviation of .012: which few authors were in time changes from round to round. Waiting for all is steadier (with 150
authors and ten a round, seeds 0 and 1: a deviation of .005 to .008, .11 .12 .13 after rounds 10 20 30). There half the
learning rate swung as much. A run takes 30 s on one core that others use too.

Departures: every sequence starts with a state of zeros, where the published code carries the state over from whatever
batch came before; the mean over a batch divides by its size at every step, not by the number of tokens that count at
that step, because a sample's loss must not depend on its batch; no filler sequences are counted in the test.
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
from fedbalancer.data.readers.leaf import leaf_checksums, leaf_files
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
        by_hand="fetch the sub-sampled data that LEAF's data/reddit/README.md links to, and unpack its folders train, "
        "val and test into reddit/ in the data folder",
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
"""Of the embedding and of both layers of LSTM."""
UNIFORM = {"paper": 0.1, "small": 0.3}
"""Within plus and minus this weights begin: as a layer adds up an eighth as many of them, they are sqrt(8) as large."""
MODEL_BYTES = 24_722_496
"""Of the published model, at every scale: the batch latencies are those of the published model too."""
KNOWN_ONLY = {"paper": False, "small": True}
"""Whether words outside the vocabulary are left out of the text instead of being one more word."""
USERS = {"paper": 813, "small": 250}
MESSAGES = {"paper": (5, 1000), "small": (15, 80)}
"""Authors of `irc` have at least and at most these many messages; LEAF's data are made so already."""
DATA_SEED = 0


def load(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """The task with the first `users` of the authors (all of the scale's unless told)."""
    if scale not in SETTINGS:
        raise UnknownName("scale", scale, SETTINGS)
    source = choose_source(SOURCES, variant)
    prepared = _prepared(source, scale)
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
    """Embedding, two layers of LSTM without forget bias, and a dense layer at every step, all uniform within ±0.1."""
    return make_text_model(
        symbols=words, embedding=width, hidden=width, forget_bias=0.0, every_step=True, uniform=uniform
    )


def count_hits(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """How many words are right, of how many that count; padding and unknown words never are."""
    right = (outputs.argmax(dim=2) == labels) & (labels > UNKNOWN)
    return float(right.sum()), float((labels != outputs.shape[2]).sum())


def _prepared(source: Source, scale: str) -> Prepared:
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
    train, test = _irc(source.paths[0], scale) if source.variant == "irc" else read_reddit(source.paths[0])
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


def _irc(path: Path, scale: str) -> tuple[ByUser, ByUser]:
    """LEAF's split by time, of as many authors as the scale has, that write neither too little nor too much."""
    least, most = MESSAGES[scale]
    messages = {user: said for user, said in read_irc(path).items() if least <= len(said) <= most}
    chosen = _draw_users(messages.keys(), scale, SOURCES[1])

    def cut(start: float, end: float) -> ByUser:
        return {user: _sequences_between(messages[user], start, end) for user in chosen}

    return cut(0.0, 0.6), cut(0.8, 1.0)


def _sequences_between(said: list[list[str]], start: float, end: float) -> list[Tokens]:
    span = said[int(start * len(said)) : int(end * len(said))]
    return [part for message in span for part in cut_sequences(message)]


def _draw_users(users: Collection[str], scale: str, source: Source) -> list[str]:
    """The scale's number of users in random order, the same every time, so that the first few are a fair choice."""
    if not users:
        raise BadData(f"{source.paths[0]} has no user with enough comments for both training and test")
    order = stream(DATA_SEED, "reddit users").permutation(len(users))
    names = sorted(users)
    return [names[row] for row in order[: USERS[scale]]]
