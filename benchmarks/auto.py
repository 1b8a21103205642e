"""Compares the number of bits of an update with the analysis of docs/methods/auto.md: a figure and a table.

    python benchmarks/auto.py [--seeds 0..2] [--out docs/results/canter]

Measured in the benchmark's cell `slow-network`, on seeds of the design: seconds of `canter+autorate` to 90, 95 and 100%
of the target by the number of bits, geometric mean over targets and seeds. Upper bound: (1 - u + u b / 32) (1 + error),
where u is the measured share of a client's round that sending 32 bits takes, and the error is that of `Quantised(b)` on
normally distributed values. Finished runs are kept in the folder `--runs`.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from fedbalancer.client.compress import Quantised
from fedbalancer.core.files import write_json, write_text
from fedbalancer.core.types import FloatArray, Layout
from fedbalancer.experiments.benchmark.suite import SUITES
from fedbalancer.experiments.execute import execute

ROOT = Path(__file__).parent.parent
FIGURE = ROOT / "docs" / "images" / "methods" / "auto.png"
CELL, TARGET, SHARES = "slow-network", 0.943, (0.9, 0.95, 1.0)
BUDGET_S = 22_920.0
"""The cell's budget on the first seed of the benchmark; `TARGET` is the mean of its targets."""
BITS = (1, 2, 3, 4, 6, 8, 32)
LINKS = np.linspace(0.05, 0.95, 19)
"""Shares of a round that sending 32 bits takes."""


def error_of(bits: int) -> float:
    """Return the squared error of a quantised update over its squared length."""
    if bits == 32:
        return 0.0
    layout = Layout([("w", (100, 400)), ("b", (400,))])
    update = np.random.default_rng(0).normal(size=layout.parameters).astype(np.float32)
    payload, _ = Quantised(bits).encode(update, layout, 0, None)
    decoded = Quantised(bits).decode(payload, layout, 0)
    return float(((decoded - update) ** 2).sum() / (update**2).sum())


def bound(bits: int, share: float | FloatArray) -> Any:
    """Return the longest time to a target, where 1 is an update of 32 bits."""
    return (1 - share + share * bits / 32) * (1 + error_of(bits))


def measure(bits: int, seed: int) -> dict[str, Any]:
    """Run the method: the seconds to every target, and the share of a client's round that sending takes."""
    name = "canter+autorate" if bits == 32 else f"canter+auto[compress.bits={bits}]"
    spec = SUITES["tta-1"].cell(CELL).base(name)
    settings = {**spec.settings, "eval_every_s": BUDGET_S / 100}
    result = execute(replace(spec, seed=seed, budget_s=2 * BUDGET_S, target=TARGET, settings=settings))
    done = result.clients.filter(pl.col("outcome") == "completed")
    total = pl.sum_horizontal("download_s", "forward_s", "train_s", "upload_s")
    reached = [
        result.evals.filter(pl.col("accuracy") >= share * TARGET)["clock_s"].min() or 2 * BUDGET_S for share in SHARES
    ]
    return {"seconds": reached, "share": float(done.select((pl.col("upload_s") / total).mean()).item())}


def kept(folder: Path, bits: int, seed: int) -> dict[str, Any]:
    """Return the result of a run, from the folder if it has it."""
    file = folder / f"bits-{bits}-seed-{seed}.json"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, measure(bits, seed))
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def compare(folder: Path, seeds: list[int]) -> tuple[list[dict[str, float]], float]:
    """Return a row per number of bits, and the measured share of sending."""
    runs = {bits: [kept(folder, bits, seed) for seed in seeds] for bits in BITS}
    share = float(np.mean([run["share"] for run in runs[32]]))
    logs = {bits: np.log([run["seconds"] for run in found]).mean(axis=1) for bits, found in runs.items()}
    rows = []
    for bits, values in logs.items():
        ratios = values - logs[32]
        rows.append(
            {
                "bits": bits, "error": error_of(bits), "bound": float(bound(bits, share)),
                "measured": math.exp(ratios.mean()), "low": math.exp(ratios.min()), "high": math.exp(ratios.max()),
                "farthest": float(np.max(bound(bits, LINKS) / best_on(LINKS))),
            }
        )  # fmt: skip
    return rows, share


def best_on(links: FloatArray) -> FloatArray:
    """Return the shortest of these times for every share of sending."""
    return np.min([bound(bits, links) for bits in (*range(1, 9), 32)], axis=0)


def draw(rows: list[dict[str, float]], share: float) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for bits in (2, 3, 4, 8):
        left.plot(LINKS, bound(bits, LINKS), label=f"{bits} bits")
    left.set(xlabel="share of a round that sending 32 bits takes", ylabel="time (32 bits: 1)", ylim=(0, 1.5))
    left.set_title("upper bound")
    left.legend(fontsize="small")
    places = range(len(rows))
    right.plot(places, [row["bound"] for row in rows], "o--", color="0.6", label=f"upper bound (share {share:.2f})")
    ends = [[row["measured"] - row["low"] for row in rows], [row["high"] - row["measured"] for row in rows]]
    right.errorbar(places, [row["measured"] for row in rows], yerr=ends, fmt="o-", capsize=3, label="measured")
    right.set(
        xlabel="bits per value", yscale="log", xticks=list(places), xticklabels=[str(row["bits"]) for row in rows]
    )
    right.set_title(f"cell {CELL}")
    right.legend(fontsize="small")
    figure.savefig(FIGURE, dpi=130, metadata={"Software": None})


def page(rows: list[dict[str, float]], share: float, seeds: list[int]) -> str:
    """Return the table in Markdown."""
    lines = [
        "# Bits of an update: upper bound and measured", "",
        "    python benchmarks/auto.py", "",
        f"Cell `{CELL}` of the benchmark, seeds {', '.join(map(str, seeds))}, which were used for the design.",
        "Times are multiples of the time with 32 bits; the range is that of the seeds.",
        f"Sending 32 bits takes {share:.0%} of a client's round. The last column: largest ratio of the bound to",
        "that of the best number of bits, for shares of sending from 5% to 95%.", "",
        "| bits | error | upper bound | measured (range) | over the best |", "|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    lines += [
        f"| {row['bits']} | {row['error']:.4f} | {row['bound']:.2f} | {row['measured']:.2f} "
        f"({row['low']:.2f} to {row['high']:.2f}) | {row['farthest']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..2", help="first..last (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "canter", help="folder of the table")
    parser.add_argument("--runs", type=Path, default=Path("runs/auto"), help="default: %(default)s")
    chosen = parser.parse_args()
    first, last = map(int, chosen.seeds.split(".."))
    seeds = list(range(first, last + 1))
    rows, share = compare(chosen.runs, seeds)
    draw(rows, share)
    write_text(chosen.out / "bits.md", page(rows, share, seeds))


if __name__ == "__main__":
    main()
