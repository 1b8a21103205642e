"""Peak memory of a run over the number of clients per round.

    python benchmarks/memory.py [--parameters 25] [--cohorts 2,20,100] [--workers 1,2] [--methods fedavg+1t] [--json]

Every run trains a dense model of this size for two rounds, with ten samples per client, in a process of its own. Two
sums over that process and its workers are sampled about 20 times a second, and each has its own peak: the resident sets
(RSS), which count a page once per process that shares it, and the proportional sets (PSS), which count it once.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES, SAMPLES = 64, 10, 10
SAMPLED_EVERY_S = 0.05


def run_one(parameters: float, cohort: int, workers: int, method: str) -> None:
    """Run two rounds in this process."""
    from torch import nn

    import fedbalancer as fb

    width = round(math.sqrt(parameters * 1e6 / 2))

    def model() -> Any:
        return nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width),
            nn.ReLU(), nn.Linear(width, CLASSES),
        )  # fmt: skip

    def samples(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        return rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, SAMPLES)

    task = fb.Task(
        clients={f"c{number:03d}": samples(number) for number in range(cohort)}, test=samples(9999), model=model,
        clients_per_round=cohort, epochs=1, batch_size=SAMPLES, eval_every=2, latency="femnist",
    )  # fmt: skip
    fb.run(task, method, rounds=2, workers=workers)


def measure_mb(arguments: list[str]) -> tuple[float, float]:
    """Run this script with some arguments and return the peaks of RSS and PSS, in megabytes (10^6 bytes)."""
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    peaks = np.zeros(2)
    while process.poll() is None:
        sums = np.sum([memory_bytes(pid) for pid in tree(process.pid)], axis=0)
        peaks = np.maximum(peaks, sums)
        time.sleep(SAMPLED_EVERY_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed")
    rss, pss = peaks / 1e6
    return float(rss), float(pss)


def tree(root: int) -> set[int]:
    """Return a process and all processes that it started, from Linux's /proc."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(place.parent.name)] = int(place.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    members, front = {root}, {root}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        members |= front
    return members


def memory_bytes(pid: int) -> tuple[int, int]:
    """Return RSS and PSS of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kilobytes.get("Rss", 0) * 1024, kilobytes.get("Pss", 0) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=25.0, help="million parameters")
    parser.add_argument("--cohorts", default="2,20,100")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--methods", default="fedavg+1t")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        cohort, workers, method = options.one
        run_one(options.parameters, int(cohort), int(workers), method)
        return
    rows = []
    for method in options.methods.split(","):
        for workers in options.workers.split(","):
            for cohort in options.cohorts.split(","):
                rss, pss = measure_mb(["--parameters", str(options.parameters), "--one", cohort, workers, method])
                row = {"method": method, "workers": int(workers), "cohort": int(cohort)}
                rows.append({**row, "rss_mb": round(rss), "pss_mb": round(pss)})
                if not options.json:
                    line = "| `{method}` | {workers} | {cohort} | {rss_mb:,} | {pss_mb:,} |"
                    print(line.format(**rows[-1]), flush=True)
    if options.json:
        print(json.dumps({"parameters": options.parameters * 1e6, "runs": rows}))


if __name__ == "__main__":
    main()
