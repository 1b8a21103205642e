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

Differences from LEAF: characters outside LEAF's alphabet are mapped by `encode`. "All's Well
That Ends Well" is included, which LEAF's script skips. `load(split="time")` tests on the last tenth of every role;
LEAF's other split takes a random tenth, so that nearly every test window overlaps training windows.

Files of the plays, and windows over the text of each role:

Project Gutenberg has published two editions of the complete works. LEAF reads the one of 1994 (`100.txt`). There, the
title of a play is some lines above "by William Shakespeare", the first line of a speech starts with two spaces and the
role, and the other lines start with four spaces:

      COUNTESS. What hope is there of his Majesty's amendment?
      LAFEU. He hath abandon'd his physicians, madam; under whose
        practices he hath persecuted time with hope.

One play, "The Comedy of Errors", has no such indentation. The current edition (`pg100.txt`) lists the titles at the
beginning and repeats them above the plays. The role has its own line, and an empty line ends the speech:

    BARNARDO.
    Who's there?

The Moby edition is a file with one speech per line of JSON: play, speaker (one or several) and lines.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
from fedbalancer.data import Prepared, Source, check_user_count, checksum, choose_source, load_or_prepare
from fedbalancer.data.readers import json_lines
from fedbalancer.data.task import Task
from fedbalancer.data.tasks.layers import make_text_model

if TYPE_CHECKING:
    import torch


WINDOW = 80
ALPHABET = "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""The 80 characters of LEAF, in LEAF's order. The last one stands for every other character, as in LEAF's labels."""

_UNKNOWN = ALPHABET[-1]
_OTHERS = re.compile(f"[^{re.escape(ALPHABET)}]")
_NUMBERS = np.full(128, ALPHABET.index(_UNKNOWN), dtype=np.uint8)
_NUMBERS[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
_TYPOGRAPHY = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "–": "-", "…": "...", "Æ": "Ae", "æ": "ae", "œ": "oe", "_": ""}
)


class Speech(NamedTuple):
    """The consecutive lines of one role.

    Args:
        play: Title of the play.
        role: Name of the role.
        lines: The lines.
    """

    play: str
    role: str
    lines: tuple[str, ...]


def encode(text: str) -> NDArray[np.uint8]:
    """Convert text to numbers of characters.

    Typographic quotes, dashes and accents become ASCII, and underscores (Project Gutenberg's italics) are removed.
    Other characters outside the alphabet become its last character.

    >>> encode("é}\u2019&").tolist()
    [57, 79, 5, 4]
    """
    plain = unicodedata.normalize("NFKD", text.translate(_TYPOGRAPHY))
    known = _OTHERS.sub(_UNKNOWN, "".join(c for c in plain if not unicodedata.combining(c)))
    return _NUMBERS[np.frombuffer(known.encode("ascii"), dtype=np.uint8)]


def role_texts(speeches: Iterable[Speech], where: str) -> dict[str, NDArray[np.uint8]]:
    """Return the encoded text of every role, in order of first appearance.

    As in LEAF, roles of the same name in different plays are different clients. Roles with at most two lines, or with
    too little text for one window and the next character, are dropped.

    Args:
        speeches: The speeches.
        where: Path of the data, for errors.

    Raises:
        BadData: If no role is left.
    """
    lines: dict[str, list[str]] = {}
    for speech in speeches:
        lines.setdefault(role_name(speech.play, speech.role), []).extend(speech.lines)
    encoded = {name: encode(" ".join(" ".join(of_role).split())) for name, of_role in lines.items() if len(of_role) > 2}
    texts = {name: text for name, text in encoded.items() if len(text) > WINDOW}
    if not texts:
        raise BadData(f"{where} has no role with more than two lines and {WINDOW} characters; is it the right file?")
    return texts


def role_name(play: str, role: str) -> str:
    """Return LEAF's client id of a role.

    >>> role_name("All's Well That Ends Well", "First Lord")
    'ALL_S_WELL_THAT_ENDS_WELL_FIRST_LORD'
    """
    return re.sub(r"\W+", "_", f"{play}_{role}".strip().upper())


class Span(NamedTuple):
    """A client's windows in the text.

    Args:
        name: Client id.
        start: Start of the first window.
        samples: Number of windows.
        step: Distance between the starts of windows.
    """

    name: str
    start: int
    samples: int
    step: int = 1

    def thin(self, most: int | None) -> Span:
        """Return at most `most` windows, evenly spaced, because neighbouring windows are nearly the same.

        >>> Span("a", 0, 100).thin(40)
        Span(name='a', start=0, samples=40, step=2)
        """
        if most is None or self.samples <= most:
            return self
        return self._replace(samples=most, step=self.step * (self.samples // most))


@dataclass(frozen=True, eq=False)
class Windows(Mapping[str, Samples]):
    """Clients whose samples are windows of their text, with the next character as the label.

    Only the text is stored, with one byte per character. Windows are made on demand, as views.

    Args:
        text: Text of all clients.
        spans: Windows of every client.
        characters: Number of characters per sample: the last ones of a window of 80.
    """

    text: NDArray[np.uint8]
    spans: tuple[Span, ...]
    characters: int = WINDOW
    _by_name: dict[str, Span] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {span.name: span for span in self.spans})

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples by client."""
        return {span.name: span.samples for span in self.spans}

    def __getitem__(self, client: str) -> Samples:
        return self.windows(self._by_name[client])

    def __iter__(self) -> Iterator[str]:
        return (span.name for span in self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    def windows(self, span: Span) -> Samples:
        """Return the features and labels of a span."""
        end = span.start + (span.samples - 1) * span.step + WINDOW + 1
        part = np.asarray(self.text[span.start : end], dtype=np.int64)
        rows = sliding_window_view(part, WINDOW + 1)[:: span.step]
        return rows[:, WINDOW - self.characters : WINDOW], rows[:, WINDOW]

    def concatenate(self) -> Samples:
        """Return a copy of the samples of all clients, with two bytes per character."""
        features, labels = zip(*(self.windows(span) for span in self.spans), strict=True)
        return np.concatenate(features, dtype=np.int16), np.concatenate(labels, dtype=np.int16)


_AUTHOR = "by William Shakespeare"
_TITLE_LINES = 8
"""Largest number of lines between a title and the author's name."""
_INDENTED = (re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)"))
_FLAT = (re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"([^<\s].*)"))
_FLAT_PLAY = "THE COMEDY OF ERRORS"
_LISTED_TITLE = re.compile(r" {2,}([A-Z][A-Z’'‘,;:. -]+)")
_ROLE_LINE = re.compile(r"([A-Z][A-Z’' -]+)\.")
_NO_ROLE = re.compile(r"(ACT|SCENE|EPILOGUE|PROLOGUE|THE END|FINIS)\b")


def read_gutenberg(path: Path) -> list[Speech]:
    """Read the speeches of all plays of either edition, in the order of the file.

    Raises:
        BadData: If the file is not a text of Project Gutenberg's complete works.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadData(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#x}") from error
    speeches = _drop_poems(_speeches_1994(lines)) or _drop_poems(_speeches_today(lines))
    if not speeches:
        raise BadData(
            f"{path} has no speech in the form of Gutenberg's complete works: '  ROLE. words' below {_AUTHOR!r}, or "
            "'ROLE.' on its own line below a title of the contents"
        )
    return speeches


def _drop_poems(speeches: Iterable[Speech]) -> list[Speech]:
    """Drop works with only one role: in a poem, some line may look like a role."""
    every = list(speeches)
    roles: dict[str, set[str]] = {}
    for speech in every:
        roles.setdefault(speech.play, set()).add(speech.role)
    return [speech for speech in every if len(roles[speech.play]) > 1]


def _speeches_1994(lines: Sequence[str]) -> Iterator[Speech]:
    play, role = "", ""
    spoken: list[str] = []
    for number, line in enumerate(lines):
        if _AUTHOR in line:
            if role:
                yield Speech(play, role, tuple(spoken))
            play, role = _title_above(lines, number), ""
            continue
        opening, continuation = _FLAT if play == _FLAT_PLAY else _INDENTED
        match = opening.match(line) if play else None
        if match and role:
            yield Speech(play, role, tuple(spoken))
        if match:
            # Some roles are spelled in two ways ("SIR Toby"); acts of the flat play look like roles.
            role = "" if match[1].startswith("ACT ") else match[1].upper()
            spoken = [match[2]]
        elif role and (more := continuation.match(line)):
            spoken.append(more[1])
        elif role and play == _FLAT_PLAY and line.startswith("<"):
            yield Speech(play, role, tuple(spoken))
            role = ""
    if role:
        yield Speech(play, role, tuple(spoken))


def _title_above(lines: Sequence[str], number: int) -> str:
    above = [line.strip() for line in lines[max(0, number - _TITLE_LINES) : number] if line.strip()]
    return above[-1] if above else ""


def _speeches_today(lines: Sequence[str]) -> Iterator[Speech]:
    titles = {match[1].strip() for line in lines if (match := _LISTED_TITLE.fullmatch(line.rstrip()))}
    play, role = "", ""
    spoken: list[str] = []
    for line in [*lines, ""]:
        text = line.strip()
        if line.rstrip() in titles:
            play, role = text, ""
        elif match := _ROLE_LINE.fullmatch(text):
            role, spoken = ("" if _NO_ROLE.match(match[1]) or not play else match[1]), []
        elif role and not text:
            if spoken:
                yield Speech(play, role, tuple(spoken))
            role = ""
        elif role and not text.startswith(("[", "_")):
            spoken.append(text)


def read_moby(path: Path) -> list[Speech]:
    """Read all speeches of the Moby edition. A speech of several roles counts for each of them.

    Raises:
        BadData: If a line is invalid.
    """
    return [
        Speech(record["play"], role, tuple(record["lines"]))
        for number, record in enumerate(json_lines(path), start=1)
        for role in _check_speech(record, f"{path}, line {number}")["speaker"]
    ]


def _check_speech(record: dict[str, Any], where: str) -> dict[str, Any]:
    texts = (record.get("speaker"), record.get("lines"))
    whole = all(isinstance(part, list) and all(isinstance(text, str) for text in part) for part in texts)
    if not (whole and isinstance(record.get("play"), str)):
        raise BadData(f"{where}: a speech needs play (text), speaker and lines (lists of text), not {record!r:.80}")
    return record


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
