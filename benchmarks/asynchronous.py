"""Published comparisons of asynchronous methods, repeated in direction on small data.

    python benchmarks/asynchronous.py [stragglers] [delays] [--seeds 0..2] [--out FOLDER]

The data are scikit-learn's 1,797 digits, split over clients by Dirichlet(0.3), with a small network. A client's time is
drawn as in the papers. `stragglers`: 100 clients, 20 at work, times proportional to rank^-1.2 (Pisces). `delays`: 50
clients, 25 at work, buffer 5; half of them take 1 to 2 minutes, a third 3 to 5 and a sixth 50 to 80 (FADAS, large
delays). In `delays` FedBuff and FADAS have three values of their learning rate, of which the fastest to the target on
seed 100 is used; in `stragglers` all have a rate of 0.1. Finished runs are kept in the folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import fedbalancer as fb
from fedbalancer.core.files import write_text
from fedbalancer.core.randomness import stream
from fedbalancer.reporting.ratio import Arrival, paired_ratio

TUNING_SEEDS = (100,)
RATES = (0.03, 0.1, 0.3)
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t of a 95% interval, by number of seeds."""


@dataclass(frozen=True)
class Times:
    """Devices whose whole round takes a drawn number of seconds.

    Args:
        seconds: Shortest and longest time of every client, by id.
        seed: Seed of the draws.
    """

    seconds: Mapping[str, tuple[float, float]]
    seed: int

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Return the mean time."""
        return float(np.mean(self.seconds[client]))

    def sample_batch_s(self, client: str, count: int) -> Any:
        """Return batches that take a millisecond."""
        return np.full(count, 1e-3)

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> Drawn:
        """Return the time of one round."""
        low, high = self.seconds[client]
        return Drawn(float(stream(self.seed, "times", round_number, client).uniform(low, high)))


@dataclass(frozen=True)
class Drawn:
    """The time of a client in a round."""

    upload_s: float
    batch_s: float = 1e-3
    download_s: float = 0.0


def zipf(clients: Sequence[str], seed: int) -> Times:
    """Return times of 100 minutes times rank^-1.2, with the ranks in random order."""
    ranks = stream(seed, "ranks").permutation(len(clients)) + 1
    mean_s = {client: 6000.0 * float(rank) ** -1.2 for client, rank in zip(clients, ranks, strict=True)}
    return Times({client: (0.9 * seconds, 1.1 * seconds) for client, seconds in mean_s.items()}, seed)


def classes(clients: Sequence[str], seed: int) -> Times:
    """Return the times of FADAS's experiment with large delays, in minutes."""
    ranges = [(1, 2)] * 3 + [(3, 5)] * 2 + [(50, 80)]
    order = stream(seed, "classes").permutation(len(clients))
    minutes = {client: ranges[place % 6] for client, place in zip(clients, order.tolist(), strict=True)}
    return Times({client: (60.0 * low, 60.0 * high) for client, (low, high) in minutes.items()}, seed)


@dataclass(frozen=True)
class Setting:
    """One comparison.

    Args:
        clients: Number of clients.
        at_work: Clients at work, and clients per round.
        times: Draws the times.
        methods: Method of every name, with `RATE` for the learning rate that is tuned.
        reference: Name of the method that the others are compared with.
        target: Accuracy to reach.
        budget_s: Simulated seconds of a run.
        stops: Whether a run ends at the target.
    """

    clients: int
    at_work: int
    times: Any
    methods: Mapping[str, str]
    reference: str
    target: float
    budget_s: float
    stops: bool


_BUFFER = "late=Buffered(buffer=5,power=0)"
SETTINGS = {
    "stragglers": Setting(
        100, 20, zipf,
        {
            "FedAvg, waits for all": "fedavg+wfa", "Oort": "oort",
            "FedAsync": "fedasync", "FedBuff": "fedbuff",
            "Pisces": "pisces",
        },
        "FedAvg, waits for all", 0.9, 600000.0, True,
    ),
    "delays": Setting(
        50, 25, classes,
        {
            "FedBuff": "fedbuff[learning_rate=RATE,late=Buffered(buffer=5)]",
            "CA2FL": f"ca2fl[learning_rate=RATE,{_BUFFER}]",
            "FADAS": f"fadas[learning_rate=.1,aggregate=DelayAdaptive(eta=RATE),{_BUFFER}]",
            "FADAS, fixed step": f"fadas[learning_rate=.1,aggregate=DelayAdaptive(eta=RATE,delay=inf),{_BUFFER}]",
        },
        "FedBuff", 0.85, 9000.0, False,
    ),
}  # fmt: skip


def task(setting: Setting, seed: int) -> fb.Task:
    """Return the digits, split for a seed."""
    x, y = load_digits(return_X_y=True)
    return fb.Task.from_arrays(
        (x / 16).astype(np.float32), y, model={"name": "mlp", "hidden": [32]}, partition="dirichlet",
        clients=setting.clients, alpha=0.3, test_share=0.2, seed=seed, name="digits", latency="femnist",
        clients_per_round=setting.at_work, learning_rate=0.1, epochs=2, batch_size=10, rounds=5000,
    )  # fmt: skip


def run(folder: Path, name: str, method: str, seed: int) -> list[tuple[float, float]]:
    """Return clock and accuracy of every evaluation of a run, which is kept in a file."""
    setting, file = SETTINGS[name], folder / f"{name}.{method}.{seed}.json".replace("/", "_")
    if not file.exists():
        result = fb.run(
            task(setting, seed), method, seed=seed, budget_s=setting.budget_s, devices=setting.times,
            target=setting.target if setting.stops else None, settings={"eval_every_s": 300, "eval_every": 10**6},
        )  # fmt: skip
        rows = list(zip(result.evals["clock_s"].to_list(), result.evals["accuracy"].to_list(), strict=True))
        write_text(file, json.dumps(rows))
    return [(clock_s, accuracy) for clock_s, accuracy in json.loads(file.read_text()) if clock_s <= setting.budget_s]


def final(evaluations: Sequence[tuple[float, float]]) -> float:
    """Return the mean accuracy of the last tenth of a run."""
    return float(np.mean([accuracy for _, accuracy in evaluations[-len(evaluations) // 10 :]]))


def arrival(evaluations: Sequence[tuple[float, float]], target: float) -> Arrival:
    """Return when a run reached the target: the first of three evaluations in a row whose mean does."""
    clock_s, accuracy = np.array(evaluations).T
    held = np.flatnonzero(np.convolve(accuracy, np.full(3, 1 / 3), mode="valid") >= target)
    return Arrival(float(clock_s[held[0]])) if len(held) else Arrival(float(clock_s[-1]), reached=False)


def choose_rate(folder: Path, name: str, method: str) -> float:
    """Return the rate with the shortest time to the target on the tuning seeds; twice the time if it is not reached."""
    if "RATE" not in method:
        return 0.1
    rates = tuple(rate / 10 for rate in RATES) if "DelayAdaptive" in method else RATES

    def mean_log_s(rate: float) -> float:
        runs = [run(folder, name, method.replace("RATE", f"{rate:g}"), seed) for seed in TUNING_SEEDS]
        arrivals = [arrival(each, SETTINGS[name].target) for each in runs]
        return float(np.mean([np.log(each.seconds * (1 if each.reached else 2)) for each in arrivals]))

    return min(rates, key=mean_log_s)


def table(folder: Path, name: str, seeds: Sequence[int]) -> list[str]:
    """Return the table of a comparison."""
    setting, rows = SETTINGS[name], []
    runs = {}
    chosen: dict[bool, float] = {}
    for title, method in setting.methods.items():
        adaptive = "DelayAdaptive" in method
        if adaptive not in chosen:  # CA2FL has FedBuff's rate, and FADAS with a fixed step that of FADAS
            chosen[adaptive] = choose_rate(folder, name, method)
        rate = chosen[adaptive]
        runs[title] = [run(folder, name, method.replace("RATE", f"{rate:g}"), seed) for seed in seeds]
        print(f"{name}: {title}, rate {rate:g}", flush=True)
    for title, mine in runs.items():
        pairs = [
            (arrival(theirs, setting.target), arrival(own, setting.target))
            for theirs, own in zip(runs[setting.reference], mine, strict=True)
        ]
        ratio, reached = paired_ratio(pairs), sum(own.reached for _, own in pairs)
        ends = "" if None in (ratio.low, ratio.high) else f" ({ratio.low:.2f}–{ratio.high:.2f})"
        mean = "–" if ratio.mean is None else f"{ratio.bound} {ratio.mean:.2f}{ends}".strip()
        accuracy = np.array([final(each) for each in mine])
        change = accuracy - np.array([final(each) for each in runs[setting.reference]])
        half = T_95[len(change)] * change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else np.nan
        rows.append(
            f"| {title} | {mean} | {reached} of {len(mine)} | {accuracy.mean():.3f} | "
            f"{change.mean():+.3f} ± {half:.3f} |"
        )
    head = [f"| method | speed-up to {setting.target:g} over {setting.reference} | reached | final | difference |"]
    return [*head, "|:--|--:|--:|--:|--:|", *rows]


def main() -> None:
    """Run the comparisons and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SETTINGS))
    parser.add_argument("--seeds", default="0..2")
    parser.add_argument("--out", type=Path, default=Path("runs/asynchronous"))
    told = parser.parse_args()
    low, _, high = told.seeds.partition("..")
    for name in told.names:
        print("\n".join(table(told.out, name, range(int(low), int(high or low) + 1))), flush=True)


if __name__ == "__main__":
    main()
