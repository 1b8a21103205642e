"""Runs that go on are read as far as they are, and read again only when they changed."""

from __future__ import annotations

import os
from pathlib import Path

from reporting.journals import add_round, begun

from fedbalancer.reporting.dashboard import LiveRuns
from fedbalancer.store.journal import JournalReader, journal_path


def rounds_in(reader: JournalReader) -> list[int] | None:
    tables = reader.tables()
    return None if tables is None else tables.frames()["rounds"]["round"].to_list()


def test_a_reader_takes_up_what_was_added_and_leaves_half_a_line(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path / "run")
    assert reader.tables() is None
    with begun(tmp_path / "run") as folder:
        assert rounds_in(reader) == []
        add_round(folder, 1, 0.1)
        assert rounds_in(reader) == rounds_in(reader) == [1]
        add_round(folder, 2, 0.2)
        whole = journal_path(tmp_path / "run").stat().st_size
        add_round(folder, 3, 0.3)
        os.truncate(journal_path(tmp_path / "run"), whole + 20)
        assert rounds_in(reader) == [1, 2]


def test_a_run_that_begins_again_is_read_from_its_start(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path / "run")
    for last in (5, 3, 7):
        with begun(tmp_path / "run", overwrite=True) as folder:
            for number in range(1, last + 1):
                add_round(folder, number, last / 10 + number / 100)
            assert rounds_in(reader) == list(range(1, last + 1))


def test_a_live_run_has_rounds_that_its_tables_do_not_have_yet(tmp_path: Path) -> None:
    with LiveRuns() as runs, begun(tmp_path / "run") as folder:
        add_round(folder, 1, 0.25)
        folder.write_tables()
        add_round(folder, 2, 0.5)
        run = runs.load(tmp_path / "run")
        assert (run.rounds.height, run.curve.last_value, run.curve.status) == (2, 0.5, "running")
        assert run.selections["times"].to_list() == [2, 2]
        assert runs.load(tmp_path / "run") is run
        add_round(folder, 3, 0.75)
        assert runs.load(tmp_path / "run").rounds.height == 3
        folder.finish("done", None)
        assert runs.load(tmp_path / "run").curve.status == "done"
