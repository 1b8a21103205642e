"""What the roles of plays say, as numbers of characters, and the windows that slide over them."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples

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

    def thinned(self, most: int | None) -> Span:
        """At most `most` of the windows, spread evenly: neighbours have nearly all their characters in common.

        >>> Span("a", 0, 100).thinned(40)
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

    def pooled(self) -> Samples:
        """The samples of all clients, one after the other. Two bytes a character: this is a copy."""
        features, labels = zip(*(self.windows(span) for span in self.spans), strict=True)
        return np.concatenate(features, dtype=np.int16), np.concatenate(labels, dtype=np.int16)
