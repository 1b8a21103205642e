"""The text of a role becomes numbers of 80 characters and windows over them."""

from __future__ import annotations

import json
import lzma
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData
from fedbalancer.data.tasks.shakespeare import (
    ALPHABET,
    WINDOW,
    Span,
    Speech,
    Windows,
    encode,
    read_gutenberg,
    read_moby,
    role_name,
    role_texts,
)


def test_the_alphabet_has_80_different_characters() -> None:
    assert len(set(ALPHABET)) == len(ALPHABET) == 80


@given(st.text(alphabet=ALPHABET))
def test_known_characters_are_kept(text: str) -> None:
    assert "".join(ALPHABET[number] for number in encode(text)) == text


@given(st.text())
def test_any_text_can_be_encoded(text: str) -> None:
    numbers = encode(text)
    assert numbers.dtype == np.uint8
    assert all(number < 80 for number in numbers)


def test_typography_becomes_plain_and_the_unknown_one_symbol() -> None:
    decoded = "".join(ALPHABET[number] for number in encode("“Æneas’ café” — _Exit._ 5$"))
    assert decoded == '"Aeneas\' cafe" - Exit. 5}'


def test_a_client_is_a_role_of_a_play_with_more_than_two_lines() -> None:
    said = ("A line that is long enough to be read,", "and   another with a gap", "and the last of all of these lines")
    speeches = [
        Speech("One", "KING", said[:2]),
        Speech("Two", "KING", said),
        Speech("One", "FOOL", ("x" * 99, "y" * 99)),
        Speech("One", "PAGE", ("a", "b", "c")),
        Speech("One", "KING", said[2:]),
    ]
    texts = role_texts(speeches, "here")
    assert list(texts) == ["ONE_KING", "TWO_KING"]
    np.testing.assert_array_equal(texts["ONE_KING"], encode(" ".join(said).replace("   ", " ")))
    np.testing.assert_array_equal(texts["ONE_KING"], texts["TWO_KING"])
    with pytest.raises(BadData, match="here has no role"):
        role_texts(speeches[2:4], "here")


def test_names_hold_letters_digits_and_underscores() -> None:
    assert role_name("A Midsummer Night's Dream", "First Fairy") == "A_MIDSUMMER_NIGHT_S_DREAM_FIRST_FAIRY"


@given(st.integers(1, 50), st.integers(0, 30), st.integers(1, 4))
def test_every_window_is_followed_by_its_label(samples: int, start: int, step: int) -> None:
    text = (np.arange(400) ** 2 % 79).astype(np.uint8)
    features, labels = Windows(text, (Span("a", start, samples, step),))["a"]
    assert features.shape == (samples, WINDOW)
    assert features.dtype == labels.dtype == np.int64
    for row in range(samples):
        first = start + row * step
        np.testing.assert_array_equal(features[row], text[first : first + WINDOW])
        assert labels[row] == text[first + WINDOW]


@given(st.integers(1, 5000), st.integers(1, 600))
def test_fewer_windows_stay_inside_the_part(samples: int, most: int) -> None:
    thin = Span("a", 7, samples).thin(most)
    assert thin.samples == min(samples, most)
    assert (thin.samples - 1) * thin.step < samples
    assert Span("a", 7, samples).thin(None).samples == samples


def test_windows_are_clients_whose_sizes_are_known() -> None:
    text = np.zeros(400, dtype=np.uint8)
    clients = Windows(text, (Span("a", 0, 20), Span("b", 100, 30)))
    assert dict(clients.sizes) == {"a": 20, "b": 30}
    assert list(clients) == ["a", "b"]
    assert len(clients["b"][1]) == 30
    features, labels = clients.concatenate()
    assert features.shape == (50, WINDOW)
    assert features.dtype == labels.dtype == np.int16
    assert "c" not in clients
    assert pickle.loads(pickle.dumps(clients)).sizes == clients.sizes


def write(path: Path, *records: object) -> Path:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def test_what_two_say_together_is_said_by_each(tmp_path: Path) -> None:
    path = write(tmp_path / "plays.xz", {"play": "P", "speaker": ["ANN", "BOB"], "lines": ["one", "two"]})
    assert read_moby(path) == [Speech("P", "ANN", ("one", "two")), Speech("P", "BOB", ("one", "two"))]


def test_bad_speeches_are_named_by_file_and_line(tmp_path: Path) -> None:
    good = {"play": "P", "speaker": ["ANN"], "lines": ["one"]}
    for bad, reason in (
        ({**good, "speaker": "ANN"}, "line 2: a speech needs"),
        ({**good, "lines": [1]}, "line 2: a speech needs"),
        ({"speaker": ["ANN"], "lines": ["one"]}, "line 2: a speech needs"),
        ([good], "line 2: not complete JSON .a list"),
    ):
        with pytest.raises(BadData, match=rf"plays\.xz, {reason}"):
            read_moby(write(tmp_path / "plays.xz", good, bad))


def test_a_file_cut_off_is_told(tmp_path: Path) -> None:
    whole = write(tmp_path / "plays.xz", *[{"play": "P", "speaker": ["ANN"], "lines": [str(n)]} for n in range(999)])
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(BadData, match="not complete JSON"):
        read_moby(whole)
    whole.write_bytes(b"not compressed")
    with pytest.raises(BadData, match="line 1: not complete JSON"):
        read_moby(whole)


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


def write_edition(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "100.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_edition_of_1994(tmp_path: Path) -> None:
    speeches = read_gutenberg(write_edition(tmp_path, OF_1994))
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
    found = read_gutenberg(write_edition(tmp_path, OF_1994))
    speeches = [speech for speech in found if speech.play == "THE COMEDY OF ERRORS"]
    assert [(speech.role, speech.lines) for speech in speeches] == [
        ("AEGEON", ("Proceed, Solinus, to procure my fall,", "And by the doom of death end woes and all.")),
        ("DUKE", ("Merchant of Syracuse, plead no more;",)),
        ("DUKE", ("Well.",)),
    ]


def test_the_edition_of_today(tmp_path: Path) -> None:
    speeches = read_gutenberg(write_edition(tmp_path, OF_TODAY))
    assert {speech.play for speech in speeches} == {"THE TRAGEDY OF HAMLET, PRINCE OF DENMARK"}
    assert [(speech.role, speech.lines) for speech in speeches] == [
        ("BARNARDO", ("Who’s there?",)),
        ("FRANCISCO", ("Nay, answer me. Stand and unfold yourself.", "Long live the King!")),
        ("BARNARDO", ("He.",)),
    ]


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"100\.txt has no speech"):
        read_gutenberg(write_edition(tmp_path, "It was a dark and stormy night.\n" * 50))
    path = tmp_path / "100.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match=r"100\.txt is not UTF-8 text: byte 0 is 0xff"):
        read_gutenberg(path)
