"""The live page over HTTP."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from reporting.journals import add_round, begun
from typer.testing import CliRunner

from fedbalancer.cli.app import app
from fedbalancer.reporting.dashboard import DashboardServer, open_dashboard


@contextmanager
def serving(folder: Path) -> Iterator[DashboardServer]:
    with open_dashboard(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(address: str, **headers: str) -> tuple[int, str, str]:
    """Status, version and text of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=20) as answer:
            return answer.status, answer.headers.get("X-Version", ""), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, "", error.read().decode()


def says(server: DashboardServer, words: str) -> bool:
    """Return whether the page shows this text after a while; it need not be updated at once."""
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        if words in asked(server.address)[2]:
            return True
        time.sleep(0.05)
    return False


def test_a_folder_may_come_later_be_half_written_and_begin_again(tmp_path: Path) -> None:
    with serving(tmp_path / "run") as server:
        status, first, text = asked(server.address)
        assert (status, "There is no folder" in text) == (200, True)
        assert asked(f"{server.address}page?since={first}") == (204, "", "")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "manifest.json").write_text('{"status": "runn')
        assert says(server, "manifest.json is unreadable")
        (tmp_path / "run" / "manifest.json").unlink()
        with begun(tmp_path / "run") as folder:
            assert says(server, "no evaluation yet")
            add_round(folder, 1, 0.375)
            assert says(server, "is at an accuracy of 37.5% after 1 rounds")
            status, second, text = asked(f"{server.address}page?since={first}")
            assert status == 200
            assert f'data-version="{second}"' in text
        with begun(tmp_path / "run", overwrite=True) as folder:
            for number in (1, 2):
                add_round(folder, number, 0.625)
            folder.finish("done", None)
        assert says(server, "ended at an accuracy of 62.5% after 2 rounds")


def test_a_damaged_comparison_is_said_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text("{")
    with serving(tmp_path) as server:
        assert says(server, "comparison.json cannot be read")
        (tmp_path / "comparison.json").write_text('{"methods": ["a"], "seeds": [0], "budgets_s": {"0": 20}}')
        assert says(server, "missing (no manifest.json)")
        with begun(tmp_path / "a" / "seed-0", "a") as folder:
            add_round(folder, 1, 0.5)
            assert says(server, "a, seed 0: running")


def test_only_the_page_is_served_and_only_to_this_machine(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with serving(tmp_path) as server:
        assert asked(f"{server.address}manifest.json")[0] == 404
        assert asked(f"{server.address}../../etc/passwd")[0] == 404
        assert asked(server.address, Host="elsewhere.example")[0] == 403
        assert asked(server.address, Host="localhost:1")[0] == 200
        assert server.server_address[0] == "127.0.0.1"
        assert "connect-src 'self'" in asked(server.address)[2]


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        done = CliRunner().invoke(app, ["dashboard", str(tmp_path), "--port", str(server.server_address[1])])
    assert done.exit_code == 2
    assert "choose another --port" in done.output


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "."), (signal.SIGTERM, "later")])
def test_the_command_serves_until_it_is_interrupted(tmp_path: Path, number: signal.Signals, name: str) -> None:
    folder = tmp_path / name
    command = [sys.executable, "-m", "fedbalancer", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].split()[0]
        assert asked(address)[0] == 200
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    said = "" if folder.exists() else f"{folder} does not exist yet; the page waits for it\n"
    assert (process.returncode, errors) == (0, said)
