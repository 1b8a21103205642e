"""The same local training in Flower's simulation, in pfl-research, in a naive torch loop and in fedbalancer.

    python benchmarks/peers/run.py                             all of it: some 20 minutes, and a download at first
    python benchmarks/peers/run.py --epochs 1 --clients 4      a quick look
    python benchmarks/peers/run.py --workloads femnist --engines pfl-processes,fast

All engines are up all the time and one of them works at a time; the first order of each (start of workers, filling of
caches) is not counted. Repeats are interleaved, and the order of the engines is turned by one from repeat to repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engines import CORES, HERE, TITLES, Engine, start
from prepare import prepare
from results import Results, unit
from rich.console import Console
from work import WORKLOADS, Work

from fedbalancer.core.files import write_json, write_text
from fedbalancer.reporting.plotting import plot_rates, write_figure


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--engines", default=",".join(TITLES), help="comma-separated (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="local epochs (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="clients, all of which train (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds a repeat (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-peers"), help="default: %(default)s")
    parser.add_argument("--venvs", type=Path, default=HERE / ".venvs", help="where the peers are installed")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    chosen = parser.parse_args(arguments)
    for name, known in (("workloads", WORKLOADS), ("engines", TITLES)):
        names = [part.strip() for part in getattr(chosen, name).split(",") if part.strip()]
        if not names or set(names) - set(known):
            parser.error(f"--{name} must be some of {', '.join(known)}; got {getattr(chosen, name)!r}")
        setattr(chosen, name, names)
    for name in ("epochs", "clients", "rounds", "repeats"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1; got {getattr(chosen, name)}")
    return chosen


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(chosen: argparse.Namespace, folder: Path) -> Results:
    """All workloads, one after the other, on engines that stay up."""
    for name in chosen.workloads:
        prepare(folder, name, chosen.clients, chosen.epochs, chosen.rounds)
    most = max(WORKLOADS[name].clients or chosen.clients for name in chosen.workloads)
    engines: list[Engine] = []
    results = Results()
    try:
        for name in chosen.engines:
            say(f"starting {TITLES[name]}")
            engines.append(start(name, most, chosen.venvs.absolute(), folder))
        for name in chosen.workloads:
            measure_workload(chosen, folder, name, engines, results)
        results.start_s = {engine.name: engine.start_s or 0.0 for engine in engines}
    finally:
        for engine in engines:
            engine.close()
    return results


def measure_workload(
    chosen: argparse.Namespace, folder: Path, name: str, engines: list[Engine], results: Results
) -> None:
    work = Work(folder, name)
    epochs = WORKLOADS[name].epochs or chosen.epochs
    models = {engine.name: folder / f"{engine.name}-{name}.npy" for engine in engines}
    order: dict[str, Any] = {"folder": str(folder), "workload": name}
    for engine in engines:
        check = {"epochs": 1, "rounds": 1, "learning_rate": work.workload.check_learning_rate}
        engine.run({**order, **check, "out": str(models[engine.name])})
    results.compare_updates(work, name, models)
    order |= {"epochs": epochs, "rounds": chosen.rounds, "learning_rate": work.workload.learning_rate}
    done = chosen.rounds * (len(work.sizes) if unit(name) == "clients/s" else sum(work.sizes) * epochs)
    for repeat in range(chosen.repeats):
        turn = repeat % len(engines)
        for engine in engines[turn:] + engines[:turn]:
            seconds = engine.run({**order, "out": str(models[engine.name])})["seconds"]
            results.add(name, engine.name, done / sum(seconds))
            say(f"{name} {repeat + 1}/{chosen.repeats} {engine.name}: {done / sum(seconds):,.0f} {unit(name)}")
    results.compare_losses(work, name, models)


def main() -> None:
    chosen = options()
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy > 0.5:
        say(f"warning: the load of this machine is {busy:.1f} already; engines with several threads suffer most")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedbalancer-peers-") as folder:
        results = measure(chosen, Path(folder))
    machine = {"cores": CORES, "platform": platform.platform(), "torch": torch.__version__, "numpy": np.__version__}
    asked = {key: getattr(chosen, key) for key in ("epochs", "clients", "rounds", "repeats")}
    found = {"machine": machine, "load_before": busy, **asked, **results.to_json()}
    chosen.out.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out / "peers.json", found)
    write_text(chosen.out / "peers.md", results.markdown())
    panels = {
        f"{name} ({unit(name)})": {TITLES[engine]: entry["median"] for engine, entry in values["engines"].items()}
        for name, values in found["workloads"].items()
    }
    write_figure(plot_rates("The same local training", panels, strong=TITLES["fast"]), chosen.out / "peers.png")
    if chosen.json:
        print(json.dumps(found))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(results.table())
        print(f"kept in {chosen.out}")
    if unlike := results.unlike():
        raise SystemExit("not the same work: " + "; ".join(unlike))


if __name__ == "__main__":
    main()
