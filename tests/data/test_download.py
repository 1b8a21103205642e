"""A download ends whole or can go on; nothing that is wrong ever has the final name."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import Site, serving

from fedbalancer.data import download
from fedbalancer.data.download import Unreachable, fetch
from fedbalancer.errors import BadData, BadSetting

BODY = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


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


def test_a_cut_connection_goes_on_by_itself(site: Site, target: Path) -> None:
    site.cuts = [300_000, 200_000]
    fetch(f"{site.url}/a.bin", target, SHA256)
    assert target.read_bytes() == BODY
    assert [wanted for _, wanted in site.asked] == [None, "bytes=300000-", "bytes=500000-"]


def test_what_arrived_is_kept_and_the_next_command_goes_on(site: Site, target: Path) -> None:
    site.cuts = [300_000, 0, 0, 0]
    with pytest.raises(Unreachable, match="broke off after 300,000"):
        fetch(f"{site.url}/a.bin", target, SHA256)
    assert not target.exists()
    assert target.with_name("a.bin.part").read_bytes() == BODY[:300_000]
    fetch(f"{site.url}/a.bin", target, SHA256)
    assert target.read_bytes() == BODY
    assert site.asked[-1] == ("/a.bin", "bytes=300000-")
    assert [file.name for file in target.parent.iterdir()] == ["a.bin"]


def interrupted(site: Site, target: Path) -> None:
    site.cuts = [300_000, 0, 0, 0]
    with pytest.raises(Unreachable):
        fetch(f"{site.url}/a.bin", target)


@pytest.mark.parametrize("etag", ['"v1"', None, 'W/"v1"'])
def test_a_file_that_was_replaced_meanwhile_is_fetched_anew(site: Site, target: Path, etag: str | None) -> None:
    """A server that names no versions can only be caught by another size."""
    site.etag = etag
    interrupted(site, target)
    site.files["/a.bin"], site.etag = BODY[::-1] + b"!", '"v2"' if etag else None
    fetch(f"{site.url}/a.bin", target)
    assert target.read_bytes() == BODY[::-1] + b"!"


def test_a_server_without_ranges_begins_anew(site: Site, target: Path) -> None:
    interrupted(site, target)
    site.ranges = False
    fetch(f"{site.url}/a.bin", target, SHA256)
    assert target.read_bytes() == BODY


def test_all_had_arrived_already(site: Site, target: Path) -> None:
    """Killed between the last byte and the rename."""
    interrupted(site, target)
    target.with_name("a.bin.part").write_bytes(BODY)
    fetch(f"{site.url}/a.bin", target, SHA256)
    assert target.read_bytes() == BODY


def test_more_had_arrived_than_there_is(site: Site, target: Path) -> None:
    target.with_name("a.bin.part").write_bytes(BODY + b"rest of something else")
    fetch(f"{site.url}/a.bin", target, SHA256)
    assert target.read_bytes() == BODY


def test_a_server_that_does_not_say_how_long_it_is(site: Site, target: Path) -> None:
    site.chunked, site.cuts = True, [1000]
    told: list[int | None] = []
    fetch(f"{site.url}/a.bin", target, SHA256, lambda done, total: told.append(total))
    assert target.read_bytes() == BODY
    assert set(told) == {None}


def test_a_wrong_checksum_is_told_and_removed(site: Site, target: Path) -> None:
    with pytest.raises(BadData, match=f"{SHA256}, but {'0' * 64} is expected"):
        fetch(f"{site.url}/a.bin", target, "0" * 64)
    assert list(target.parent.iterdir()) == []
    target.write_bytes(b"put here by hand")
    with pytest.raises(BadData, match="is expected"):
        fetch(f"{site.url}/a.bin", target, SHA256)
    assert not target.exists()


@pytest.mark.parametrize("status", [404, 403, 500])
def test_what_the_server_refuses_is_told(site: Site, target: Path, status: int) -> None:
    site.status = status
    with pytest.raises(Unreachable, match=f"/a.bin answers {status}"):
        fetch(f"{site.url}/a.bin", target)
    assert list(target.parent.iterdir()) == []


def test_no_network_is_told_at_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # a port on which nobody listens
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match=r"cannot be reached: .*refused"):
            fetch(f"http://127.0.0.1:{taken.getsockname()[1]}/a.bin", target)
    assert list(target.parent.iterdir()) == []


def test_a_server_that_falls_silent_is_given_up(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unreachable, match="timed out"):
        fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin", target)


def test_only_the_web(target: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    with pytest.raises(BadSetting, match="https://"):
        fetch((tmp_path / "secret").as_uri(), target)


def test_a_folder_that_cannot_be_written_is_told(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="cannot be written"):
        fetch(f"{site.url}/a.bin", tmp_path / "file" / "a.bin")
