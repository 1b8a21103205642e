"""Tasks, results and progress in a notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.experiments import progress
from fedbalancer.reporting import RunCurve, score


@pytest.fixture(scope="module")
def result() -> fb.RunResult:
    return fb.run(tinytask.load(), "fedavg+1t", rounds=4, seed=3)


@pytest.fixture(scope="module")
def table() -> fb.Comparison:
    return fb.compare(tinytask.load(), ["fedavg+1t", "fedavg+wfa"], seeds=2, jobs=1, rounds=3, extend=1.0)


def test_reprs_are_short(result: fb.RunResult, table: fb.Comparison) -> None:
    assert repr(tinytask.load()) == "Task(tiny: 8 clients, 496 samples, 200 to test)"
    assert repr(result).startswith("RunResult(tiny, fedavg+1t, seed 3, done: 4 rounds, ")
    assert repr(table).startswith("Comparison(tiny, 2 seeds, fedavg+1t ")
    assert max(map(len, map(repr, (result, table)))) < 200


def test_results_are_tables_in_a_notebook(result: fb.RunResult, table: fb.Comparison) -> None:
    assert "<th>method</th><td>fedavg+1t</td>" in result._repr_html_()
    assert "<td>fedavg+wfa</td>" in table._repr_html_()


def test_results_are_frames(result: fb.RunResult, table: fb.Comparison) -> None:
    evals = result.to_polars()
    assert evals.select("task", "method", "seed").unique().rows() == [("tiny", "fedavg+1t", 3)]
    assert evals.drop("task", "method", "seed").equals(result.evals)
    frame = table.to_polars()
    assert frame["method"].to_list() == ["fedavg+1t", "fedavg+wfa"]
    assert frame["accuracy"][0] == table["fedavg+1t"].accuracy.mean
    pandas = pytest.importorskip("pandas")
    assert isinstance(table.to_pandas(), pandas.DataFrame)


def test_without_pandas_it_is_said_what_to_do(table: fb.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(fb.FedBalancerError, match="pip install pandas"):
        table.to_pandas()


def test_curves_are_there_without_a_folder(table: fb.Comparison) -> None:
    curves = table.curves
    assert set(curves.select("method", "seed").unique().rows()) == {
        (method, seed) for method in ("fedavg+1t", "fedavg+wfa") for seed in (0, 1)
    }
    assert {"round", "clock_s", "accuracy", "schedule"} <= set(curves.columns)
    assert curves.filter(pl.col("accuracy").is_null()).height == 0


def test_pictures_are_drawn(result: fb.RunResult, table: fb.Comparison) -> None:
    for plot in (result.plot(), table.plot(), table.plot("speedup")):
        assert plot._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UnknownName, match="did you mean speedup"):
        table.plot("speedups")


def test_every_round_and_evaluation_is_told() -> None:
    rounds: list[Mapping[str, Any]] = []
    evals: list[Mapping[str, Any]] = []
    result = fb.run(tinytask.load(), "fedavg+1t", rounds=4, on_round=rounds.append, on_eval=evals.append)
    assert rounds == result.rounds.to_dicts()
    assert evals == result.evals.to_dicts()


def test_what_a_callback_raises_ends_the_run() -> None:
    def enough(row: Mapping[str, Any]) -> None:
        raise StopIteration(f"round {row['round']}")

    with pytest.raises(StopIteration, match="round 1"):
        fb.run(tinytask.load(), "fedavg+1t", rounds=4, on_round=enough)


def run_and_stop(out: Path, **callbacks: Any) -> tuple[fb.RunResult, dict[str, Any]]:
    result = fb.run(tinytask.load(), "fedbalancer", rounds=8, settings={"w": 2}, out=out, **callbacks)
    return result, json.loads((out / "manifest.json").read_text())


@pytest.mark.parametrize(("name", "rounds"), [("on_round", 3), ("on_eval", 4)])
def test_a_callback_that_returns_stop_ends_the_run_cleanly_and_resume_continues_it(
    name: str, rounds: int, tmp_path: Path
) -> None:
    def third(row: Mapping[str, Any]) -> object:
        return fb.STOP if row["round"] >= 3 else None

    whole, _ = run_and_stop(tmp_path / "whole")
    result, manifest = run_and_stop(tmp_path / "run", **{name: third})
    assert (result.status, len(result.rounds)) == ("stopped", rounds)
    assert (manifest["status"], manifest["why"]) == ("stopped", f"{name} returned fb.STOP")
    assert result.rounds.equals(whole.rounds.head(rounds))
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert len(result.weights) == len(whole.weights)
    again = fb.resume(tmp_path / "run", task=tinytask.load(), **{name: third})  # type: ignore[arg-type]
    assert (again.status, len(again.rounds)) == ("stopped", rounds + (1 if name == "on_round" else 2))
    fb.resume(tmp_path / "run", task=tinytask.load())
    for file in ("rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet", "model.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_run_can_stop_before_its_first_round_and_the_last_round_is_an_end() -> None:
    first = fb.run(tinytask.load(), "fedavg+1t", rounds=4, on_eval=lambda row: fb.STOP)
    assert (first.status, len(first.rounds), len(first.evals)) == ("stopped", 0, 1)
    last = fb.run(tinytask.load(), "fedavg+1t", rounds=4, on_round=lambda row: fb.STOP if row["round"] == 4 else None)
    assert (last.status, len(last.rounds)) == ("done", 4)


def test_other_values_that_callbacks_return_do_not_stop_a_run() -> None:
    result = fb.run(tinytask.load(), "fedavg+1t", rounds=3, on_round=lambda row: True, on_eval=lambda row: "stop")
    assert (result.status, len(result.rounds)) == ("done", 3)


def test_a_target_ends_a_run_at_the_first_evaluation_that_reaches_it(tmp_path: Path) -> None:
    whole = fb.run(tinytask.load(), "fedavg+1t", rounds=8, settings={"eval_every": 1})
    levels = whole.evals.filter(pl.col("round") > 0)
    target = float(levels["accuracy"][2])
    needed = int(levels.filter(pl.col("accuracy") >= target)["round"][0])
    result = fb.run(
        tinytask.load(), "fedavg+1t", rounds=8, settings={"eval_every": 1}, target=target, out=tmp_path / "run"
    )
    assert (result.status, len(result.rounds)) == ("done", needed)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["why"]) == ("done", f"reached the target {target:g}")
    assert result.population is not None
    assert len(fb.resume(tmp_path / "run", task=tinytask.load()).rounds) == needed
    longer = fb.resume(tmp_path / "run", task=tinytask.load(), target=max(levels["accuracy"]))
    assert len(longer.rounds) > needed
    assert longer.rounds.equals(whole.rounds.head(len(longer.rounds)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": 80}, "target = 80 must be a value of accuracy above 0 and at most 1; 80% is 0.8"),
        ({"target": 0.0}, "target = 0 must be a value of accuracy"),
        ({"target": float("nan")}, "target = nan must be a finite number"),
        ({"target": "0.8"}, "target = '0.8' must be a finite number"),
        ({"target": 0.8, "timing_only": True}, "timing_only"),
    ],
)
def test_a_target_that_cannot_be_reached_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSetting, match=re.escape(words)):
        fb.run(tinytask.load(), "fedavg+1t", rounds=2, **options)


def test_progress_is_shown_where_somebody_looks_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fb.run(tinytask.load(), "fedavg+1t", rounds=2)
    assert capsys.readouterr().err == ""
    fb.run(tinytask.load(), "fedavg+1t", rounds=2, progress=True)
    assert "fedavg+1t seed 0: 50%, round 1" in capsys.readouterr().err

    class Notebook:
        @staticmethod
        def get_ipython() -> object:
            return object()

    monkeypatch.setitem(__import__("sys").modules, "IPython", Notebook)
    assert progress.shows_progress(None)
    assert not progress.shows_progress(False)


def test_a_bound_has_its_sign_wherever_a_comparison_is_shown() -> None:
    best = RunCurve("fedavg+1t", 0, curve(0.5, 0.8))
    never = RunCurve("fedbalancer", 0, curve(0.5, 0.6))
    table = score([best, never], {0: 20.0}, rule="fair")
    assert table["fedbalancer"].speedup.bound == "<"
    assert re.search(r"fedbalancer < 1\.00x\)$", repr(table))
    assert "fedavg+1t 1.00x" in repr(table)
    assert "never, &lt; 1.00×" in table._repr_html_()


def curve(*accuracies: float) -> pl.DataFrame:
    times = [10.0 * row for row in range(len(accuracies) + 1)]
    return pl.DataFrame({"start_s": times[:-1], "clock_s": times[1:], "accuracy": accuracies})
