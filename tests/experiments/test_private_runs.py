"""Runs with private summaries: counted, resumed, and ended by their budget."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from experiments import tinytask

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting
from fedbalancer.experiments.execute import execute, resume
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.privacy import epsilon_of
from fedbalancer.store.checkpoint import Checkpoints

pytest.importorskip("dp_accounting")
PRIVATE = "fedbalancer[w=2,forward_pass=every,summary=histogram(noise_multiplier=7)]"
FILES = ("rounds.parquet", "evals.parquet", "clients.parquet", "privacy.parquet", "model.safetensors")


def spec(method: str = PRIVATE, **settings: object) -> RunSpec:
    return RunSpec(task=tinytask.load(), method=method, settings=settings)


def test_every_clients_epsilon_follows_from_the_rounds_in_which_it_told_something(tmp_path: Path) -> None:
    execute(spec(), tmp_path / "run")
    sent = pl.read_parquet(tmp_path / "run" / "clients.parquet")
    sent = sent.filter(pl.col("outcome").is_in(["completed", "late", "upload"]))
    counted = dict(sent.group_by("client").len().iter_rows())
    rows = pl.read_parquet(tmp_path / "run" / "privacy.parquet").to_dicts()
    assert len(rows) == len(tinytask.load().sizes)
    assert {row["unit"] for row in rows} == {"sample"}
    for row in rows:
        assert row["releases"] == counted.get(row["client"], 0)
        assert row["epsilon"] == pytest.approx(epsilon_of(7, row["releases"]))
    told = json.loads((tmp_path / "run" / "manifest.json").read_text())["privacy"]
    assert told["covers"] == "metadata only"
    assert (told["mechanism"], told["unit"], told["delta"]) == ("histogram", "sample", 1e-5)


def test_a_budget_is_kept_by_everybody_and_ends_the_run_when_nobody_is_left(tmp_path: Path) -> None:
    result = execute(spec(epsilon_budget=1.0, rounds=50), tmp_path / "run")
    assert result.privacy is not None
    most = max(result.privacy["releases"])
    assert epsilon_of(7, most) <= 1 < epsilon_of(7, most + 1)
    assert set(result.privacy["releases"]) == {most}
    assert len(result.rounds) < 50
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["why"]) == ("done", "every client has spent its epsilon_budget")
    assert result.evals["round"][-1] == result.rounds["round"][-1]


def test_a_stopped_run_resumes_with_what_was_spent(tmp_path: Path) -> None:
    calls = iter(range(1000))
    private = spec(epsilon_budget=1.0, rounds=50)
    execute(private, tmp_path / "whole")
    execute(private, tmp_path / "parts", stopped=lambda: next(calls) >= 2)
    resume(tmp_path / "parts", task=tinytask.load())
    for name in FILES:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


EXACT = ["seen_loss_p10", "seen_loss_p50", "seen_loss_p90"]
CENTRAL = "fedavg+1t[aggregate=fedbalancer.privacy.central:PrivateMean]"


def saved_losses(folder: Path) -> int:
    """Return the number of exact losses in the last checkpoint."""
    loaded = Checkpoints(folder / "checkpoint").load_latest()
    assert loaded is not None
    return len(loaded[1]["engine.losses"])


@pytest.mark.parametrize("method", [PRIVATE, CENTRAL, "prox+1t+silent", "oort[summary=histogram]"])
def test_a_private_run_writes_no_exact_losses_unless_asked(tmp_path: Path, method: str) -> None:
    result = execute(spec(method), tmp_path / "run")
    assert saved_losses(tmp_path / "run") == 0
    assert result.rounds.select(EXACT).null_count().row(0) == (result.rounds.height,) * 3
    asked = execute(spec(method, save_exact_losses=True), tmp_path / "asked")
    assert saved_losses(tmp_path / "asked") > 0
    assert asked.rounds.filter(pl.col("completed") > 0).select(EXACT).null_count().row(0) == (0,) * 3
    assert result.rounds.drop(EXACT).equals(asked.rounds.drop(EXACT))
    assert (result.weights == asked.weights).all()


@pytest.mark.parametrize("method", ["fedbalancer[w=2]", "fedbalancer[w=2,noise_factor=.5]"])
def test_a_run_that_promises_nothing_writes_them(tmp_path: Path, method: str) -> None:
    result = execute(spec(method), tmp_path / "run")
    assert saved_losses(tmp_path / "run") > 0
    assert result.rounds.select(EXACT).null_count().row(0) == (0,) * 3


def test_a_private_run_whose_lists_are_needed_resumes_with_new_ones_and_says_so(tmp_path: Path) -> None:
    calls = iter(range(1000))
    private = spec("fedbalancer[w=2,summary=histogram(noise_multiplier=7)]", rounds=8)
    execute(private, tmp_path / "run", stopped=lambda: next(calls) >= 2)
    assert resume(tmp_path / "run", task=tinytask.load()).rounds.height == 8
    assert "exact losses were not saved" in (tmp_path / "run" / "log.jsonl").read_text()


def test_a_budget_without_noise_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="epsilon_budget = 1"):
        execute(spec("fedbalancer", epsilon_budget=1.0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_noise_has_no_table_of_epsilons(tmp_path: Path) -> None:
    assert fb.run(tinytask.load(), "fedbalancer", rounds=1, out=tmp_path / "run").privacy is None
    assert not (tmp_path / "run" / "privacy.parquet").exists()
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["privacy"]["noise_multiplier"] == 0


@pytest.mark.parametrize(
    "method",
    [
        "fedbalancer[w=2,forward_pass=every,summary=secagg-histogram(noise_multiplier=7,least=3)]",
        "fedbalancer-clients[threshold=TrackedThreshold,pace=ConstantPace,summary=fraction-tracker]",
        "fedbalancer[w=2,forward_pass=every,summary=gaussian(noise_factor=100,loss_clip=5,utility_samples='all')]",
        "oort[summary=histogram]",
        "fedavg+1t[forward_pass=every,summary=histogram]",
    ],
)
def test_every_mechanism_runs_and_is_counted(method: str) -> None:
    result = fb.run(tinytask.load(), method, rounds=3)
    assert result.privacy is not None
    assert max(result.privacy["releases"]) >= 1
    assert 0 < max(result.privacy["epsilon"]) < 100
