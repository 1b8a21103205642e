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

Files, and the conversion of words to numbers:

As in LEAF, a comment becomes `<BOS>` words `<EOS>`, cut into sequences of ten tokens and filled up with `<PAD>`. The
target of every token is the next token. A sequence is a sample.

- LEAF's JSON: a comment in x is a list of sequences of ten words, and its entry in y has their `target_tokens`:

      "x": [[["<BOS>", "hi", "<EOS>", "<PAD>", ...]]], "y": [{"target_tokens": [["hi", "<EOS>", "<PAD>", ...]], ...}]

  LEAF's vocabulary is a pickle, which can run any code when it is loaded, so it is not read. It contains only the most
  frequent words of `train`, which are counted here in the same way. In these files, num_samples is the number of a
  user's comments in train, val and test together.
- `irc`: chat messages by author, one JSON object (user, day, t, text) per line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
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
from fedbalancer.data.readers import LeafUser, json_lines, leaf_checksums, leaf_files, leaf_users
from fedbalancer.data.task import Task
from fedbalancer.data.tasks.layers import make_text_model
from fedbalancer.training.tensors import masked_loss

if TYPE_CHECKING:
    import torch


LENGTH = 10
PAD, UNKNOWN = 0, 1
PAD_WORD = "<PAD>"


class Tokens(NamedTuple):
    """One sequence.

    Args:
        inputs: Ten tokens.
        targets: The token after each of them.
    """

    inputs: Sequence[str]
    targets: Sequence[str]


def cut_sequences(words: Sequence[str]) -> list[Tokens]:
    """Cut the words of one comment into sequences. As in LEAF, the last one may contain only `<EOS>`.

    >>> [first] = cut_sequences(["hi", "there"])
    >>> first.inputs[:4], first.targets[:4]
    (['<BOS>', 'hi', 'there', '<EOS>'], ['hi', 'there', '<EOS>', '<PAD>'])
    """
    inputs = ["<BOS>", *words, "<EOS>"]
    inputs += [PAD_WORD] * (-len(inputs) % LENGTH)
    targets = [*inputs[1:], PAD_WORD]
    return [
        Tokens(inputs[start : start + LENGTH], targets[start : start + LENGTH])
        for start in range(0, len(inputs), LENGTH)
    ]


def build_vocabulary(training: Iterable[Tokens], size: int) -> dict[str, int]:
    """Number the most frequent input tokens by decreasing frequency, and alphabetically for equal frequency.

    Args:
        training: Training sequences.
        size: Size of the vocabulary. 0 is padding and 1 is any other word.
    """
    counts = Counter(token for tokens in training for token in tokens.inputs)
    counts.pop(PAD_WORD, None)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {PAD_WORD: PAD, **{word: number for number, word in enumerate(ranked, start=2)}}


def drop_unknown_words(samples: Iterable[Tokens], words: Collection[str]) -> list[Tokens]:
    """Remove unknown words from sequences and fill them up with padding. Empty sequences are dropped.

    Args:
        samples: The sequences.
        words: Known words.

    >>> tokens = Tokens(["<BOS>", "hi", "zyx", "<EOS>"], ["hi", "zyx", "<EOS>", "<PAD>"])
    >>> drop_unknown_words([tokens], ["<BOS>", "hi", "<EOS>"])
    [Tokens(inputs=['<BOS>', 'hi', '<EOS>', '<PAD>'], targets=['hi', '<EOS>', '<PAD>', '<PAD>'])]
    """
    known = {*words, PAD_WORD}
    remaining = []
    for tokens in samples:
        kept = [token for token in (*tokens.inputs, tokens.targets[-1]) if token in known]
        inputs, targets = (part + [PAD_WORD] * (len(tokens.inputs) - len(part)) for part in (kept[:-1], kept[1:]))
        if set(inputs) != {PAD_WORD}:
            remaining.append(Tokens(inputs, targets))
    return remaining


def number_words(samples: Sequence[Tokens], words: Mapping[str, int], size: int) -> Samples:
    """Convert sequences to numbers, one row per sequence.

    Targets of padding do not count and become `size`, which is no word. As in LEAF, the target of `<EOS>` counts and is
    `<PAD>`.

    Args:
        samples: The sequences.
        words: Numbers of the words.
        size: Size of the vocabulary.

    Returns:
        Inputs and targets.
    """
    inputs, targets = (_table([part[which] for part in samples], words) for which in (0, 1))
    padding = np.array([[token == PAD_WORD for token in tokens.inputs] for tokens in samples])
    return inputs, np.where(padding, np.int16(size), targets)


def _table(rows: Sequence[Sequence[str]], words: Mapping[str, int]) -> NDArray[np.int16]:
    return np.array([[words.get(token, UNKNOWN) for token in row] for row in rows], dtype=np.int16)


ByUser = dict[str, list[Tokens]]


def read_reddit(folder: Path) -> tuple[ByUser, ByUser]:
    """Read LEAF's JSON.

    Returns:
        The training sequences and the test sequences of every user.

    Raises:
        BadData: If a file or a comment is invalid, or there are no test files.
    """
    files = leaf_files(folder)
    if not files["test"]:
        raise BadData(f"{folder} has no test/*.json; LEAF's Reddit data have train, val and test")
    return _read_part(files["train"]), _read_part(files["test"])


def _read_part(files: Iterable[Path]) -> ByUser:
    return {user.name: _read_sequences(user) for user in leaf_users(files, exact_counts=False)}


def _read_sequences(user: LeafUser) -> list[Tokens]:
    sequences: list[Tokens] = []
    for index, (comment, label) in enumerate(zip(user.x, user.y, strict=True)):
        where = f"{user.where}, comment {index}"
        targets = label.get("target_tokens") if isinstance(label, dict) else None
        for what, part in (("x", comment), ("target_tokens of y", targets)):
            if not _is_table(part):
                raise BadData(f"{where}: {what} must be a list of sequences of {LENGTH} words, not {part!r:.60}")
        if targets is None or len(comment) != len(targets):
            raise BadData(f"{where} has {len(comment)} sequences in x but {len(targets or ())} in target_tokens")
        sequences += map(Tokens, comment, targets)
    if not sequences:
        raise BadData(f"{user.where} has no sequences; remove the user or add a sequence")
    return sequences


def _is_table(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == LENGTH and all(isinstance(token, str) for token in row) for row in rows
    )


_ADDRESSED = re.compile(r"^\S+:(?=\s)")
_TOKEN = re.compile(r"<[a-z]+>|[a-z0-9]+(?:['-][a-z0-9]+)*|[^\sa-z0-9]+")
_LINK = re.compile(r"(?:https?://|www\.)\S+")


def read_irc(path: Path) -> dict[str, list[list[str]]]:
    """Read chat messages as words, by user and in order of time. Messages without words are dropped.

    Raises:
        BadData: If a line is invalid.
    """
    stamped: dict[str, list[tuple[str, str, int, list[str]]]] = {}
    for number, record in enumerate(json_lines(path), start=1):
        user, day, time, text = (record.get(key) for key in ("user", "day", "t", "text"))
        if not (isinstance(user, int) and all(isinstance(part, str) for part in (day, time, text))):
            raise BadData(f"{path}, line {number}: a message needs user (number), day, t and text, not {record!r:.80}")
        message = split_words(str(text))
        if message:
            stamped.setdefault(f"user{user:05d}", []).append((str(day), str(time), number, message))
    return {user: [entry[3] for entry in sorted(entries)] for user, entries in stamped.items()}


def split_words(text: str) -> list[str]:
    """Split a message into lower-case words and runs of other ASCII characters.

    As in LEAF, a link becomes `<url>`, and the name of the addressee becomes `<user>`.

    >>> split_words("ann: You don't need https://example.org !")
    ['<user>', 'you', "don't", 'need', '<url>', '!']
    """
    plain = _ADDRESSED.sub("<user> ", text.encode("ascii", "ignore").decode().strip())
    return _TOKEN.findall(_LINK.sub(" <url> ", plain).lower())


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
