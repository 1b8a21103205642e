"""Both editions of Gutenberg's complete works are cut into the speeches of roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.shakespeare import Speech, read_gutenberg

OF_1994 = """\
This is the complete works.

1609

THE SONNETS

by William Shakespeare

                     1
  From fairest creatures we desire increase,
  That thereby beauty. rose might never die,
    But as the riper should by time decease.

THE END

<<THIS ELECTRONIC VERSION IS NOT FOR SALE.>>

1603

ALLS WELL THAT ENDS WELL

by William Shakespeare


Dramatis Personae

  KING OF FRANCE
  A WIDOW OF FLORENCE.

ACT I. SCENE 1.
Rousillon. The COUNT'S palace

Enter BERTRAM and LAFEU

  COUNTESS. In delivering my son from me, I bury a second husband.
  LAFEU. You shall find of the King a husband, madam; you, sir, a
    father. He that so generally is at all times good must of
    necessity hold his virtue to you.
  Countess. What hope is there?            Exit

THE END

1593

THE COMEDY OF ERRORS


by William Shakespeare

ACT I. SCENE 1

A hall

AEGEON. Proceed, Solinus, to procure my fall,
And by the doom of death end woes and all.
DUKE. Merchant of Syracuse, plead no more;

<<THIS ELECTRONIC VERSION>>
Not a speech.
ACT II. SCENE 1
DUKE. Well.
"""

OF_TODAY = """\
\ufeffThe Project Gutenberg eBook of The Complete Works

                    Contents

    THE SONNETS
    THE TRAGEDY OF HAMLET, PRINCE OF DENMARK

THE SONNETS

From fairest creatures we desire increase,

THE TRAGEDY OF HAMLET, PRINCE OF DENMARK

ACT I

SCENE I. Elsinore.

Enter Francisco and Barnardo, two sentinels.

BARNARDO.
Who’s there?

FRANCISCO.
Nay, answer me. Stand and unfold yourself.
[_Aside._]
Long live the King!

Enter Horatio.

FIRST CLOWN.
[_Sings._]

BARNARDO.
He.
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "100.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_edition_of_1994(tmp_path: Path) -> None:
    speeches = read_gutenberg(write(tmp_path, OF_1994))
    play = "ALLS WELL THAT ENDS WELL"
    assert speeches[:3] == [
        Speech(play, "COUNTESS", ("In delivering my son from me, I bury a second husband.",)),
        Speech(
            play,
            "LAFEU",
            (
                "You shall find of the King a husband, madam; you, sir, a",
                "father. He that so generally is at all times good must of",
                "necessity hold his virtue to you.",
            ),
        ),
        Speech(play, "COUNTESS", ("What hope is there?            Exit",)),
    ]


def test_the_play_without_indentation(tmp_path: Path) -> None:
    found = read_gutenberg(write(tmp_path, OF_1994))
    speeches = [speech for speech in found if speech.play == "THE COMEDY OF ERRORS"]
    assert [(speech.role, speech.lines) for speech in speeches] == [
        ("AEGEON", ("Proceed, Solinus, to procure my fall,", "And by the doom of death end woes and all.")),
        ("DUKE", ("Merchant of Syracuse, plead no more;",)),
        ("DUKE", ("Well.",)),
    ]


def test_the_edition_of_today(tmp_path: Path) -> None:
    speeches = read_gutenberg(write(tmp_path, OF_TODAY))
    assert {speech.play for speech in speeches} == {"THE TRAGEDY OF HAMLET, PRINCE OF DENMARK"}
    assert [(speech.role, speech.lines) for speech in speeches] == [
        ("BARNARDO", ("Who’s there?",)),
        ("FRANCISCO", ("Nay, answer me. Stand and unfold yourself.", "Long live the King!")),
        ("BARNARDO", ("He.",)),
    ]


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"100\.txt has no speech"):
        read_gutenberg(write(tmp_path, "It was a dark and stormy night.\n" * 50))
    path = tmp_path / "100.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match=r"100\.txt is not UTF-8 text: byte 0 is 0xff"):
        read_gutenberg(path)
