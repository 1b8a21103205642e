"""Three equal clients on one machine, no faults: their reports count."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from fedbalancer.flower.federation import Federation
from fedbalancer.flower.template import write_app

ROUNDS, LEAST = 9, 0.95


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.parametrize("measures", [True, False], ids=["with batch_s", "without batch_s"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_reports_count_from_the_third_round_on(tmp_path: Path, framework: str, measures: bool) -> None:
    """95 % of the orders from the third round on, whether the clients timed their batches before or not."""
    pytest.importorskip(framework)
    app = tmp_path / "my_app"
    write_app(app, framework)
    if not measures:
        if framework == "torch":
            pytest.skip("client_app always times batches")
        client = app / "my_app" / "client_app.py"
        client.write_text(client.read_text().replace(", batch_s=batch_s)", ")"))
    with Federation(tmp_path / "federation", cwd=app) as federation:
        federation.superlink()
        for number in range(3):
            federation.supernode(f"node{number}", f"partition-id={number}")
        config = f"rounds={ROUNDS} min-clients=3"
        federation.start("run", ["flwr", "run", str(app), "--run-config", config, "--stream"])
        federation.processes["run"].wait(840)
        log = federation.log("run")
    rounds = pl.read_parquet(app / "runs" / "first" / "rounds.parquet")
    print(rounds.select("round", "start_s", "end_s", "deadline_s", "selected", "completed"))
    later = rounds.filter(pl.col("round") >= 3)
    assert later["completed"].sum() >= LEAST * later["selected"].sum(), log[-5000:]
