"""The journal loses nothing before the length that a checkpoint names, and keeps nothing after it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedbalancer.core.errors import RunFolderError
from fedbalancer.store.journal import JOURNAL, open_journal

ENTRIES: list[dict[str, Any]] = [
    {"round": {"round": 1, "deadline_s": math.inf}, "eval": None, "clients": [[1, "ann\n\r\u2028", 0.1]]},
    {"round": {"round": 2, "deadline_s": -math.inf}, "eval": {"loss": 2.5}, "clients": []},
    {"round": {"round": 3, "deadline_s": 1e-320}, "eval": None, "clients": [[3, "ε", 5e300], [3, "", -0.0]]},
]


def filled(folder: Path) -> list[tuple[int, str]]:
    """Write the entries; size and checksum after each, the empty journal first."""
    journal, entries = open_journal(folder, 0)
    assert entries == []
    marks = [(journal.size, journal.sha256)]
    for entry in ENTRIES:
        journal.append(entry)
        marks.append((journal.size, journal.sha256))
    journal.flush()
    journal.close()
    return marks


def test_entries_come_back(memory_path: Path) -> None:
    size, sha256 = filled(memory_path)[-1]
    journal, entries = open_journal(memory_path, size, sha256)
    assert entries == ENTRIES
    assert str(entries[2]["clients"][1][2]) == "-0.0"
    assert (journal.size, journal.sha256) == (size, sha256)
    journal.close()


def test_nan_survives(memory_path: Path) -> None:
    journal, _ = open_journal(memory_path, 0)
    journal.append({"loss": math.nan})
    journal.close()
    reopened, entries = open_journal(memory_path, journal.size)
    reopened.close()
    assert math.isnan(entries[0]["loss"])


def test_every_length_and_every_cut(memory_path: Path) -> None:
    """For a checkpoint after each entry and a file that ends at any byte: what the checkpoint names, or an error that
    leaves the file as it was."""
    marks = filled(memory_path)
    whole = (memory_path / JOURNAL).read_bytes()
    for count, (size, sha256) in enumerate(marks):
        for cut in range(len(whole) + 1):
            (memory_path / JOURNAL).write_bytes(whole[:cut])
            if cut < size:
                with pytest.raises(RunFolderError, match=f"has {cut} bytes, but its checkpoint needs {size}"):
                    open_journal(memory_path, size, sha256)
                assert (memory_path / JOURNAL).read_bytes() == whole[:cut]
                continue
            journal, entries = open_journal(memory_path, size, sha256)
            journal.append({"next": 1})
            journal.close()
            assert entries == ENTRIES[:count]
            assert (memory_path / JOURNAL).read_bytes() == whole[:size] + b'{"next":1}\n'


def test_every_size_without_a_checksum(memory_path: Path) -> None:
    sizes = [size for size, _ in filled(memory_path)]
    whole = (memory_path / JOURNAL).read_bytes()
    for size in range(len(whole) + 1):
        (memory_path / JOURNAL).write_bytes(whole)
        if size in sizes:
            journal, entries = open_journal(memory_path, size)
            journal.close()
            assert entries == ENTRIES[: sizes.index(size)]
        else:
            with pytest.raises(RunFolderError, match=f"at byte {size}"):
                open_journal(memory_path, size)


def test_every_changed_byte_is_noticed(memory_path: Path) -> None:
    size, sha256 = filled(memory_path)[-1]
    whole = (memory_path / JOURNAL).read_bytes()
    for place in range(len(whole)):
        (memory_path / JOURNAL).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunFolderError, match=r"journal\.jsonl"):
            open_journal(memory_path, size, sha256)
