"""The content and the size of a report's charts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from reporting.conftest import write_run
from reporting.full import CLIENTS, complete
from reporting.pages import write_page

from fedbalancer.reporting import write_report
from fedbalancer.reporting.charts import Chart, make_charts
from fedbalancer.reporting.results import Results, load
from fedbalancer.reporting.scores import score_comparison
from fedbalancer.reporting.series import accuracy_axes, clock_name
from fedbalancer.reporting.time_curve import SHARES, target_medians

TWO = ("fedavg+1t", "fedbalancer")


@pytest.fixture
def full(tmp_path: Path, make_comparison: Callable[..., Path]) -> Results:
    folder = make_comparison(tmp_path / "c", methods=TWO, seeds=(0, 1))
    for run in folder.glob("*/seed-*"):
        complete(run)
    return load(folder)


def drawn(results: Results) -> dict[str, Chart]:
    return {chart.name: chart for chart in make_charts(results, score_comparison(results))}


def test_a_run_of_today_has_every_chart(full: Results) -> None:
    found = drawn(full)
    assert list(found) == [
        "accuracy", "speedup", "targets", "outcomes", "times", "completed", "dropped", "deadline",
        "deadline-ratio", "threshold", "losses", "seen", "selections", "classes",
    ]  # fmt: skip
    assert list(found["accuracy"].choices) == ["share", "time", "rounds", "bytes", "energy"]


def test_dl_and_dh_stand_beside_the_deadline_of_the_method_that_has_them(full: Results) -> None:
    labels = [series["label"] for series in drawn(full)["deadline"].spec["series"]]
    assert labels == ["fedavg+1t", "fedbalancer", "fedbalancer: dl", "fedbalancer: dh"]


def test_the_threshold_stands_beside_the_losses_of_the_method_that_has_one(full: Results) -> None:
    series = {each["label"]: each for each in drawn(full)["seen"].spec["series"]}
    assert set(TWO) < set(series)
    assert {label for label, each in series.items() if each.get("thin")} == {"fedbalancer: threshold"}
    lines = series["fedbalancer"]["on"]["rounds"]
    assert all(low <= y <= high for low, y, high in zip(lines["low"], lines["y"], lines["high"], strict=True))


def test_the_time_of_a_round_is_by_device_class_and_adds_up_to_the_round(full: Results) -> None:
    rows = {row["label"]: row["parts"] for row in drawn(full)["times"].spec["rows"]}
    assert list(rows) == [f"{method} · {device}" for method in TWO for device in ("slow", "mid", "fast")]
    rounds = full.of("fedavg+1t")[0].rounds
    assert sum(rows["fedavg+1t · mid"]) == pytest.approx((rounds["end_s"] - rounds["start_s"]).mean(), rel=0.05)  # type: ignore[type-var]


def test_a_class_that_is_left_out_shows(full: Results) -> None:
    plain, ours = (series["on"]["class"] for series in drawn(full)["classes"].spec["series"])
    assert plain["x"] == ours["x"] == [0, 1, 3]  # nobody held the class 2
    assert (plain["y"], ours["y"]) == ([100, 100, 100], [100, 25, 50])


def test_the_captions_promise_what_is_drawn(full: Results) -> None:
    found = drawn(full)
    assert "Dots: mean over seeds" in found["classes"].about
    assert found["classes"].spec["points"]
    assert found["speedup"].spec["log"]
    assert "Bars: mean." in found["speedup"].about
    assert "interval" not in found["speedup"].about, "two seeds have none to show"
    assert not any("range" in row for row in found["speedup"].spec["rows"])
    assert "A deadline policy may ignore it" in found["deadline-ratio"].about


def test_clients_that_were_never_selected_are_counted(full: Results) -> None:
    (line, *_) = drawn(full)["selections"].spec["series"]
    ranks, times = line["on"]["rank"]["x"], line["on"]["rank"]["y"]
    assert (ranks[0], ranks[-1], times[-1]) == (1, CLIENTS, 0)
    assert times == sorted(times, reverse=True)
    runs = full.of("fedavg+1t")
    assert sum(times) == pytest.approx(sum(run.rounds.height * 5 for run in runs) / len(runs), rel=0.01)


def test_over_the_share_of_its_own_budget_every_seed_comes_to_the_end_of_it(full: Results) -> None:
    share, time, rounds, sent, energy = accuracy_axes(full)
    for axis in (share, time, rounds, sent, energy):
        band = axis.bands["fedbalancer"]
        assert band is not None
        assert band.x[0] < band.x[-1]
    ends = [run.curve.last_s / full.budgets_s[run.curve.seed] for run in full.of("fedbalancer")]
    band = share.bands["fedbalancer"]
    assert band is not None
    assert 1.0 < band.x[-1] <= min(ends)
    assert band.end <= max(ends)
    assert (sent.label, energy.label) == ("bytes sent, down and up (MB)", "energy: device time (h)")


def test_a_run_that_is_not_done_is_a_line_of_its_own(comparison_folder: Path) -> None:
    share = accuracy_axes(load(comparison_folder))[0]
    band = share.bands["prox+1t"]
    assert band is not None
    assert (band.seeds, band.tails[-1].seed, float(band.tails[-1].x[-1]) < 0.3) == (3, 2, True)


def test_time_to_accuracy_grows_with_the_target_and_ends_where_nobody_came(full: Results) -> None:
    comparison = score_comparison(full)
    for times in target_medians(full, comparison).values():
        known = [time for time in times if time is not None]
        assert known == sorted(known)
        assert times[: len(known)] == known, "once lost, a target above is lost too"
    at_one = target_medians(full, comparison)["fedbalancer"][SHARES.index(1.0)]
    assert at_one == comparison["fedbalancer"].at(1.0).median_s


@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ({"backend": "fast", "device": "cpu"}, "simulated time"),
        ({"engine": "flower", "device": "emulated"}, "time on the phones' clock"),
        ({"engine": "flower", "device": "real"}, "time on the server's clock"),
    ],
)
def test_a_report_says_whose_clock_it_is(tmp_path: Path, manifest: dict[str, str], name: str) -> None:
    write_run(tmp_path / "run", "fedbalancer", 0)
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | manifest))
    assert clock_name(load(tmp_path / "run")) == name
    page = write_page(tmp_path / "run").read_text(encoding="utf-8").replace("&#39;", "'")
    assert name in page
    assert ("simulated" in page) is (name == "simulated time")


def test_a_bed_is_scored_by_the_clock_of_its_phones(tmp_path: Path, make_comparison: Callable[..., Path]) -> None:
    folder = make_comparison(tmp_path / "c", methods=TWO, seeds=(0,))
    for path in folder.rglob("manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": "flower", "device": "emulated"}))
    report = write_report(folder)
    for path in (report.page, report.table):
        text = path.read_text(encoding="utf-8")
        assert "simulated" not in text
        assert "phones" in text


def test_fifty_runs_of_a_thousand_rounds_are_a_small_page(tmp_path: Path) -> None:
    methods, seeds = [f"method-{number}" for number in range(10)], range(5)
    for method in methods:
        for seed in seeds:
            write_run(tmp_path / method / f"seed-{seed}", method, seed, budget_s=150_000.0, rounds=1000)
            complete(tmp_path / method / f"seed-{seed}")
    content = {"task": "har", "methods": methods, "seeds": list(seeds), "budgets_s": dict.fromkeys(seeds, 150_000.0)}
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    assert 100_000 < write_page(tmp_path).stat().st_size < 1_000_000
