"""A run folder never overwrites other files, explains errors, and resumes exactly where it stopped."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import safetensors.numpy

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.types import Layout, Ledger, ServerState
from fedbalancer.store import ClientRow, EvalRow, RoundRow, RunFolder, check_free, read_manifest, read_status, schema_of

SAMPLE = {int: 1, float: 0.5, str: "ann"}


def row(kind: type[Any], round: int, **changes: Any) -> Any:
    return kind(**{name: SAMPLE[of] for name, of in schema_of(kind).items()} | {"round": round} | changes)


def play(folder: RunFolder, round: int) -> None:
    evaluations = [row(EvalRow, round)] if round % 2 else []
    folder.record(row(RoundRow, round), evaluations, [row(ClientRow, round)] * 2)


def state_at(round: int) -> ServerState:
    ledger = Ledger.start(("ann",), np.array([3]), np.array([0.1]), np.full((1, 10), 0.01))
    return ServerState(round, round / 3, np.full(3, round, dtype=np.float32), ledger)


def rounds_in(path: Path, table: str = "rounds") -> list[int]:
    return pl.read_parquet(path / f"{table}.parquet")["round"].to_list()


def test_create_writes_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with RunFolder.create(path, {"seed": 3, "deadline_s": math.inf}) as folder:
        assert folder.manifest["status"] == "running"
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert len(manifest.pop("sha256")) == 64
    assert manifest == {"format": "fedbalancer run 1", "seed": 3, "deadline_s": "inf", "status": "running", "why": None}


def test_status_and_fields_change(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {"seed": 3}) as folder:
        folder.finish("failed", "a client sent NaN")
        folder.update_manifest(rounds=7)
    manifest = read_manifest(tmp_path)
    assert (manifest["status"], manifest["why"], manifest["rounds"]) == ("failed", "a client sent NaN", 7)


def test_a_run_in_the_way(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, {"seed": 1}).close()
    with pytest.raises(RunFolderError, match=r"already holds a run \(status: running\).*--overwrite.*resume"):
        RunFolder.create(tmp_path, {"seed": 2})
    assert read_manifest(tmp_path)["seed"] == 1


def test_overwrite_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {"seed": 1}) as old:
        play(old, 1)
        old.checkpoint(state_at(1))
        old.finish("done", None, np.zeros(3, dtype=np.float32), Layout([("a", (3,))]))
    (tmp_path / "my notes.txt").write_text("keep")
    with RunFolder.create(tmp_path, {"seed": 2}, overwrite=True) as new:
        assert new.manifest["seed"] == 2
    assert sorted(os.listdir(tmp_path)) == [".lock", "checkpoint", "manifest.json", "my notes.txt"]
    with RunFolder.open(tmp_path) as opened:
        assert opened.restore(state_at(0)) is None


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["holiday.jpg", "log.jsonl", "rounds.parquet"])
def test_a_folder_of_others_is_left_alone(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunFolderError, match=f"holds other files \\({name}\\)"):
        RunFolder.create(tmp_path, {}, overwrite=overwrite)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("text", ['{"name": "a web app"}', "{", "[]", "\xff"])
def test_a_manifest_of_another_program_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunFolderError, match=r"manifest\.json"):
        RunFolder.create(tmp_path, {}, overwrite=True)
    with pytest.raises(RunFolderError, match=r"manifest\.json"):
        RunFolder.open(tmp_path)
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_what_a_kill_during_create_leaves_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".manifest.json.1.fedbalancer-tmp").touch()
    RunFolder.create(tmp_path, {}).close()
    assert sorted(os.listdir(tmp_path)) == [".lock", "checkpoint", "manifest.json"]


@pytest.mark.parametrize(
    ("files", "marker", "words"),
    [
        (["comparison.json"], "manifest.json", "holds a comparison; choose another --out"),
        (["bed.json", "comparison.json"], "manifest.json", "holds a test bed; choose another --out"),
        (["comparison.json"], "comparison.json", "already holds a comparison; .*--overwrite.*fedbalancer resume"),
        (["bed.json", "comparison.json"], "bed.json", "already holds a test bed; .*--overwrite, or choose another"),
        (["a", "b", "c", "d"], "comparison.json", r"holds other files \(a, b, c, \.\.\.\)"),
    ],
)
def test_what_is_in_the_way_of_a_run_a_comparison_or_a_test_bed_is_named(
    tmp_path: Path, files: list[str], marker: str, words: str
) -> None:
    check_free(tmp_path / "absent", False, marker)
    check_free(tmp_path, False, marker)
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(RunFolderError, match=words):
        check_free(tmp_path, False, marker)
    if marker in files:
        check_free(tmp_path, True, marker)
    else:
        with pytest.raises(RunFolderError, match=words):
            check_free(tmp_path, True, marker)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError, match="choose another --out"):
            RunFolder.create(path, {})


@pytest.mark.parametrize("name", ["", "absent"])
def test_open_what_is_no_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match=r"is not a run folder: there is no .*manifest\.json"):
        RunFolder.open(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_one_writer(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}):
        with pytest.raises(RunFolderError, match=str(tmp_path)):
            RunFolder.open(tmp_path)
        with pytest.raises(RunFolderError, match="cannot be locked"):
            RunFolder.create(tmp_path, {}, overwrite=True)
        assert read_status(tmp_path) == "running"
    RunFolder.open(tmp_path).close()


def test_log_lines(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        folder.log("start", workers=2, budget_s=math.inf)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"time": "torn by a power c')
    with RunFolder.open(tmp_path) as folder:
        folder.log("resumed")
    first, second = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (first["event"], first["workers"], first["budget_s"], second["event"]) == ("start", 2, "inf", "resumed")
    offset = datetime.fromisoformat(first["time"]).utcoffset()
    assert offset is not None
    assert offset.total_seconds() == 0


def test_rows_after_the_checkpoint_are_run_again(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        folder.record(None, [row(EvalRow, 0)], [])
        for number in (1, 2, 3):
            play(folder, number)
            if number == 2:
                folder.checkpoint(state_at(2), {"counts": [1, math.inf]}, {"losses/ann": np.array([0.1])})
    with RunFolder.open(tmp_path) as folder:
        restored = folder.restore(state_at(0))
        assert restored is not None
        state, engine_json, engine_arrays = restored
        assert (state.round, state.clock_s, state.weights.tolist()) == (2, 2 / 3, [2.0, 2.0, 2.0])
        assert engine_json == {"counts": [1, math.inf]}
        assert engine_arrays["losses/ann"].tolist() == [0.1]
        play(folder, 3)
        folder.write_tables()
    assert rounds_in(tmp_path) == [1, 2, 3]
    assert rounds_in(tmp_path, "evals") == [0, 1, 3]
    assert rounds_in(tmp_path, "clients") == [1, 1, 2, 2, 3, 3]


def test_to_restore_again_goes_back_again(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        play(folder, 1)
        folder.checkpoint(state_at(1))
        for _ in range(2):
            play(folder, 2)
            assert folder.restore(state_at(0)) is not None
        folder.write_tables()
    assert rounds_in(tmp_path) == [1]


def test_no_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        play(folder, 1)
    with RunFolder.open(tmp_path) as folder:
        with pytest.raises(RuntimeError, match="before restore"):
            play(folder, 1)
        assert folder.restore(state_at(0)) is None
        folder.write_tables()
    assert rounds_in(tmp_path) == []


def test_a_damaged_checkpoint_is_logged_and_the_one_before_used(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        for number in (1, 2):
            play(folder, number)
            folder.checkpoint(state_at(number))
    (tmp_path / "checkpoint" / "step-00000002" / "state.json").write_bytes(b"")
    with RunFolder.open(tmp_path) as folder:
        restored = folder.restore(state_at(0))
        assert restored is not None
        assert restored[0].round == 1
        assert "step-00000002" in folder.warnings[0]
        play(folder, 2)
        folder.write_tables()
    assert rounds_in(tmp_path) == [1, 2]
    assert json.loads((tmp_path / "log.jsonl").read_text())["event"] == "checkpoint damaged"


def test_a_checkpoint_of_another_task_is_refused_and_kept(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        play(folder, 1)
        folder.checkpoint(state_at(1))
    journal = (tmp_path / "checkpoint" / "journal.jsonl").read_bytes()
    with RunFolder.open(tmp_path) as folder, pytest.raises(RunFolderError, match="'weights'"):
        folder.restore(replace(state_at(0), weights=np.zeros(9, dtype=np.float32)))
    assert (tmp_path / "checkpoint" / "journal.jsonl").read_bytes() == journal


def test_tables_stay_as_they_are_where_nothing_could_be_restored(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        play(folder, 1)
        folder.checkpoint(state_at(1))
        folder.write_tables()
    (tmp_path / "checkpoint" / "journal.jsonl").write_bytes(b"")
    with RunFolder.open(tmp_path) as folder:
        with pytest.raises(RunFolderError, match=r"journal\.jsonl has 0 bytes"):
            folder.restore(state_at(0))
        folder.finish("failed", "damaged")
    assert rounds_in(tmp_path) == [1]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="asks Linux for the names of open files")
def test_the_disk_has_the_journal_before_the_checkpoint_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def spy(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    with RunFolder.create(tmp_path, {}) as folder:
        play(folder, 1)
        monkeypatch.setattr(os, "fsync", spy)
        folder.checkpoint(state_at(1))
    assert synced[:3] == ["journal.jsonl", "arrays.safetensors", "state.json"]
    assert synced[3].startswith("tmp-")
    assert synced[4:] == ["checkpoint"]


def test_a_bad_row_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        with pytest.raises(TypeError, match="'samples'"):
            folder.record(row(RoundRow, 1), [], [row(ClientRow, 1, samples=1.5)])
        folder.write_tables()
    assert rounds_in(tmp_path) == []
    assert (tmp_path / "checkpoint" / "journal.jsonl").read_bytes() == b""


def test_only_utility_may_be_null(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, {}) as folder:
        folder.record(row(RoundRow, 1, utility=None), [], [])
        with pytest.raises(TypeError, match="'deadline_s'"):
            folder.record(row(RoundRow, 2, deadline_s=None), [], [])


def test_model_tensors_by_name(tmp_path: Path) -> None:
    weights = np.arange(7, dtype=np.float32)
    with RunFolder.create(tmp_path, {}) as folder:
        folder.finish("done", None, weights, Layout())
        assert not (tmp_path / "model.safetensors").exists()
        folder.finish("done", None, weights, Layout([("w", (2, 3)), ("b", ()), ("none", (0, 2))]))
        with pytest.raises(ValueError, match="the layout has 6 numbers, but there are 7 weights"):
            folder.finish("done", None, weights, Layout([("w", (2, 3))]))
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert tensors["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["b"].tolist() == 6
    assert tensors["none"].shape == (0, 2)
