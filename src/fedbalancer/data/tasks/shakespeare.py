"""Shakespeare: which character comes next? A sample is 80 characters of the text of a role, and the next character.

A client is a role of a play. The official text is Project Gutenberg's; the stand-in `moby` has the same plays in
another edition. As in LEAF and the paper, a fifth of the samples is drawn as whole roles, the last one cut to fit. 90%
of these roles train, and the others are test data. LEAF's own draw depends on the order in which a file system lists
files, so this draw differs. Its seed was chosen among 6000 to give the published number of 171 roles with `moby`
(845,231 samples in the paper).

The paper's settings are in `SETTINGS`. At `small`, 100 roles train on at most 300 samples each, evenly spaced in their
text, and 60 others test on at most 50. The model receives the last 10 of the 80 characters, its LSTM layers have width
32 instead of 256, batches have 30 samples, the learning rate is 1.2 and the budget is 80 rounds. Transfer times are
those of the published model.

Measured at `small` with `moby`: `fedavg+wfa`, seed 0, has accuracy 0.18, 0.24, 0.32, 0.33, 0.34 after rounds 10, 20,
30, 40, 49, the end of its budget, and a test loss of 2.74, 2.43, 2.41, 2.44 from round 20 on. Its last five
evaluations have standard deviation 0.010 while they rise. `fedavg+1t` (seed 1, 100 rounds) drops roles with much text
on slow phones, overfits the others (the loss rises after round 35) and stays at 0.31 from round 45 on; its last five
evaluations have mean 0.315 and standard deviation 0.007. Always predicting a space gives 0.18. With smaller batches,
or fewer samples per role, the loss rose earlier (100 samples, B = 10: after round 20). With five clients per round and
a learning rate of 2, single evaluations of `fedavg+1t` collapsed. A run takes 30 s on one shared core.

Differences from LEAF: characters outside LEAF's alphabet are mapped by `data.readers.shakespeare.encode`. "All's Well
That Ends Well" is included, which LEAF's script skips. `load(split="time")` tests on the last tenth of every role;
LEAF's other split takes a random tenth, so that nearly every test window overlaps training windows.
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
        by_hand="download 1994-01-100.zip from gutenberg.org/files/100/old and unpack its 100.txt into the data folder",
    ),
    Source(
        task="shakespeare",
        variant="gutenberg-today",
        title="Project Gutenberg's complete works, edition of today",
        files=("pg100.txt",),
        licence="public domain in the USA (Project Gutenberg License)",
        citation=_CITATION,
        urls=("https://www.gutenberg.org/cache/epub/100/pg100.txt",),
        by_hand="download gutenberg.org/cache/epub/100/pg100.txt into the data folder",
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
"""Number of the last characters of a window that the model receives."""
MODEL_BYTES = 3_271_488
"""Size of the published model, used at every scale because the batch latencies are also those of that model."""
SHARE = {"paper": 0.2, "small": 1.0}
"""Share of all samples that is drawn as whole roles."""
USERS = {"paper": None, "small": 100}
TEST_USERS = {"paper": None, "small": 60}
"""Number of training roles and test roles. None: 90% and 10% of the drawn roles."""
MOST_SAMPLES = {"paper": None, "small": 300}
MOST_TEST_SAMPLES = {"paper": None, "small": 50}
"""Largest number of training samples and test samples of a role, evenly spaced in its text."""
TRAIN_SHARE = 0.9
DATA_SEED = 5862
SPLITS = ("user", "time")


def load(scale: str = "small", users: int | None = None, variant: str | None = None, *, split: str = "user") -> Task:
    """Load the task.

    Args:
        scale: "small" or "paper".
        users: Number of training roles. None: all of the scale.
        variant: Name of the data set. None: the first one whose files exist.
        split: "user" (test on other roles) or "time" (test on the last tenth of every role).

    Raises:
        MissingData: If the data are not on this computer.
    """
    if scale not in SETTINGS:
        raise UnknownName("scale", scale, SETTINGS)
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    source = choose_source(SOURCES, variant)
    prepared = load_or_prepare(
        "shakespeare", {"text": [checksum(path) for path in source.paths]}, partial(_prepare, source)
    )
    drawn = _draw_users(prepared, scale)
    train, test = (_split_by_user if split == "user" else _split_by_time)(drawn, scale)
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
        latency_batch_size=settings["batch_size"],  # a small batch stands for a published one
        model_bytes=MODEL_BYTES,
        classes=len(ALPHABET),
        notes={"split": split, "most_samples": MOST_SAMPLES[scale], "hidden": HIDDEN[scale], "test_roles": len(test)},
        **{**settings, "clients_per_round": min(settings["clients_per_round"], len(train))},
    )


def load_by_time(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """Load the task with the split by time: `fedbalancer run fedbalancer.data.tasks.shakespeare:load_by_time`.

    See `load` for the arguments.
    """
    return load(scale, users, variant, split="time")


def make_model(hidden: int = 256) -> torch.nn.Module:
    """Make the published model: an embedding of size 8, two LSTM layers of size `hidden`, and a dense layer."""
    return make_text_model(symbols=len(ALPHABET), embedding=8, hidden=hidden)


def _prepare(source: Source) -> Prepared:
    path: Path = source.paths[0]
    texts = role_texts(read_moby(path) if source.variant == "moby" else read_gutenberg(path), str(path))
    lengths = [len(text) for text in texts.values()]
    return Prepared({"text": np.concatenate(list(texts.values()))}, {"names": list(texts), "lengths": lengths})


def _draw_users(prepared: Prepared, scale: str) -> list[Span]:
    """Draw roles, always in the same order, up to the scale's share of the samples. The last role is cut."""
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


def _split_by_user(spans: list[Span], scale: str) -> tuple[list[Span], list[Span]]:
    cut = max(1, int(TRAIN_SHARE * len(spans)))
    train, test = spans[:cut][: USERS[scale]], spans[cut:][: TEST_USERS[scale]]
    most = MOST_SAMPLES[scale], MOST_TEST_SAMPLES[scale]
    return [span.thin(most[0]) for span in train], [span.thin(most[1]) for span in test]


def _split_by_time(spans: list[Span], scale: str) -> tuple[list[Span], list[Span]]:
    """Test on the last tenth of a role's samples. Their windows overlap training windows; their labels do not."""
    train, test = [], []
    for span in _split_by_user([span for span in spans if span.samples > 1], scale)[0]:
        first = max(1, int(TRAIN_SHARE * span.samples))
        train.append(span._replace(samples=first))
        test.append(span._replace(start=span.start + first * span.step, samples=span.samples - first))
    return train, test
