"""Readers for the plays of Shakespeare, and windows over the text of each role.

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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.data.readers.files import json_lines

WINDOW = 80
ALPHABET = "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""The 80 characters of LEAF, in its order. The last is rare enough in plays to stand for every other character, as it
does there among the labels."""

_UNKNOWN = ALPHABET[-1]
_OTHERS = re.compile(f"[^{re.escape(ALPHABET)}]")
_NUMBERS = np.full(128, ALPHABET.index(_UNKNOWN), dtype=np.uint8)
_NUMBERS[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
_TYPOGRAPHY = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "–": "-", "…": "...", "Æ": "Ae", "æ": "ae", "œ": "oe", "_": ""}
)


class Speech(NamedTuple):
    """What a role says before another one speaks."""

    play: str
    role: str
    lines: tuple[str, ...]


def encode(text: str) -> NDArray[np.uint8]:
    """The numbers of the characters. Quotes, dashes and accents of typographers become plain ASCII, underscores (the
    italics of Project Gutenberg) go; what is not in the alphabet then becomes its last character.

    >>> encode("é}\u2019&").tolist()
    [57, 79, 5, 4]
    """
    plain = unicodedata.normalize("NFKD", text.translate(_TYPOGRAPHY))
    known = _OTHERS.sub(_UNKNOWN, "".join(c for c in plain if not unicodedata.combining(c)))
    return _NUMBERS[np.frombuffer(known.encode("ascii"), dtype=np.uint8)]


def role_texts(speeches: Iterable[Speech], where: str) -> dict[str, NDArray[np.uint8]]:
    """The text of every role of every play, all its lines joined by blanks, in order of first appearance.

    As in LEAF, roles of the same name in different plays are different people, and roles of at most two lines, or of
    too little text for one window and the character after it, are left out.
    """
    lines: dict[str, list[str]] = {}
    for speech in speeches:
        lines.setdefault(role_name(speech.play, speech.role), []).extend(speech.lines)
    spoken = {name: encode(" ".join(" ".join(said).split())) for name, said in lines.items() if len(said) > 2}
    texts = {name: text for name, text in spoken.items() if len(text) > WINDOW}
    if not texts:
        raise BadData(f"{where} has no role with more than two lines and {WINDOW} characters; is it the right file?")
    return texts


def role_name(play: str, role: str) -> str:
    """How LEAF names a client.

    >>> role_name("All's Well That Ends Well", "First Lord")
    'ALL_S_WELL_THAT_ENDS_WELL_FIRST_LORD'
    """
    return re.sub(r"\W+", "_", f"{play}_{role}".strip().upper())


class Span(NamedTuple):
    """A client's part of the text: `samples` windows, the first of which starts at `start`, the others `step` apart."""

    name: str
    start: int
    samples: int
    step: int = 1

    def thin(self, most: int | None) -> Span:
        """At most `most` of the windows, spread evenly: neighbours have nearly all their characters in common.

        >>> Span("a", 0, 100).thin(40)
        Span(name='a', start=0, samples=40, step=2)
        """
        if most is None or self.samples <= most:
            return self
        return self._replace(samples=most, step=self.step * (self.samples // most))


@dataclass(frozen=True, eq=False)
class Windows(Mapping[str, Samples]):
    """Clients whose samples are windows of 80 characters of their text, each with the character after it; of a window
    only the last `characters` are given.

    Only the text is kept, one byte a character; windows are made when they are asked for, as views.
    """

    text: NDArray[np.uint8]
    spans: tuple[Span, ...]
    characters: int = WINDOW
    _by_name: dict[str, Span] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {span.name: span for span in self.spans})

    @property
    def sizes(self) -> dict[str, int]:
        return {span.name: span.samples for span in self.spans}

    def __getitem__(self, client: str) -> Samples:
        return self.windows(self._by_name[client])

    def __iter__(self) -> Iterator[str]:
        return (span.name for span in self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    def windows(self, span: Span) -> Samples:
        """Features and labels of a part."""
        end = span.start + (span.samples - 1) * span.step + WINDOW + 1
        part = np.asarray(self.text[span.start : end], dtype=np.int64)
        rows = sliding_window_view(part, WINDOW + 1)[:: span.step]
        return rows[:, WINDOW - self.characters : WINDOW], rows[:, WINDOW]

    def concatenate(self) -> Samples:
        """The samples of all clients, one after the other. Two bytes a character: this is a copy."""
        features, labels = zip(*(self.windows(span) for span in self.spans), strict=True)
        return np.concatenate(features, dtype=np.int16), np.concatenate(labels, dtype=np.int16)


_AUTHOR = "by William Shakespeare"
_TITLE_LINES = 8
"""A title is at most this many lines above the author's name."""
_INDENTED = (re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)"))
_FLAT = (re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"([^<\s].*)"))
_FLAT_PLAY = "THE COMEDY OF ERRORS"
_LISTED_TITLE = re.compile(r" {2,}([A-Z][A-Z’'‘,;:. -]+)")
_ROLE_LINE = re.compile(r"([A-Z][A-Z’' -]+)\.")
_NO_ROLE = re.compile(r"(ACT|SCENE|EPILOGUE|PROLOGUE|THE END|FINIS)\b")


def read_gutenberg(path: Path) -> list[Speech]:
    """The speeches of all plays of either edition, in the order of the file."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadData(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#x}") from error
    speeches = _of_plays(_speeches_1994(lines)) or _of_plays(_speeches_today(lines))
    if not speeches:
        raise BadData(
            f"{path} has no speech as Gutenberg's complete works have them: '  ROLE. words' below {_AUTHOR!r}, or "
            "'ROLE.' on a line of its own below a title of the contents"
        )
    return speeches


def _of_plays(speeches: Iterable[Speech]) -> list[Speech]:
    """Without the poems, where a line may look like one of a role, but hardly two like those of two roles."""
    found = list(speeches)
    roles: dict[str, set[str]] = {}
    for speech in found:
        roles.setdefault(speech.play, set()).add(speech.role)
    return [speech for speech in found if len(roles[speech.play]) > 1]


def _speeches_1994(lines: Sequence[str]) -> Iterator[Speech]:
    play, role = "", ""
    said: list[str] = []
    for number, line in enumerate(lines):
        if _AUTHOR in line:
            if role:
                yield Speech(play, role, tuple(said))
            play, role = _title_above(lines, number), ""
            continue
        opening, going_on = _FLAT if play == _FLAT_PLAY else _INDENTED
        found = opening.match(line) if play else None
        if found and role:
            yield Speech(play, role, tuple(said))
        if found:
            # Some roles are spelled in two ways ("SIR Toby"); acts of the flat play look like roles.
            role = "" if found[1].startswith("ACT ") else found[1].upper()
            said = [found[2]]
        elif role and (more := going_on.match(line)):
            said.append(more[1])
        elif role and play == _FLAT_PLAY and line.startswith("<"):
            yield Speech(play, role, tuple(said))
            role = ""
    if role:
        yield Speech(play, role, tuple(said))


def _title_above(lines: Sequence[str], number: int) -> str:
    above = [line.strip() for line in lines[max(0, number - _TITLE_LINES) : number] if line.strip()]
    return above[-1] if above else ""


def _speeches_today(lines: Sequence[str]) -> Iterator[Speech]:
    titles = {found[1].strip() for line in lines if (found := _LISTED_TITLE.fullmatch(line.rstrip()))}
    play, role = "", ""
    said: list[str] = []
    for line in [*lines, ""]:
        text = line.strip()
        if line.rstrip() in titles:
            play, role = text, ""
        elif found := _ROLE_LINE.fullmatch(text):
            role, said = ("" if _NO_ROLE.match(found[1]) or not play else found[1]), []
        elif role and not text:
            if said:
                yield Speech(play, role, tuple(said))
            role = ""
        elif role and not text.startswith(("[", "_")):
            said.append(text)


def read_moby(path: Path) -> list[Speech]:
    """All speeches; what several say together is said by each."""
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
