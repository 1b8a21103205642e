"""Project Gutenberg's complete works of Shakespeare, cut into speeches.

Gutenberg has had two editions under one number. LEAF reads that of 1994 (`100.txt`), where a play begins with its title
some lines above "by William Shakespeare", a speech with two blanks and the role, and goes on with four:

      COUNTESS. What hope is there of his Majesty's amendment?
      LAFEU. He hath abandon'd his physicians, madam; under whose
        practices he hath persecuted time with hope.

One play of it, "The Comedy of Errors", lacks this indentation. The edition of today (`pg100.txt`) lists the titles at
its beginning, repeats them above the plays, and has the role on a line of its own and an empty line after the speech:

    BARNARDO.
    Who's there?
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.plays import Speech

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
