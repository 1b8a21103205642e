"""The control plane alone: what a round costs with a thousand to a million clients, when nothing is trained.

    python benchmarks/scale.py [--most 1000000] [--repeats 9] [--plot docs/images/scale.png] [--json]

Server, policies, simulated devices and clock are those of a run; only the training is left out. Every round selects
1,000 clients, or a tenth of them where there are fewer, from a population of which half have reported before. Seconds
are of processor time, which other work on the machine changes least; repeats of all populations are interleaved, and
medians are shown. Bytes are what Python and NumPy allocated beyond the task's own client ids and sizes. The exponent of
a part is fitted over the last factor of ten in clients, where what does not grow with them weighs least.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
import tracemalloc
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.types import Ledger, ServerState, Setup
from fedbalancer.methods.table import method
from fedbalancer.server.server import Server
from fedbalancer.simulation.devices import (
    AlwaysOn,
    Network,
    Phones,
    estimate_network_s,
    resolve_latency,
    sample_batch_s,
)
from fedbalancer.simulation.engine import SimulatedEngine
from fedbalancer.simulation.executors import InlineExecutor
from fedbalancer.training.timing_only import TimingOnly

METHODS = ("fedavg+1t", "fedbalancer")
PARTS = ("plan", "run", "observe")
COHORT = 1000
MODEL_BYTES = 26_414_840  # the FEMNIST CNN
KNOWN_SHARE = 0.5
LINEAR = 1.1  # steeper than this counts as faster than linear: timings are not exact


@dataclass(frozen=True)
class People:
    """Ids and sizes of the task's clients."""

    clients: tuple[str, ...]
    sizes: dict[str, int]


@dataclass
class World:
    """A server and its simulated clients, in mid-run."""

    server: Server
    engine: SimulatedEngine
    state: ServerState
    start_s: float
    seconds: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def round(self) -> None:
        begun = time.process_time()
        plan = self.server.plan(self.state, self.engine.available(self.state.clock_s))
        planned = time.process_time()
        result = self.engine.run(plan, self.state.weights, self.state.clock_s)
        run = time.process_time()
        self.state = self.server.observe(self.state, result)
        for part, seconds in zip(PARTS, (planned - begun, run - planned, time.process_time() - run), strict=True):
            self.seconds[part].append(seconds)


def people(count: int) -> People:
    clients = tuple(f"u{number:07d}" for number in range(count))
    sizes = np.minimum(50 + np.random.default_rng(0).lognormal(4.0, 2.0, count), 400).astype(int)
    return People(clients, dict(zip(clients, sizes.tolist(), strict=True)))


def build(name: str, task: People) -> World:
    """As a run is built, from the ids and sizes on."""
    begun = time.process_time()
    devices = Phones(0, resolve_latency("femnist"), Network(0))
    ledger = Ledger.start(
        task.clients,
        np.fromiter(task.sizes.values(), dtype=np.int64, count=len(task.sizes)),
        estimate_network_s(devices, task.clients, MODEL_BYTES, MODEL_BYTES),
        sample_batch_s(devices, task.clients, 10),
    )
    chosen = method(name)
    cohort = min(COHORT, len(task.clients) // 10)
    setup = Setup(ledger, epochs=5, batch_size=10, clients_per_round=cohort, seed=0)
    executor = InlineExecutor(TimingOnly(task.sizes))
    engine = SimulatedEngine(chosen.client, ledger, executor, devices, AlwaysOn(), MODEL_BYTES)
    server = Server(chosen, setup)
    state = server.init(executor.initial_weights(0))
    return World(server, engine, replace(state, round=500, ledger=heard_of(ledger)), time.process_time() - begun)


def heard_of(ledger: Ledger) -> Ledger:
    """The ledger when half of the clients have reported, at some time in 500 rounds."""
    rng, count = np.random.default_rng(1), len(ledger.clients)
    known = rng.random(count) < KNOWN_SHARE
    over = np.where(known, rng.integers(1, ledger.size + 1), math.nan)
    return replace(
        ledger,
        participations=known.astype(np.int32),
        last_round=np.where(known, rng.integers(1, 500, count), 0).astype(np.int32),
        over_count=over,
        over_sumsq=over * rng.random(count),
        loss_mean=np.where(known, rng.random(count), math.nan),
    )


def bytes_per_client(name: str, task: People) -> dict[str, float]:
    """Allocated beyond the task: at the peak of the start, and held and at the peak during rounds."""
    gc.collect()
    tracemalloc.start()
    world = build(name, task)
    start = tracemalloc.get_traced_memory()[1]
    gc.collect()
    tracemalloc.reset_peak()
    for _ in range(3):
        world.round()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {key: value / len(task.clients) for key, value in (("start", start), ("held", held), ("peak", peak))}


def measure(counts: list[int], repeats: int) -> dict[str, Any]:
    for name in METHODS:  # what is imported late is imported now
        build(name, people(1000)).round()
    tasks = {count: people(count) for count in counts}
    used = {(name, count): bytes_per_client(name, tasks[count]) for name in METHODS for count in counts}
    worlds = {(name, count): build(name, tasks[count]) for name in METHODS for count in counts}
    for repeat in range(repeats + 1):
        for world in worlds.values():
            world.round()
            if repeat == 0:  # the first round warms up
                world.seconds = {part: [] for part in PARTS}
    rows = [
        {
            "method": name,
            "clients": count,
            "start_s": world.start_s,
            **{part: statistics.median(world.seconds[part]) for part in PARTS},
            **{f"{key}_bytes": value for key, value in used[name, count].items()},
        }
        for (name, count), world in worlds.items()
    ]
    return {"rows": rows, "exponents": exponents(rows)}


def exponents(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Exponent e of a fit c * clients^e over the last factor of ten, for every method and part."""
    most = max(row["clients"] for row in rows)
    found: dict[str, dict[str, float]] = {}
    for name in METHODS:
        last = [row for row in rows if row["method"] == name and row["clients"] * 10 >= most]
        clients = np.log([row["clients"] for row in last])
        values = {part: [row[part] for row in last] for part in ("start_s", *PARTS)}
        values["bytes"] = [row["peak_bytes"] * row["clients"] for row in last]
        found[name] = {part: float(np.polyfit(clients, np.log(column), 1)[0]) for part, column in values.items()}
    return found


def table(result: dict[str, Any]) -> str:
    lines = [
        "| method | clients | start, s | plan, ms | run, ms | observe, ms | bytes a client: held | at the peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        parts = " | ".join(f"{1000 * row[part]:.1f}" for part in PARTS)
        used = f"{row['held_bytes']:,.0f} | {row['peak_bytes']:,.0f}"
        lines.append(f"| `{row['method']}` | {row['clients']:,} | {row['start_s']:.2f} | {parts} | {used} |")
    lines.append("")
    for name, slopes in result["exponents"].items():
        slopes_text = ", ".join(f"{part.removesuffix('_s')} {slope:.2f}" for part, slope in slopes.items())
        steep = [part for part, slope in slopes.items() if slope > LINEAR]
        lines.append(f"{name}: exponents: {slopes_text}; faster than linear: {', '.join(steep) or 'none'}")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    colours = dict(zip(PARTS, ("#0072B2", "#009E73", "#D55E00"), strict=True))
    for name, dash in zip(METHODS, ("--", "-"), strict=True):
        rows = [row for row in result["rows"] if row["method"] == name]
        counts = [row["clients"] for row in rows]
        for part, colour in colours.items():
            left.loglog(counts, [row[part] for row in rows], dash, color=colour, label=f"{part}, {name}")
        right.loglog(counts, [row["peak_bytes"] * row["clients"] for row in rows], dash, color="#7F7F7F", label=name)
    left.axhline(0.1, color="black", linewidth=0.8, linestyle=":", label="100 ms")
    right.loglog(
        counts, [200 * count for count in counts], ":", color="black", linewidth=0.8, label="200 bytes a client"
    )
    left.set(
        xlabel="clients", ylabel="processor seconds a round", title=f"{COHORT:,} clients a round, or a tenth of all"
    )
    right.set(xlabel="clients", ylabel="bytes at the peak", title="memory beyond the task's ids and sizes")
    for axes in (left, right):
        axes.legend(fontsize=8, handlelength=3, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="the largest population")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of every population that count")
    parser.add_argument("--plot", type=Path, default=Path("docs/images/scale.png"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    counts = [count for power in range(3, 10) for count in (10**power, 3 * 10**power) if count <= options.most]
    result = measure(counts, options.repeats)
    plot(result, options.plot)
    print(json.dumps(result) if options.json else table(result))


if __name__ == "__main__":
    main()
