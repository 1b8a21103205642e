"""`fedbalancer data` as a person at the terminal has it: list, get, import, check and show."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest
from faketask import write
from loopback import Site, serving

from fedbalancer.cli.app import app
from fedbalancer.cli.data_display import download_display

FAKE = "faketask:load"
FETCHED = """
from dataclasses import replace
import faketask
SOURCES = (replace(faketask.ONE, urls=({url!r},), sha256=({sha256!r},)),)
load = faketask.load
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def refused(self) -> str:
        """The one line of a refusal."""
        assert self.code == 2, self.err
        assert self.out == ""
        lines = self.err.splitlines()
        assert lines[-1].startswith("error: "), self.err
        return lines[-1]


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `fedbalancer data ARGUMENTS` in this process, in an empty folder, with data and cache of its own."""
    monkeypatch.setenv("FEDBALANCER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            app(["data", *arguments])
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return run


def test_list_names_every_variant_with_its_terms(run: Run, tmp_path: Path) -> None:
    done = run("list")
    assert done.code == 0
    rows = json.loads(run("list", "--json").out)
    assert {"watch", "synthetic"} <= {row["task"] for row in rows}
    for row in rows:
        assert row["task"] in done.out
        assert row["kind"] in ("official", "stand-in", "built in")
        assert set(row) >= {"variant", "present", "users", "samples", "size_bytes", "licence", "citation"}
        if row["kind"] != "built in":
            assert row["present"] == "no"
            assert row["licence"] in done.out
            assert row["citation"] in done.out
    assert str(tmp_path / "data") in done.out


def test_import_check_and_show(run: Run, tmp_path: Path) -> None:
    mine = write(tmp_path / "my data.npz")
    done = run("import", FAKE, str(mine), "--variant", "one")
    assert done.code == 0, done.err
    assert f"is in {tmp_path / 'data' / 'one.npz'}: 3 users, 9 samples, 2 test samples, 2 labels" in done.out
    assert f"fedbalancer run {FAKE} --variant one" in done.out
    assert "--overwrite" in run("import", FAKE, str(mine), "--variant", "one").refused()
    assert run("import", FAKE, str(mine), "--variant", "one", "--overwrite", "--link").code == 0
    assert (tmp_path / "data" / "one.npz").is_symlink()
    assert run("check", FAKE).out == f"{FAKE} (one): ok, 3 users, 9 samples, 2 test samples, 2 labels (scale small)\n"
    shown = run("show", FAKE)
    assert shown.code == 0, shown.err
    assert "fake (one): 3 clients, 9 samples, 2 test samples, 2 labels" in shown.out
    assert "min 2, median 3, max 4" in shown.out
    assert "picture: data-faketask-load-one.png" in shown.out
    assert (tmp_path / "data-faketask-load-one.png").read_bytes().startswith(b"\x89PNG")


def test_bad_data_is_refused_in_one_line_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    assert "NaN" in run("import", FAKE, str(write(tmp_path / "bad.npz", bad=True)), "--variant", "one").refused()
    assert not (tmp_path / "data").exists()


def test_check_says_what_is_wrong_and_goes_on(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "data" / "one.npz")
    (tmp_path / "data" / "fake-set").mkdir()
    (tmp_path / "data" / "fake-set" / "x.npz").write_text("half")
    done = run("check", FAKE)
    assert done.code == 2
    assert "(one): ok, 3 users" in done.out
    assert done.err.startswith(f"error: {FAKE} (folder): ")
    assert len(done.err.splitlines()) == 1
    rows = json.loads(run("check", FAKE, "--json").out)
    assert [row["facts"] is None for row in rows] == [True, False]


def test_check_of_everything_needs_no_data(run: Run) -> None:
    done = run("check")
    assert done.code == 0, done.err
    assert "watch: ok, 16 users" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("get", "wacth"), "did you mean watch"),
        (("get", "watch"), "has no data files"),
        (("get", FAKE, "--variant", "tow"), "did you mean two"),
        (("get", FAKE, "--variant", "two"), "fill in the form of its makers"),
        (("import", FAKE, "nowhere"), "nowhere does not exist"),
        (("import", "synthetic", "nowhere"), "has no data files"),
        (("check", "har1"), "did you mean har"),
        (("check", FAKE), "no data of task"),
        (("show", "wacth"), "did you mean watch"),
        (("show", FAKE), "needs fake-set in"),
        (("show", FAKE, "--variant", "one"), "data import fake PATH --variant one"),
        (("show", "synthetic", "--out", "picture.pdf"), "end in .png"),
        (("show", "synthetic", "--scale", "smal"), "did you mean small"),
        (("show", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_mistakes_are_one_line(run: Run, arguments: tuple[str, ...], words: str) -> None:
    assert words in run(*arguments).refused()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A server with the fake data, and the module `fetched` whose task has its address."""
    body = write(tmp_path / "web" / "one.npz", users=40).read_bytes()
    with serving(Site({"/one.npz": body})) as site:
        sha256 = hashlib.sha256(body).hexdigest()
        (tmp_path / "fetched.py").write_text(FETCHED.format(url=f"{site.url}/one.npz", sha256=sha256))
        monkeypatch.syspath_prepend(str(tmp_path))
        yield site
    sys.modules.pop("fetched", None)


def test_get_can_be_typed_again_after_a_cut_and_says_how_far_it_is(
    run: Run, tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries
    site.cuts = [500, 500, 500]
    line = run("get", "fetched:load").refused()
    assert "cannot be downloaded" in line
    assert "run the same command again" in line
    done = run("get", "fetched:load")
    assert done.code == 0, done.err
    assert "one.npz: " in done.err
    assert "100%" in done.err
    assert f"is in {tmp_path / 'data' / 'one.npz'}: 40 users" in done.out
    assert "exists in" in run("get", "fetched:load").out
    assert run("get", "fetched:load", "--overwrite").code == 0


def test_get_without_a_network_is_one_line_that_helps(run: Run, tmp_path: Path, site: Site) -> None:
    site.files.clear()
    line = run("get", "fetched:load").refused()
    place = tmp_path / "data" / "downloads" / "fake-one" / "one.npz"
    assert f"{site.url}/one.npz" in line
    assert f"save it as {place}" in line
    assert f"fedbalancer data import fetched:load {place} --variant one" in line
    write(place, users=40)
    assert run("import", "fetched:load", str(place), "--variant", "one").code == 0


def test_get_with_a_wrong_checksum(run: Run, site: Site) -> None:
    site.files["/one.npz"] = site.files["/one.npz"][::-1]
    assert "is not the expected file" in run("get", "fetched:load").refused()


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with download_display() as progress:
        progress("a.zip")(500_000, 1_000_000)
    out, err = capsys.readouterr()
    assert out == ""
    assert "a.zip" in err
    assert "━" in err


@pytest.mark.parametrize("task", ["watch", "synthetic"])
def test_show_as_json(run: Run, tmp_path: Path, task: str) -> None:
    shown = json.loads(run("show", task, "--users", "5", "--out", "pictures/p.png", "--json").out)
    assert shown["clients"] == 5
    assert shown["samples"] == sum(shown["label_counts"].values())
    assert shown["sizes"]["min"] <= shown["sizes"]["median"] <= shown["sizes"]["max"]
    assert (tmp_path / "pictures" / "p.png").is_file()


def test_the_group_is_there_as_a_process(
    cli: Callable[..., CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the screen knows no blocks."""
    monkeypatch.setenv("FEDBALANCER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = cli("data", "show", "synthetic", "--users", "40")
    assert done.returncode == 0, done.stderr
    assert "16 of 40 clients" in done.stdout
    assert os.path.exists(tmp_path / "data-synthetic-alpha-1-beta-1-users-40.png"), done.stdout
