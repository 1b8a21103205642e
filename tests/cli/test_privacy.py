"""`fedbalancer privacy` as a real process."""

from __future__ import annotations

import json

import pytest
from cli.conftest import Cli

from fedbalancer.methods.table import method
from fedbalancer.privacy import epsilon_of

pytest.importorskip("dp_accounting")


def test_the_noise_for_an_epsilon_and_methods_to_paste(cli: Cli) -> None:
    done = cli("privacy", "plan", "--epsilon", "8", "--rounds", "140", "--json")
    found = json.loads(done.stdout)
    assert epsilon_of(found["noise_multiplier"], 140) == pytest.approx(8, rel=1e-6)
    for way in found["mechanisms"]:
        made = method(way["method"])
        release = made.summary.release(made.client.forward_pass == "every")
        assert (release.mechanism, release.unit) == (way["mechanism"], way["unit"])
        assert 7.9 < epsilon_of(release.noise_multiplier, 140) <= 8


@pytest.mark.parametrize(("noise", "least"), [("0.6", None), ("0.8", 2), ("1", 4), ("7", 10)])
def test_every_method_of_a_plan_is_valid(cli: Cli, noise: str, least: int | None) -> None:
    found = json.loads(cli("privacy", "plan", "--noise", noise, "--rounds", "1", "--json").stdout)
    made = {way["mechanism"]: method(way["method"]).summary for way in found["mechanisms"]}
    assert getattr(made.get("secagg-histogram"), "least", None) == least


def test_a_plan_names_what_it_does_not_cover(cli: Cli) -> None:
    asked = ("privacy", "plan", "--epsilon", "8", "--rounds", "140")
    found = json.loads(cli(*asked, "--json").stdout)
    assert found["epsilon_replaced"] == pytest.approx(epsilon_of(found["noise_multiplier"] / 2**0.5, 140))
    words = cli(*asked).stdout
    assert "epsilon of the histograms is 12.26" in words
    assert all(f"- {each}\n" in words for each in found["not_covered"])
    for left in ("model updates", "number of samples of a client", "when a client's replies arrive", "with two digits"):
        assert left in words


def test_a_plan_computes_epsilon_or_rounds_from_the_noise(cli: Cli) -> None:
    epsilon = cli("privacy", "plan", "--noise", "7.15", "--rounds", "140")
    assert "epsilon 7.935 at delta 1e-05 for a client in 140 rounds (metadata only)" in epsilon.stdout
    rounds = cli("privacy", "plan", "--noise", "7.15", "--epsilon", "8", "--json")
    assert json.loads(rounds.stdout)["rounds"] == 141


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "set two of"), (("--epsilon", "8"), "set two of"), (("--epsilon", "-1", "--rounds", "5"), "--epsilon -1"),
     (("--epsilon", "8", "--rounds", "0"), "--rounds 0"), (("--noise", "0", "--rounds", "5"), "--noise 0"),
     (("--epsilon", "8", "--rounds", "5", "--delta", "2"), "delta = 2"),
     (("--epsilon", "8", "--rounds", "5", "--clip", "0"), "--clip 0"),
     (("--epsilon", "1e-6", "--rounds", "1000000"), "at most")],
)  # fmt: skip
def test_mistakes_are_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("privacy", "plan", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_audit_compares_what_is_shown_with_what_is_printed(cli: Cli) -> None:
    arguments = ("--mechanism", "silent", "--method", "fedavg+1t", "--plays", "20")
    done = cli("privacy", "audit", *arguments)
    assert done.returncode == 0
    assert "holds: silent with fedavg+1t, plain: metadata of one client" in done.stdout
    assert "0 contradicted" in done.stdout
    rows = json.loads(cli("privacy", "audit", *arguments, "--json").stdout)
    assert rows[0]["shown"] == rows[0]["claimed"] == 0
    assert rows[0]["holds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--mechanism", "histogramm"), "histogram"), (("--method", "fedavgg"), "fedavg"),
     (("--mechanism", "private-mean", "--method", "fedbalancer"), "nothing to audit")],
)  # fmt: skip
def test_an_audit_of_nothing_is_refused(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("privacy", "audit", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
