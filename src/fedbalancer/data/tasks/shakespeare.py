"""Which character comes next? 80 characters of what a role of Shakespeare says, and the one after them.

A client is a role of a play. The official text is Project Gutenberg's; `moby` is a stand-in, the same plays in another
edition. As in LEAF and the paper, a fifth of the samples is drawn as whole roles, the last one cut to fit; nine in ten
of these roles train, the others are the test. LEAF's own draw depends on the order in which a file system lists files,
so ours is another one; its seed was chosen among 6000 to give with `moby` the published number of 171 roles (845,231
samples in the paper).

The paper's settings are in `SETTINGS`. At `small` 100 roles train on at most 300 samples each, spread evenly over what
they say, and 60 others test on at most 50; the model is given the last 10 of the 80 characters, its LSTMs are 32
instead of 256 wide, batches are of 30, the learning rate is 1.2 and the budget 80 rounds. Transfers take the time of
the published model.

Measured at `small` with `moby`: `fedavg+wfa`, seed 0, has .18 .24 .32 .33 .34 after rounds 10 20 30 40 49, which is its
budget, and a test loss of 2.74 2.43 2.41 2.44 from round 20 on; its last five evaluations have a standard deviation of
.010 while they rise. `fedavg+1t` (seed 1, 100 rounds) leaves out who says much on a slow phone, learns the others by
heart (the loss turns at round 35) and stays at .31 from round 45 on, last five .315 with a deviation of .007. Always a
blank is right in .18. Smaller batches, or fewer samples a role, made the loss turn earlier and higher (100 samples, B =
10: at round 20), and five clients a round, at a rate of 2, made single evaluations of `fedavg+1t` collapse. A run takes
30 s on one core that others use too.

Departures: characters outside LEAF's alphabet are mapped as `data.readers.plays.encode` says. "All's Well That Ends
Well" is read, which LEAF's script passes over. `load(split="time")` tests on the last tenth of every role instead
(LEAF's other split takes a tenth at random, so that nearly every test window overlaps windows of the training).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.data import Prepared, Source, check_user_count, checksum, choose_source, load_or_prepare
from fedbalancer.data.readers.shakespeare import ALPHABET, WINDOW, Span, Windows, read_gutenberg, read_moby, role_texts
from fedbalancer.data.task import Task
from fedbalancer.data.tasks.layers import make_text_model

if TYPE_CHECKING:
    import torch

_CITATION = "S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; B. McMahan et al., AISTATS 2017"
SOURCES = (
    Source(
        task="shakespeare",
        variant="gutenberg",
        title="Project Gutenberg's complete works, edition of 1994, which LEAF reads",
        files=("100.txt",),
        licence="free for personal use, not commercially (the edition's own terms)",
        citation=_CITATION,
        urls=("https://www.gutenberg.org/files/100/old/1994-01-100.zip",),
        by_hand="fetch 1994-01-100.zip from gutenberg.org/files/100/old and unpack its 100.txt into the data folder",
    ),
    Source(
        task="shakespeare",
        variant="gutenberg-today",
        title="Project Gutenberg's complete works, edition of today",
        files=("pg100.txt",),
        licence="public domain in the USA (Project Gutenberg License)",
        citation=_CITATION,
        urls=("https://www.gutenberg.org/cache/epub/100/pg100.txt",),
        by_hand="fetch gutenberg.org/cache/epub/100/pg100.txt into the data folder",
    ),
    Source(
        task="shakespeare",
        variant="moby",
        title="37 plays of the Moby edition, by speech (a stand-in)",
        files=("shakespeare_moby_speeches.jsonl.xz",),
        licence="public domain",
        citation="The Complete Moby(tm) Shakespeare",
        official=False,
    ),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"clients_per_round": 10, "batch_size": 100, "epochs": 5, "learning_rate": 0.8, "rounds": 40},
    "small": {"clients_per_round": 10, "batch_size": 30, "epochs": 5, "learning_rate": 1.2, "rounds": 80},
}
HIDDEN = {"paper": 256, "small": 32}
CHARACTERS = {"paper": WINDOW, "small": 10}
"""How many of the 80 characters before the next one the model is given: the last ones."""
MODEL_BYTES = 3_271_488
"""Of the published model, at every scale: the batch latencies are those of the published model too."""
SHARE = {"paper": 0.2, "small": 1.0}
"""Of all samples, how much is drawn as whole roles."""
USERS = {"paper": None, "small": 100}
TEST_USERS = {"paper": None, "small": 60}
"""Roles that train and that test; None for nine and one in ten of those drawn."""
MOST_SAMPLES = {"paper": None, "small": 300}
MOST_TEST_SAMPLES = {"paper": None, "small": 50}
"""A role's samples, to train and to test, are at most these, spread evenly over what it says."""
TRAIN_SHARE = 0.9
DATA_SEED = 5862
SPLITS = ("user", "time")


def load(scale: str = "small", users: int | None = None, variant: str | None = None, *, split: str = "user") -> Task:
    """The task with `users` training roles (all of the scale's unless told)."""
    if scale not in SETTINGS:
        raise UnknownName("scale", scale, SETTINGS)
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    source = choose_source(SOURCES, variant)
    prepared = load_or_prepare(
        "shakespeare", {"text": [checksum(path) for path in source.paths]}, partial(_prepare, source)
    )
    drawn = _draw_users(prepared, scale)
    train, test = (_by_user if split == "user" else _by_time)(drawn, scale)
    train = train[: check_user_count(users, len(train), f"shakespeare at scale {scale}")]
    text, characters = prepared.arrays["text"], CHARACTERS[scale]
    settings = SETTINGS[scale]
    return Task(
        clients=Windows(text, tuple(train), characters),
        test=Windows(text, tuple(test), characters).concatenate(),
        model=partial(make_model, HIDDEN[scale]),
        name="shakespeare",
        variant=source.variant if split == "user" else f"{source.variant} by time",
        eval_every=5,
        latency="shakespeare",
        model_bytes=MODEL_BYTES,
        classes=len(ALPHABET),
        notes={"split": split, "most_samples": MOST_SAMPLES[scale], "hidden": HIDDEN[scale], "test_roles": len(test)},
        **{**settings, "clients_per_round": min(settings["clients_per_round"], len(train))},
    )


def load_by_time(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """The task with the split by time: `fedbalancer run fedbalancer.data.tasks.shakespeare:load_by_time`."""
    return load(scale, users, variant, split="time")


def make_model(hidden: int = 256) -> torch.nn.Module:
    """Embedding of 8, two layers of LSTM, and a dense layer on the last state."""
    return make_text_model(symbols=len(ALPHABET), embedding=8, hidden=hidden)


def _prepare(source: Source) -> Prepared:
    path: Path = source.paths[0]
    texts = role_texts(read_moby(path) if source.variant == "moby" else read_gutenberg(path), str(path))
    lengths = [len(text) for text in texts.values()]
    return Prepared({"text": np.concatenate(list(texts.values()))}, {"names": list(texts), "lengths": lengths})


def _draw_users(prepared: Prepared, scale: str) -> list[Span]:
    """Roles in an order drawn once and for all, until the scale's share of the samples is met; the last one is cut."""
    names, lengths = prepared.meta["names"], np.array(prepared.meta["lengths"], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    quota = int(SHARE[scale] * (lengths - WINDOW).sum())
    spans: list[Span] = []
    for role in stream(DATA_SEED, "shakespeare roles").permutation(len(names)):
        samples = min(int(lengths[role]) - WINDOW, quota)
        if samples < 1:
            break
        spans.append(Span(names[role], int(starts[role]), samples))
        quota -= samples
    return spans


def _by_user(spans: list[Span], scale: str) -> tuple[list[Span], list[Span]]:
    cut = max(1, int(TRAIN_SHARE * len(spans)))
    train, test = spans[:cut][: USERS[scale]], spans[cut:][: TEST_USERS[scale]]
    most = MOST_SAMPLES[scale], MOST_TEST_SAMPLES[scale]
    return [span.thin(most[0]) for span in train], [span.thin(most[1]) for span in test]


def _by_time(spans: list[Span], scale: str) -> tuple[list[Span], list[Span]]:
    """The last tenth of a role's samples is the test. Its windows begin in what was trained on; its labels do not."""
    train, test = [], []
    for span in _by_user([span for span in spans if span.samples > 1], scale)[0]:
        first = max(1, int(TRAIN_SHARE * span.samples))
        train.append(span._replace(samples=first))
        test.append(span._replace(start=span.start + first * span.step, samples=span.samples - first))
    return train, test
