"""Prepared data are cached safely, and checksums are computed again only when files change."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedbalancer.core.errors import BadSetting
from fedbalancer.data import Prepared, checksum, load_or_prepare

MAKER = """
import os, sys, time
from pathlib import Path
import numpy as np
from fedbalancer.data import Prepared, load_or_prepare

def make():
    Path(sys.argv[1], f"made-{os.getpid()}").touch()
    time.sleep(0.3)
    return Prepared({"x": np.arange(100_000), "y": np.ones(3)}, {"by": os.getpid()})

print("ready", flush=True)
sys.stdin.readline()
got = load_or_prepare("t", {"k": 1}, make)
print(got.meta["by"], int(got.arrays["x"].sum()), flush=True)
"""


def maker(calls: list[int], value: int = 1) -> Callable[[], Prepared]:
    def make() -> Prepared:
        calls.append(value)
        return Prepared({"x": np.full((4, 2), value), "y": np.arange(4)}, {"names": ["a", "b"], "value": value})

    return make


def entry(cache: Path) -> Path:
    (folder,) = [path for path in (cache / "prepared").iterdir() if not path.name.startswith(".")]
    return folder


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "prepared").iterdir() if path.name.startswith(".making")]


def test_made_once_per_key(folders: tuple[Path, Path]) -> None:
    calls: list[int] = []
    for _ in range(3):
        found = load_or_prepare("t", {"source": "abc", "width": 3}, maker(calls))
        assert found.meta == {"names": ["a", "b"], "value": 1}
        assert np.array_equal(found.arrays["x"], np.full((4, 2), 1))
    assert calls == [1]
    assert load_or_prepare("t", {"source": "abc", "width": 4}, maker(calls, 2)).meta["value"] == 2
    assert load_or_prepare("other", {"source": "abc", "width": 3}, maker(calls, 3)).meta["value"] == 3
    assert calls == [1, 2, 3]


def test_the_order_of_the_key_does_not_matter(folders: tuple[Path, Path]) -> None:
    calls: list[int] = []
    load_or_prepare("t", {"a": 1, "b": 2}, maker(calls))
    load_or_prepare("t", {"b": 2, "a": 1}, maker(calls))
    assert calls == [1]


def test_arrays_are_memory_mapped_and_read_only_from_the_first_time_on(folders: tuple[Path, Path]) -> None:
    for _ in range(2):
        array = load_or_prepare("t", {}, maker([])).arrays["x"]
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 9


def test_empty_and_scalar_arrays_survive(folders: tuple[Path, Path]) -> None:
    def make() -> Prepared:
        return Prepared({"none": np.zeros((0, 3)), "one": np.array(7)}, {})

    for _ in range(2):
        found = load_or_prepare("t", {}, make)
        assert found.arrays["none"].shape == (0, 3)
        assert int(found.arrays["one"]) == 7


def test_a_maker_that_fails_leaves_nothing(folders: tuple[Path, Path]) -> None:
    def fail() -> Prepared:
        raise ZeroDivisionError

    def fail_late() -> Prepared:
        return Prepared({"x": np.arange(3), "z": np.array([object()])}, {})

    for make in (fail, fail_late):
        with pytest.raises((ZeroDivisionError, ValueError)):
            load_or_prepare("t", {}, make)
        assert leftovers(folders[1]) == []
    calls: list[int] = []
    assert load_or_prepare("t", {}, maker(calls)).meta["value"] == 1
    assert calls == [1]


DYING = """
import os, sys
from pathlib import Path
import numpy as np
from fedbalancer.data import Prepared, load_or_prepare

def dying(real):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return real(*arguments, **options)
    return call

os.fsync, Path.rename = dying(os.fsync), dying(Path.rename)
for step in range(1, 12):
    left, child = step, os.fork()
    if child == 0:
        arrays = {"x": np.full((4, 2), 1), "y": np.arange(4)}
        load_or_prepare("t", {"step": step}, lambda: Prepared(arrays, {"value": 1}))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="fork is POSIX")
def test_killed_at_every_step_of_writing(folders: tuple[Path, Path]) -> None:
    """A process that dies before its n-th fsync or rename never leaves something half that counts as an entry. The
    steps are two arrays, the document, its folder, the rename, the folder above, and two of each checksum's note."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", DYING], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["9"] * 10 + ["0"], done.stderr
    for step in range(1, 12):
        calls: list[int] = []
        found = load_or_prepare("t", {"step": step}, maker(calls))
        assert calls == ([1] if step < 6 else []), "used before it was whole, or not used although it was"
        assert np.array_equal(found.arrays["x"], np.full((4, 2), 1))
    assert leftovers(folders[1]) == []


def flip(file: Path, place: int) -> None:
    """Another value of the same length."""
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def damage(folder: Path, how: str) -> None:
    if how == "array missing":
        (folder / "x.npy").unlink()
    elif how == "array cut":
        data = (folder / "x.npy").read_bytes()
        (folder / "x.npy").write_bytes(data[:-8])
    elif how == "array empty":
        (folder / "x.npy").write_bytes(b"")
    elif how == "header spoilt":
        size = (folder / "x.npy").stat().st_size
        (folder / "x.npy").write_bytes(b"?" * size)
    elif how == "bytes flipped":
        flip(folder / "x.npy", -3)
    elif how == "meta flipped":
        flip(folder / "meta.json", (folder / "meta.json").read_bytes().index(b'"value": ') + len(b'"value": '))
    elif how == "meta missing":
        (folder / "meta.json").unlink()
    elif how == "meta cut":
        (folder / "meta.json").write_text((folder / "meta.json").read_text()[:20])
    elif how == "meta of another kind":
        (folder / "meta.json").write_text(json.dumps(["x"]))
    else:
        shutil.rmtree(folder)
        folder.write_text("a file where a folder should be")


@pytest.mark.parametrize(
    "how",
    [
        "array missing", "array cut", "array empty", "header spoilt", "bytes flipped", "meta flipped", "meta missing",
        "meta cut",        "meta of another kind", "not a folder",
    ],
)  # fmt: skip
def test_a_damaged_entry_is_made_again(folders: tuple[Path, Path], how: str) -> None:
    calls: list[int] = []
    load_or_prepare("t", {}, maker(calls))
    damage(entry(folders[1]), how)
    assert np.array_equal(load_or_prepare("t", {}, maker(calls)).arrays["x"], np.full((4, 2), 1))
    assert calls == [1, 1]
    load_or_prepare("t", {}, maker(calls))
    assert calls == [1, 1], "and is whole again"
    assert leftovers(folders[1]) == []


def test_who_has_the_damaged_arrays_open_keeps_them(folders: tuple[Path, Path]) -> None:
    before = load_or_prepare("t", {}, maker([])).arrays["y"]
    damage(entry(folders[1]), "array missing")
    load_or_prepare("t", {}, maker([]))
    assert before.tolist() == [0, 1, 2, 3]


def start(made: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(made)], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="without POSIX locks several processes may make the same entry")
def test_of_several_processes_one_makes_it_and_all_have_it(folders: tuple[Path, Path], tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    processes = [start(made) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    results = {}
    threads = [
        threading.Thread(target=lambda p=process: results.update({p.pid: p.communicate("go\n", timeout=60)}))
        for process in processes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.returncode for process in processes] == [0] * 4, results
    assert len(list(made.iterdir())) == 1, "made by more than one"
    assert len({out for out, _ in results.values()}) == 1
    assert leftovers(folders[1]) == []


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_a_maker_that_is_killed_does_not_keep_the_others_waiting(folders: tuple[Path, Path], tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    with start(made) as process:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        while not list(made.iterdir()):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
        process.kill()
    calls: list[int] = []
    assert load_or_prepare("t", {"k": 1}, maker(calls)).meta["value"] == 1
    assert calls == [1]


def test_a_cache_that_cannot_be_written_is_told(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folders[1].write_text("a file")
    with pytest.raises(BadSetting, match=r"cannot be written: .*set FEDBALANCER_CACHE"):
        load_or_prepare("t", {}, maker([]))


def test_an_error_of_the_maker_is_not_taken_for_one_of_the_cache(folders: tuple[Path, Path]) -> None:
    def make() -> Prepared:
        raise FileNotFoundError("source.npz")

    with pytest.raises(FileNotFoundError, match=r"source\.npz"):
        load_or_prepare("t", {}, make)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read."""
    seen: list[str] = []
    real = hashlib.file_digest

    def digest(file, name):  # type: ignore[no-untyped-def]
        seen.append(Path(file.name).name)
        return real(file, name)

    monkeypatch.setattr(hashlib, "file_digest", digest)
    return seen


def test_of_a_file(folders: tuple[Path, Path], tmp_path: Path, reads: list[str]) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    assert checksum(file) == hashlib.sha256(b"abc").hexdigest()
    assert checksum(file) == hashlib.sha256(b"abc").hexdigest()
    assert reads == ["a"], "the second time it is remembered"


def test_a_change_that_keeps_size_and_date_is_seen(folders: tuple[Path, Path], tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"abc")
    before, stat = checksum(file), file.stat()
    other.write_bytes(b"xyz")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    os.replace(other, file)
    assert file.stat().st_mtime_ns == stat.st_mtime_ns
    assert checksum(file) != before


def test_of_a_folder_it_is_of_names_and_contents(folders: tuple[Path, Path], tmp_path: Path, reads: list[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "deep").mkdir(parents=True)
    (first / "a").write_text("1")
    (first / "deep" / "b").write_text("2")
    shutil.copytree(first, second)
    assert checksum(first) == checksum(second)
    assert checksum(first) == checksum(first)
    assert sorted(reads) == ["a", "a", "b", "b"]
    (second / "a").rename(second / "c")
    assert checksum(first) != checksum(second)


def test_many_files_leave_one_note(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(50):
        (folder / str(number)).write_text(str(number))
    checksum(folder)
    assert len(list((folders[1] / "checksums").iterdir())) == 1


def test_a_spoilt_note_or_a_cache_that_cannot_be_written_does_no_harm(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    right = checksum(file)
    (note,) = (folders[1] / "checksums").iterdir()
    note.write_text("half a note")
    assert checksum(file) == right
    monkeypatch.setenv("FEDBALANCER_CACHE", str(file))
    assert checksum(file) == right
