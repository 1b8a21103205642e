"""Golden rounds: what the authors logged comes out of our own server and engine, and a difference does not slip by."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbalancer
from fedbalancer.core.errors import FedBalancerError
from fedbalancer.paper.golden import GoldenReport, replay_golden
from fedbalancer.testing.__main__ import main

ROOT = Path(__file__).parents[2]
REFERENCE = Path(os.environ.get("FEDBALANCER_REFERENCE", ROOT.parent / "shared" / "reference"))
LOGS = REFERENCE / "har_golden_seed0.json"

BASELINES = ("fedavg_1T", "fedavg_2T", "fedavg_SPC", "fedavg_WFA", "fedprox_mu_0_0_1T", "fedprox_mu_0_0_2T")


@pytest.fixture
def logs() -> dict[str, Any]:
    if not LOGS.is_file():
        pytest.skip(f"golden file absent: {LOGS} (FEDBALANCER_REFERENCE names its folder)")
    found: dict[str, Any] = json.loads(LOGS.read_text())
    return found


def run(deadline: float | None, outcomes: list[tuple[float, int, list[int]]]) -> dict[str, Any]:
    """A run of two rounds: ann with cat, then ann with bob."""
    cohorts = [(["ann", 1.0, 1.0, 1.0], ["cat", 2.5, 1.0, 1.0]), (["ann", 1.0, 1.0, 1.0], ["bob", 2.0, 1.0, 1.0])]
    rounds = [
        {"draws": [[*draw, done] for draw, done in zip(draws, epochs, strict=True)], "duration": duration, "ok": ok}
        for draws, (duration, ok, epochs) in zip(cohorts, outcomes, strict=True)
    ]
    starts = [0.0, 20 + outcomes[0][0], 40 + outcomes[0][0] + outcomes[1][0]]
    return {"deadline": deadline, "rounds": rounds, "log_start_times": starts, "log_ok": [o[1] for o in outcomes]}


def own_golden() -> dict[str, Any]:
    """Worked out by hand. Network 1 + 1 s; two epochs of 1, 2 and 4 batches of 1, 2 and 3 s: 4, 10 and 26 s expected.

    T = 40/3, with half an epoch more 48.5/3; the cap at P80 (26) takes cat to 3 batches and 20 s. In round 1 cat is
    quicker than expected: 22 s, or 12 s with one epoch.
    """
    clients = [("ann", 10, 1.0), ("bob", 20, 2.0), ("cat", 31, 3.0)]
    runs: dict[str, Any] = {
        "fedavg_1T": run(13.0, [(13.0, 1, [2, 0]), (10.0, 2, [2, 2])]),
        "fedavg_2T": run(26.0, [(22.0, 2, [2, 2]), (10.0, 2, [2, 2])]),
        "fedavg_SPC": run(None, [(4.0, 1, [2, 2]), (4.0, 1, [2, 2])]),
        "fedavg_WFA": run(None, [(22.0, 2, [2, 2]), (10.0, 2, [2, 2])]),
        "fedprox_mu_0_1_1T": run(13.0, [(12.0, 2, [2, 1]), (10.0, 2, [2, 2])]),
        "fedprox_mu_0_1_2T": run(26.0, [(22.0, 2, [2, 2]), (10.0, 2, [2, 2])]),
        "sampleselection": {"deadline": 34 / 3},
        "fedbalancer": {
            "deadline": [16.0] * 3 + [25.0] * 37 + [24.0] * 5,
            "lt": [0.0] * 40 + [0.2] * 5,
            "ltr": [0.0] * 40 + [0.05] * 5,
            "ddlr": [1.0] * 40 + [0.95] * 5,
            "U": [2.0] * 20 + [1.0] * 25,
            "dl": [[number, 5.0] for number in range(4, 46)],
            "dh": [[number, 25.0] for number in range(4, 46)],
            "loss_low": [[number, 0.1] for number in range(41, 46)],
            "loss_high": [[number, 2.1] for number in range(41, 46)],
        },
    }
    seed = {
        "clients": [{"subject": name, "n": n, "class": 0, "net": 0, "batch_s_10": [s] * 10} for name, n, s in clients],
        "T": 40 / 3,
        "fb_initial": 48.5 / 3,
        "runs": runs,
    }
    shape = {"K": 2, "E": 2, "B": 10, "model_bytes": 1_024_000, "speeds_kB_s": [[1000.0, 1.0, 1024.0, 1.0]]}
    return {**shape, "seeds": {"7": seed}}


def written(tmp_path: Path, golden: Any) -> Path:
    path = tmp_path / "golden.json"
    path.write_text(golden if isinstance(golden, str) else json.dumps(golden))
    return path


def changed(golden: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy with one value exchanged; `place` is a dotted path under the only seed's runs, or from the top with /."""
    fresh = copy.deepcopy(golden)
    inner: Any = fresh if place.startswith("/") else next(iter(fresh["seeds"].values()))
    *parents, last = [int(part) if part.isdigit() else part for part in place.lstrip("/").split(".")]
    for parent in parents:
        inner = inner[str(parent) if isinstance(inner, dict) else parent]
    if value is DELETED:
        del inner[last]
    else:
        inner[last] = value
    return fresh


DELETED = object()


def shell(path: Path) -> subprocess.CompletedProcess[str]:
    source = str(Path(fedbalancer.__file__).parents[1])
    command = [sys.executable, "-m", "fedbalancer.testing", "golden", str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": source}, timeout=120
    )


def mismatches(report: GoldenReport) -> dict[str, list[str]]:
    return {check.name: check.mismatches for check in report.checks if check.mismatches}


class TestTheAuthorsLogs:
    def test_every_recorded_round_and_control_value_is_ours_as_well(self, logs: dict[str, Any]) -> None:
        report = replay_golden(LOGS)
        assert mismatches(report) == {}
        checked = {check.name.removeprefix("seed 0 "): check.checked for check in report.checks}
        assert {name: checked[f"{name} rounds"] for name in BASELINES} == dict.fromkeys(BASELINES, 20)
        assert {name: checked[f"{name} start times"] for name in BASELINES} == dict.fromkeys(BASELINES, 20)
        controls = ("fedbalancer ltr", "fedbalancer ddlr", "fedbalancer lt", "fedbalancer deadline")
        assert {name: checked[name] for name in controls} == dict.fromkeys(controls, 200)
        assert [checked[name] for name in ("T", "initial deadline", "sampleselection T")] == [1, 1, 1]
        assert len(checked) == 12 + 4 + 3
        assert report.ok

    def test_the_command_passes(self, logs: dict[str, Any]) -> None:
        done = shell(LOGS)
        assert (done.returncode, done.stderr) == (0, "")
        assert "fedbalancer deadline" in done.stdout

    def test_the_command_fails_on_a_changed_duration_and_names_it(self, logs: dict[str, Any], tmp_path: Path) -> None:
        tampered = changed(logs, "runs.fedavg_SPC.rounds.6.duration", 300.0)
        done = shell(written(tmp_path, tampered))
        assert (done.returncode, done.stderr) == (1, "")
        assert "seed 0 fedavg_SPC rounds: round 7: duration is" in done.stdout

    @pytest.mark.parametrize(
        ("place", "change", "check"),
        [
            ("runs.fedprox_mu_0_0_1T.rounds.0.draws.0.4", lambda done: done + 1, "fedprox_mu_0_0_1T rounds"),
            ("runs.fedprox_mu_0_0_1T.rounds.0.draws.1.1", lambda batch_s: 1.001 * batch_s, "fedprox_mu_0_0_1T rounds"),
            ("runs.fedbalancer.ltr.60", lambda ltr: ltr + 0.05, "fedbalancer ltr"),
            ("runs.fedbalancer.lt.199", lambda lt: lt + 1e-6, "fedbalancer lt"),
            ("runs.fedbalancer.U.25", lambda _: 1000.0, "fedbalancer ltr"),
            ("T", lambda seconds: seconds + 1e-4, "T"),
            ("runs.fedavg_WFA.rounds.3.duration", lambda seconds: seconds + 2e-7, "fedavg_WFA rounds"),
        ],
    )
    def test_no_change_slips_by(
        self, logs: dict[str, Any], tmp_path: Path, place: str, change: Callable[[float], float], check: str
    ) -> None:
        value: Any = logs["seeds"]["0"]
        for part in place.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        report = replay_golden(written(tmp_path, changed(logs, place, change(value))))
        assert f"seed 0 {check}" in mismatches(report)


class TestAFileOfOurOwn:
    def test_what_was_worked_out_by_hand_comes_out(self, tmp_path: Path) -> None:
        report = replay_golden(written(tmp_path, own_golden()))
        assert mismatches(report) == {}
        assert sum(check.checked for check in report.checks if check.name.endswith(" rounds")) == 12
        assert sum(check.checked for check in report.checks if "fedbalancer" in check.name) == 4 * 45

    @pytest.mark.parametrize(
        ("place", "value", "check", "told"),
        [
            ("T", 13.0, "T", "seconds is 13.33"),
            ("fb_initial", 16.0, "initial deadline", "seconds is 16.16"),
            ("runs.sampleselection.deadline", 40 / 3, "sampleselection T", "seconds is 11.33"),
            ("runs.fedavg_1T.deadline", 14.0, "fedavg_1T rounds", "round 1: deadline is 13.0, recorded 14.0"),
            ("runs.fedavg_1T.rounds.0.duration", 12.9, "fedavg_1T rounds", "round 1: duration is 13.0, recorded 12.9"),
            ("runs.fedavg_2T.rounds.1.ok", 1, "fedavg_2T rounds", "round 2: successes is 2, recorded 1"),
            ("runs.fedavg_2T.log_ok.1", 1, "fedavg_2T rounds", "round 2: logged successes is 2, recorded 1"),
            ("runs.fedavg_SPC.rounds.0.draws.1.4", 1, "fedavg_SPC rounds", "round 1: epochs of cat is 2.0, recorded 1"),
            ("runs.fedavg_WFA.log_start_times.1", 41.0, "fedavg_WFA start times", "round 1: seconds to the next start"),
            ("runs.fedprox_mu_0_1_1T.rounds.0.draws.1.4", 2, "fedprox_mu_0_1_1T rounds", "epochs of cat is 1.0"),
            ("runs.fedbalancer.ddlr.44", 0.9, "fedbalancer ddlr", "round 45: ddlr is 0.95, recorded 0.9"),
            ("runs.fedbalancer.ltr.0", 0.05, "fedbalancer ltr", "round 1: ltr is 0.0"),
            ("runs.fedbalancer.lt.40", 0.1, "fedbalancer lt", "round 41: lt is 0.2"),
            ("runs.fedbalancer.deadline.2", 17.0, "fedbalancer deadline", "round 3: deadline is 16.0"),
            ("runs.fedbalancer.dh.41.1", 26.0, "fedbalancer deadline", "round 45: deadline is 24.95"),
        ],
    )
    def test_a_changed_value_is_reported(self, tmp_path: Path, place: str, value: float, check: str, told: str) -> None:
        report = replay_golden(written(tmp_path, changed(own_golden(), place, value)))
        found = mismatches(report)
        assert not report.ok
        assert told in found[f"seed 7 {check}"][0]

    def test_a_round_without_success_has_no_utility_and_does_not_count(self, tmp_path: Path) -> None:
        golden = changed(own_golden(), "runs.fedbalancer.U.30", None)
        found = mismatches(replay_golden(written(tmp_path, golden)))
        assert found["seed 7 fedbalancer ltr"] == ["round 41: ltr is 0.0, recorded 0.05"]

    @given(draws=st.lists(st.tuples(*[st.floats(0.001, 50)] * 3), min_size=3, max_size=3))
    @settings(max_examples=25, deadline=None)
    def test_whoever_waits_for_all_waits_for_the_slowest(
        self, draws: list[tuple[float, float, float]], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        golden = own_golden()
        totals = [2 * n * batch + down + up for n, (batch, down, up) in zip((1, 2, 4), draws, strict=True)]
        rows = [[name, *draw, 2] for name, draw in zip(("ann", "bob", "cat"), draws, strict=True)]
        slowest = {"draws": rows, "duration": max(totals), "ok": 3}
        logged = {"deadline": None, "rounds": [slowest], "log_start_times": [0.0, 20 + max(totals)], "log_ok": [3]}
        golden["seeds"]["7"]["runs"] = {"fedavg_WFA": logged}
        report = replay_golden(written(tmp_path_factory.mktemp("wfa"), golden))
        assert mismatches(report) == {}

    def test_the_table_names_runs_counts_and_the_first_mismatches(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        golden = changed(own_golden(), "runs.fedbalancer.lt", [0.5] * 45)
        assert main(["golden", str(written(tmp_path, golden))]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["run", "checked", "mismatches"]
        assert ["seed", "7", "fedavg_SPC", "rounds", "2", "0"] in [line.split() for line in lines]
        assert ["seed", "7", "fedbalancer", "lt", "45", "45"] in [line.split() for line in lines]
        assert lines[-2:] == [
            "seed 7 fedbalancer lt: round 5: lt is 0.0, recorded 0.5",
            "seed 7 fedbalancer lt: and 40 more",
        ]


class TestRounding:
    """Two epochs of 1, 2 and 4 batches: T moves by 14/3 of what every latency does, the forward pass by 7/6 more."""

    @staticmethod
    def rounded(decimals: int, per_latency: float) -> dict[str, Any]:
        """Latencies with an error of just under half a unit of the last decimal, times known as they truly were.
        `per_latency` more or fewer half units are in T."""
        golden, half = own_golden(), 0.5 * 10**-decimals
        seed = golden["seeds"]["7"]
        for client in seed["clients"]:
            client["batch_s_10"] = [s + 10**-decimals for s in client["batch_s_10"]]
        moved = 2 * half + per_latency * half
        seed["T"], seed["fb_initial"] = (40 + 14 * moved) / 3, (48.5 + 17.5 * moved) / 3
        seed["runs"]["sampleselection"]["deadline"] = (34 + 12 * moved) / 3
        return golden

    @pytest.mark.parametrize("decimals", [4, 6, 9])
    @pytest.mark.parametrize("error", [-0.99, 0.0, 0.99])
    def test_what_rounding_can_have_done_is_no_mismatch(self, tmp_path: Path, decimals: int, error: float) -> None:
        assert mismatches(replay_golden(written(tmp_path, self.rounded(decimals, error)))) == {}

    @pytest.mark.parametrize("decimals", [4, 6])
    @pytest.mark.parametrize("error", [-1.05, 1.05])
    def test_what_it_cannot_have_done_is_one(self, tmp_path: Path, decimals: int, error: float) -> None:
        path = written(tmp_path, self.rounded(decimals, error))
        times = {f"seed 7 {name}" for name in ("T", "initial deadline", "sampleselection T")}
        assert set(mismatches(replay_golden(path))) == times
        assert main(["golden", str(path)]) == 1

    @pytest.mark.parametrize(("units", "told"), [(0.99, False), (1.05, True)])
    def test_a_duration_is_bounded_by_every_batch_of_the_biggest_client_and_its_network(
        self, tmp_path: Path, units: float, told: bool
    ) -> None:
        golden = own_golden()
        run = golden["seeds"]["7"]["runs"]["fedavg_WFA"]
        run["rounds"][0]["draws"][1][1] = 2.500000001  # nine decimals: 22.000000008 s
        run["rounds"][0]["duration"] = 22.000000008 + units * (0.5e-9 * (2 * 4 + 2) + 1e-9)
        run["log_start_times"] = [
            0.0,
            20 + run["rounds"][0]["duration"],
            52.000000008 + run["rounds"][0]["duration"] - 22,
        ]
        found = mismatches(replay_golden(written(tmp_path, golden)))
        assert ("seed 7 fedavg_WFA rounds" in found) is told

    def test_a_threshold_is_bounded_by_the_decimals_of_the_losses(self, tmp_path: Path) -> None:
        golden = changed(own_golden(), "runs.fedbalancer.loss_high.0.1", 2.1001)  # four decimals in the column
        assert mismatches(replay_golden(written(tmp_path, golden))) == {}
        golden = changed(golden, "runs.fedbalancer.lt.40", 0.2002)
        assert "seed 7 fedbalancer lt" in mismatches(replay_golden(written(tmp_path, golden)))


class TestAFileThatIsNone:
    @pytest.mark.parametrize("key", ["/K", "/E", "/B", "/model_bytes", "/speeds_kB_s", "/seeds"])
    def test_a_missing_key_is_named(self, tmp_path: Path, key: str) -> None:
        with pytest.raises(FedBalancerError, match=rf"golden.json: {key[1:]} is missing$"):
            replay_golden(written(tmp_path, changed(own_golden(), key, DELETED)))

    @pytest.mark.parametrize(
        "place",
        [
            "clients", "T", "fb_initial", "runs", "clients.1.n", "clients.0.net", "clients.2.batch_s_10",
            "runs.fedavg_1T.rounds", "runs.fedavg_1T.deadline", "runs.fedavg_1T.log_ok",
            "runs.fedavg_1T.rounds.1.duration", "runs.fedavg_WFA.rounds.0.ok", "runs.sampleselection.deadline",
            "runs.fedbalancer.U", "runs.fedbalancer.dl",
        ],
    )  # fmt: skip
    def test_a_missing_part_of_a_seed_is_named(self, tmp_path: Path, place: str) -> None:
        with pytest.raises(FedBalancerError, match=rf"seeds\.7\.{place} is missing$"):
            replay_golden(written(tmp_path, changed(own_golden(), place, DELETED)))

    @pytest.mark.parametrize(
        ("place", "value", "told"),
        [
            ("/seeds", {}, "seeds is wrong"),
            ("/E", "five", "E is wrong"),
            ("/speeds_kB_s", [[0.0, 1.0, 1.0, 1.0]], "speeds_kB_s.0.0 is wrong"),
            ("runs", {}, "seeds.7.runs is wrong"),
            ("runs.fedavg_3T", {}, "seeds.7.runs.fedavg_3T has an unknown method; known: fedavg_1T"),
            ("clients.1.net", 4, "seeds.7.clients.1.net is 4; there are 1 network profiles"),
            ("clients.1.subject", "ann", "seeds.7.clients has subject 'ann' twice"),
            ("clients.1.n", 10**30, "seeds.7.clients.1.n is wrong"),
            ("runs.fedavg_1T.rounds", [], "seeds.7.runs.fedavg_1T.rounds is wrong"),
            ("runs.fedavg_1T.rounds.0.draws.1.0", "dan", "rounds.0.draws has subject 'dan', unknown or drawn twice"),
            ("runs.fedavg_1T.rounds.0.draws.1.0", "ann", "rounds.0.draws has subject 'ann', unknown or drawn twice"),
            ("runs.fedavg_1T.rounds.0.draws.1", ["cat", 1.0], "fedavg_1T.rounds.0.draws.1.2 is missing"),
            ("runs.fedavg_1T.rounds.0.draws.1.1", float("nan"), "fedavg_1T.rounds.0.draws.1.1 is wrong"),
            ("runs.fedavg_1T.log_ok", [1], "fedavg_1T.log_ok has 1 values; there are 2 rounds"),
            ("runs.fedbalancer.lt", [0.0], "fedbalancer.lt has 1 values; there are 45 rounds"),
            ("runs.fedbalancer.dh", [], "fedbalancer.dl and dh must have the same rounds"),
        ],
    )
    def test_a_wrong_value_is_named(self, tmp_path: Path, place: str, value: Any, told: str) -> None:
        with pytest.raises(FedBalancerError) as raised:
            replay_golden(written(tmp_path, changed(own_golden(), place, value)))
        assert told in str(raised.value)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"K": 5', "\x00"])
    def test_what_is_not_the_format_at_all_is_an_error(
        self, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = written(tmp_path, text)
        assert main(["golden", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {path} is wrong: ")

    def test_an_absent_file_and_a_folder_are_errors(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for path in (tmp_path / "absent.json", tmp_path):
            assert main(["golden", str(path)]) == 2
            assert capsys.readouterr().err.startswith(f"error: cannot read {path}: ")

    def test_the_command_says_so_in_one_line(self, tmp_path: Path) -> None:
        done = shell(written(tmp_path, changed(own_golden(), "runs.fedavg_1T.rounds", DELETED)))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert done.stderr.endswith("seeds.7.runs.fedavg_1T.rounds is missing\n")
