"""Four unlike clients on a real Flower federation: whose reports count, under which method.

    python benchmarks/flower_mixed.py [--methods fedbalancer,fedbalancer+late] [--rounds 14] [--folder DIR]

A SuperLink and four SuperNodes run on loopback. Two clients are fast, one trains slowly, one has a slow link; the slow
ones have data that nobody else has. The deadline, transport and reports are those of the wall clock. For every method
the table has the clients' orders and reports that counted, the seconds of the run and the loss at its end; below it,
what the deadline rule alone would give for the times that were really measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fedbalancer.flower.federation import Federation
from fedbalancer.server.deadline import peak_deadline

APP = Path(__file__).parent.parent / "tests" / "flower" / "app"
EPOCHS, BATCH_SIZE = 3, 10


@dataclass(frozen=True)
class Device:
    """A client: seconds per batch, seconds of its link per round trip, and the features that only it can teach."""

    name: str
    batch_s: float
    link_s: float
    strong: str


DEVICES = (
    Device("fast", 0.05, 0.0, "0"),
    Device("fast too", 0.1, 0.0, "1"),
    Device("slow phone", 1.5, 0.0, "23"),
    Device("slow link", 0.1, 14.0, "45"),
)


def run(method: str, rounds: int, folder: Path) -> Path:
    """The run folder of one method."""
    made = folder / method.replace("+", "-") / "first"
    with Federation(folder / f"federation-{method}", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}) as federation:
        federation.superlink()
        for number, device in enumerate(DEVICES):
            environment = {
                "FEDBALANCER_CLIENT_FOLDER": str(made.parent / f"client{number}"), "TINY_BATCH_S": str(device.batch_s),
                "TINY_LINK_S": str(device.link_s), "TINY_STRONG": device.strong,
            }  # fmt: skip
            federation.supernode(f"node{number}", f"partition-id={number}", environment)
        config = f'folder="{made.parent}" key="first" method="{method}" rounds={rounds} clients={len(DEVICES)} w=5'
        federation.run(APP, "--run-config", config)
        while not _ended(made):
            time.sleep(1.0)
    return made


def _ended(folder: Path) -> bool:
    manifest = folder / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_text())["status"] != "running"


def table(folders: Sequence[tuple[str, Path]]) -> str:
    """Orders and reports that counted, by client, and what they were good for."""
    lines = [f"| method | {' | '.join(device.name for device in DEVICES)} | counted | seconds | loss |",
             "|:--|" + "--:|" * (len(DEVICES) + 3)]  # fmt: skip
    for method, folder in folders:
        rows = pl.read_parquet(folder / "clients.parquet").filter(pl.col("outcome") != "unavailable")
        rounds, evals = (pl.read_parquet(folder / f"{name}.parquet") for name in ("rounds", "evals"))
        cells, all_counted, all_ordered = [], 0, 0
        for number in range(len(DEVICES)):
            own = rows.filter(pl.col("client") == f"client-{number}")
            counted = int(own["outcome"].is_in(["completed", "joined"]).sum())
            ordered = int((own["outcome"] != "joined").sum())
            cells.append(f"{counted} of {ordered}")
            all_counted, all_ordered = all_counted + counted, all_ordered + ordered
        seconds = float(rounds["end_s"][-1])
        lines.append(f"| `{method}` | {' | '.join(cells)} | {all_counted} of {all_ordered} | {seconds:.0f} | "
                     f"{evals['loss'][-1]:.2f} |")  # fmt: skip
    return "\n".join(lines)


def rule_alone(folder: Path) -> str:
    """The deadlines that Algorithm 4 gives for one epoch and for all if nothing is added to the mean transport of the
    fast clients and to each link, and who cannot meet them."""
    rows = pl.read_parquet(folder / "clients.parquet").filter(pl.col("outcome") == "completed")
    fast = rows.filter(pl.col("client").is_in(["client-0", "client-1"]))
    usual_s = float(np.mean((fast["download_s"] + fast["upload_s"]).to_numpy()))
    transport_s = [usual_s + device.link_s for device in DEVICES]
    batches = np.array([(40 + 10 * number) / BATCH_SIZE for number in range(len(DEVICES))])
    epoch_s = batches * np.array([device.batch_s for device in DEVICES])
    one, every = (np.array(transport_s) + epochs * epoch_s for epochs in (1, EPOCHS))
    low, high = peak_deadline(one)[0], peak_deadline(every)[0]
    out = [device.name for device, least_s in zip(DEVICES, one, strict=True) if least_s > max(low, high)]
    times = ", ".join(f"{device.name} {a:.1f} to {b:.1f} s" for device, a, b in zip(DEVICES, one, every, strict=True))
    return (
        f"mean seconds for one epoch to all {EPOCHS}: {times}; Algorithm 4 alone: dl = {low:.0f} s, dh = {high:.0f} s; "
        f"too slow for both: {', '.join(out) or 'nobody'}"
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--methods", default="fedbalancer,fedbalancer+late")
    arguments.add_argument("--rounds", type=int, default=14)
    arguments.add_argument("--folder", type=Path, default=None, help="where runs and logs go")
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="flower-mixed-"))
    done = [(method, run(method, given.rounds, folder)) for method in given.methods.split(",")]
    print(table(done))
    for method, made in done:
        print(f"{method}: {rule_alone(made)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
