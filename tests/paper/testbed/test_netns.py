"""Network namespaces: the commands that create them, and the errors where they cannot be created."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest

from fedbalancer.core.errors import MissingData
from fedbalancer.paper.testbed import netns


def test_both_ends_of_a_cable_are_shaped() -> None:
    commands = [" ".join(command) for command in netns.phone_commands(4, 2e6)]
    shaped = [command for command in commands if "tbf rate 2000000bit" in command]
    assert len(shaped) == 2
    assert any("dev fb4 root" in command for command in shaped)
    assert any(command.startswith("ip netns exec fbbed4") and "dev eth0 root" in command for command in shaped)
    assert not any("netem" in command for command in commands)


def test_a_delay_goes_before_the_bandwidth() -> None:
    delay, bandwidth = netns.shape_commands((), "fb0", 1e6, 12.5)
    assert delay[-3:] == ("netem", "delay", "12.5ms")
    assert bandwidth[bandwidth.index("parent") + 1] == delay[delay.index("handle") + 1]


def test_phones_have_different_names_and_addresses() -> None:
    made = [netns.phone_commands(number, 1e6) for number in range(21)]
    names = {command[-1] for commands in made for command in commands[:1]}
    addresses = {word for commands in made for command in commands for word in command if word.endswith("/16")}
    assert len(names) == len(addresses) == 21


@pytest.mark.parametrize("tool", ["ip", "tc"])
def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else f"/bin/{name}")
    with pytest.raises(MissingData, match=f"commands {tool}: install"):
        netns.check()


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    with pytest.raises(MissingData, match="root"):
        netns.check()


def test_a_kernel_that_refuses_is_quoted_and_everything_is_taken_down(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        ran.append(" ".join(command))
        refused = "tbf" in command and "netns" in command
        return subprocess.CompletedProcess(command, int(refused), "", "Operation not permitted" if refused else "")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(MissingData, match="Operation not permitted"), netns.Networks([1e6, 1e6]):
        pass
    made = [command.split()[-1] for command in ran if command.startswith("ip netns add")]
    gone = [command.split()[-1] for command in ran if command.startswith("ip netns del")]
    assert set(made) <= set(gone)
    assert "ip link del fbbed" in ran
