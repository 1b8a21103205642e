"""A download ends whole, or leaves nothing behind and one line that says why."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Site, serving

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.data.catalogue import install
from fedbalancer.data.catalogue.install import TRIES, Unreachable, fetch

BODY = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site({"/a.bin": BODY})) as site:
        yield site


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "a.bin"


def test_whole_at_once(site: Site, target: Path) -> None:
    told: list[tuple[int, int | None]] = []
    fetch(f"{site.url}/a.bin", target, SHA256, lambda done, total: told.append((done, total)))
    assert target.read_bytes() == BODY
    assert told[0] == (0, len(BODY))
    assert told[-1] == (len(BODY), len(BODY))
    assert told == sorted(told)
    assert [file.name for file in target.parent.iterdir()] == ["a.bin"]
    fetch(f"{site.url}/a.bin", target, SHA256.upper())
    assert len(site.asked) == 1, "what is there is not fetched again"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_cut_connection_is_tried_again_from_the_beginning(site: Site, target: Path, chunked: bool) -> None:
    site.chunked, site.cuts = chunked, [300_000, 200_000]
    told: list[int] = []
    fetch(f"{site.url}/a.bin", target, "", lambda done, total: told.append(done))
    assert target.read_bytes() == BODY
    assert [wanted for _, wanted in site.asked] == [None, None, None]
    assert told.count(0) == 3


def test_a_connection_that_is_always_cut_leaves_nothing_behind(site: Site, target: Path) -> None:
    site.cuts = [300_000] * TRIES
    with pytest.raises(Unreachable, match=r"cannot be downloaded: .*300000 bytes read"):
        fetch(f"{site.url}/a.bin", target, SHA256)
    assert len(site.asked) == TRIES
    assert list(target.parent.iterdir()) == []
    fetch(f"{site.url}/a.bin", target, SHA256)
    assert target.read_bytes() == BODY


def test_a_server_that_does_not_say_how_long_it_is(site: Site, target: Path) -> None:
    site.chunked = True
    told: list[int | None] = []
    fetch(f"{site.url}/a.bin", target, SHA256, lambda done, total: told.append(total))
    assert target.read_bytes() == BODY
    assert set(told) == {None}


def test_a_wrong_checksum_is_told_and_nothing_is_kept(site: Site, target: Path) -> None:
    with pytest.raises(BadData, match=f"{'0' * 64} but got {SHA256}"):
        fetch(f"{site.url}/a.bin", target, "0" * 64)
    assert list(target.parent.iterdir()) == []


def test_a_wrong_file_that_is_there_already_is_replaced(site: Site, target: Path) -> None:
    target.write_bytes(b"put here by hand")
    fetch(f"{site.url}/a.bin", target)
    assert site.asked == [], "without a checksum it may be right"
    fetch(f"{site.url}/a.bin", target, SHA256)
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("status", [404, 403, 500])
def test_what_the_server_refuses_is_told(site: Site, target: Path, status: int) -> None:
    site.status = status
    with pytest.raises(Unreachable, match=f"/a.bin answers {status}"):
        fetch(f"{site.url}/a.bin", target)
    assert list(target.parent.iterdir()) == []


def test_no_network_is_told_in_one_line(target: Path) -> None:
    with socket.socket() as taken:  # a port on which nobody listens
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match=r"a.bin cannot be downloaded: .*refused$"):
            fetch(f"http://127.0.0.1:{taken.getsockname()[1]}/a.bin", target)
    assert list(target.parent.iterdir()) == []


def test_a_server_that_falls_silent_is_given_up(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unreachable, match=r"timed out$"):
        fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin", target)


def test_only_the_web(target: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    with pytest.raises(BadSetting, match="https://"):
        fetch((tmp_path / "secret").as_uri(), target)


def test_a_folder_that_cannot_be_written_is_told(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="cannot be written"):
        fetch(f"{site.url}/a.bin", tmp_path / "file" / "a.bin")
