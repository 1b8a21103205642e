"""Published comparisons, repeated in direction: the pages in docs/methods have the results.

    python benchmarks/published.py oort [--seeds 0..9] [--only har] [--out FOLDER]

Each comparison has a reference and other methods on the same task and seeds. The target of a seed is a share of the
reference's final level (the mean of its last five evaluations). A run reaches it with the first evaluation at which
the mean of the last three is at least the target. Speed-ups are paired by seed, with 95% intervals; a run that does
not reach the target within `EXTEND` times the reference's seconds counts as censored. Finished runs are kept in
`--runs` and not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedbalancer as fb
from fedbalancer.cli.options import parse_seeds
from fedbalancer.core.files import write_text
from fedbalancer.core.randomness import stream
from fedbalancer.data import load_task
from fedbalancer.reporting.ratio import Arrival, Estimate, paired_ratio
from fedbalancer.simulation.devices.models import Network, Phones

EXTEND, LAST, HELD = 1.5, 5, 3
"""Budget of a run as a multiple of the reference's seconds; evaluations of a final level; evaluations of a target."""

RANDOM = "fedavg[clients=Overcommitted,deadline=FirstReports]"
RANDOM_ONE = "fedavg[epoch_batches=1,clients=Overcommitted,deadline=FirstReports]"


@dataclass(frozen=True)
class Comparison:
    """One published comparison.

    Args:
        claim: What was published.
        task: Name of a task, or a function that makes it for a seed.
        methods: Method names by label; the first is the reference.
        rounds: Rounds of the reference.
        settings: Settings of all runs.
        share: Target, as a share of the reference's final level.
        extend: Budget of a run, as a multiple of the reference's seconds.
        devices: Function of clients and seed that makes the devices. Default: the paper's phones.
    """

    claim: str
    task: str | Callable[[int], fb.Task]
    methods: Mapping[str, str]
    rounds: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    devices: Any = None
    extend: float = EXTEND


def _oort(task: str, rounds: int, settings: Mapping[str, Any] | None = None) -> Comparison:
    methods = {
        "random, one batch per epoch": RANDOM_ONE,
        "Oort, one batch per epoch": "oort",
        "random, whole epochs": RANDOM,
        "Oort, whole epochs": "oort[epoch_batches=off]",
        "Oort, whole epochs, without its penalty": "oort[epoch_batches=off,clients.alpha=0]",
    }
    return Comparison("Oort over random selection, 1.2-14.1x", task, methods, rounds, settings or {})


COMPARISONS: dict[str, dict[str, Comparison]] = {
    "oort": {
        "har": _oort("har", 150),
        "femnist": _oort("femnist", 150),
        "celeba": _oort("celeba", 100),
    },
}


def skewed_digits(seed: int, clients: int = 10, model: Callable[[], Any] | None = None, **changes: Any) -> fb.Task:
    """A third of the digits, sorted by label and dealt to clients: each client has one label."""
    images, labels, test = _digits()
    drawn = np.random.default_rng(seed).permutation(len(labels))[: len(labels) // 3]
    order = drawn[np.argsort(labels[drawn], kind="stable")]
    parts = np.array_split(order, clients)
    values: dict[str, Any] = {
        "name": "skewed digits", "model": model or _logistic, "learning_rate": 0.1, "batch_size": 100, "epochs": 5,
        "clients_per_round": clients, "latency": "femnist",
    }  # fmt: skip
    data = {f"c{n:03}": (images[rows], labels[rows]) for n, rows in enumerate(parts)}
    return fb.Task(clients=data, test=test, **{**values, **changes})


def unequal_digits(seed: int, clients: int = 300) -> fb.Task:
    """Digits of many clients, most of them small: sizes of a lognormal distribution, two labels each."""
    images, labels, test = _digits()
    rng = np.random.default_rng(seed)
    sizes = np.clip(np.exp(rng.normal(3.0, 1.0, clients)), 5, 400).astype(int)
    of_label = [np.flatnonzero(labels == label) for label in range(10)]
    data = {}
    for n, size in enumerate(sizes):
        held = rng.choice(10, 2, replace=False)
        rows = np.concatenate([rng.choice(of_label[label], -(-size // 2)) for label in held])
        data[f"c{n:03}"] = images[rows], labels[rows]
    return fb.Task(
        clients=data, test=test, name="unequal digits", model=_logistic, learning_rate=0.05, batch_size=20, epochs=20,
        clients_per_round=10, latency="femnist",
    )  # fmt: skip


def digits_of_four_classes(seed: int, clients: int = 10, per_round: int = 10) -> fb.Task:
    """Digits of silos: 200 samples of four labels each; an epoch has 10 batches, and FedAvg trains 100."""
    images, labels, test = _digits()
    rng = np.random.default_rng(seed)
    of_label = [np.flatnonzero(labels == label) for label in range(10)]
    data = {}
    for n in range(clients):
        rows = np.concatenate([rng.choice(of_label[label], 50) for label in rng.choice(10, 4, replace=False)])
        data[f"c{n:03}"] = images[rows], labels[rows]
    return fb.Task(
        clients=data, test=test, name="digits of four classes", model=_logistic, learning_rate=0.05, batch_size=20,
        epochs=10, clients_per_round=per_round, latency="femnist",
    )  # fmt: skip


def _digits() -> tuple[Any, Any, Any]:
    task = load_task("femnist", scale="small")
    columns = [task.samples(client) for client in sorted(task.sizes)]
    images, labels = (np.concatenate([each[part] for each in columns]) for part in (0, 1))
    return images, labels, task.test


def _logistic() -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(196, 10))


@dataclass(frozen=True)
class ComeAndGo(Phones):
    """The paper's phones, online in a share of the periods of 100 s that grows from 0.1 to 1 with their first label.

    Args:
        shares: Share of each client.
    """

    shares: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, clients: Sequence[str], seed: int) -> ComeAndGo:
        shares = dict(zip(sorted(clients), np.linspace(0.1, 1, len(clients)).tolist(), strict=True))
        return cls(seed, "femnist", Network(seed), shares=shares)  # type: ignore[arg-type]

    def is_available(self, client: str, at_s: float) -> bool:
        return bool(stream(self.seed, "come and go", int(at_s // 100), client).random() < self.shares[client])

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        return busy_s


@dataclass(frozen=True)
class Undependable(ComeAndGo):
    """The same phones; work pauses in the periods of 20 s in which a client is offline, but not in the first one."""

    def is_available(self, client: str, at_s: float) -> bool:
        return bool(stream(self.seed, "undependable", int(at_s // 20), client).random() < self.shares[client])

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        now_s = start_s
        while True:
            end_s = (now_s // 20 + 1) * 20
            if now_s == start_s or self.is_available(client, now_s):
                if busy_s <= end_s - now_s:
                    return now_s + busy_s - start_s
                busy_s -= end_s - now_s
            now_s = end_s


_WAIT = "deadline=inf"
COMPARISONS["oort"]["unequal"] = Comparison(
    "Oort over random selection, 1.2-14.1x: 20 local steps, 300 unequal clients, phones twice as unequal, no window",
    unequal_digits, {"random": RANDOM_ONE, "Oort": "oort"}, 100,
    {"window_s": 0, "device_spread": 2, "eval_every": 2}, extend=1.0,
)  # fmt: skip
SKEW = {"FedAvg": "fedavg+wfa", "SCAFFOLD": f"scaffold[{_WAIT}]", "FedDyn": f"feddyn[{_WAIT}]"}
COMPARISONS["drift"] = {
    "all-clients": Comparison(
        "SCAFFOLD reaches a target in a third to a quarter of the rounds of FedAvg if clients share no labels",
        skewed_digits, SKEW, 20, extend=1.0,
    ),
    "a-fifth-of-the-clients": Comparison(
        "the same with a fifth of 50 clients per round", partial(skewed_digits, clients=50, clients_per_round=10),
        SKEW, 80, extend=1.0,
    ),
}  # fmt: skip
COMPARISONS["mifa"] = {
    "come-and-go": Comparison(
        "MIFA over the mean of the available clients, if availability depends on the labels", skewed_digits,
        {"mean of the available clients": "fedavg+wfa", "MIFA": f"mifa[{_WAIT}]"}, 60, devices=ComeAndGo.of, extend=1.0,
    )
}  # fmt: skip


PARTS = {
    "FedAvg": "fedavg+wfa",
    "HeteroFL": f"heterofl[{_WAIT}]",
    "FedRolex": f"fedrolex[{_WAIT}]",
    "FedBuff": "fedbuff",
    "TimelyFL": "timelyfl",
    "TimelyFL without partial models": "timelyfl[part=WholeModel]",
}
COMPARISONS["parts"] = {
    "femnist": Comparison(
        "HeteroFL close to FedAvg with a fraction of its work, FedRolex above HeteroFL, TimelyFL 1.28-2.89x FedBuff",
        "femnist", PARTS, 40, {"eval_every": 2}, 0.95, extend=1.0,
    )
}  # fmt: skip
COMPARISONS["fedcompass"] = {
    "silos": Comparison(
        "FedCompass over FedBuff, FedAsync and FedAvg: 10 silos, all at work, phones twice as unequal",
        digits_of_four_classes,
        {"FedAvg": "fedavg+wfa", "FedBuff": "fedbuff[late.buffer=3]", "FedAsync": "fedasync",
         "FedCompass": "fedcompass"},
        40, {"window_s": 0, "device_spread": 2}, 0.95, extend=1.0,
    )
}  # fmt: skip
COMPARISONS["flude"] = {
    "undependable": Comparison(
        "FLUDE 1.2-3.2x on undependable devices", partial(digits_of_four_classes, clients=50),
        {"FedAvg, T": "fedavg+1t", "FedAvg, waits": "fedavg+wfa", "FLUDE": "flude",
         "FLUDE without caches": "flude[train=PlainTraining]", "FLUDE, clients at random": "flude[clients=Uniform]"},
        80, {}, 0.95, devices=Undependable.of, extend=1.0,
    )
}  # fmt: skip
COMPARISONS["pyramidfl"] = {
    "har": Comparison(
        "PyramidFL over Oort, 2.71-13.66x", "har",
        {"Oort": "oort[epoch_batches=off]", "Oort with Yogi": "oort+fedyogi[epoch_batches=off]",
         "PyramidFL": "pyramidfl", "PyramidFL without Yogi": "pyramidfl[aggregate=WeightedMean]"},
        60, {"eval_every": 2}, extend=1.0,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """Levels of a run by the second of their evaluation."""

    seconds: Sequence[float]
    levels: Sequence[float]
    down_bytes: float
    up_bytes: float

    @property
    def final(self) -> float:
        return float(np.mean(self.levels[-LAST:]))

    def arrival(self, target: float) -> Arrival:
        means = np.convolve(self.levels, np.ones(HELD) / HELD, mode="valid")
        hits = np.flatnonzero(means >= target)
        if len(hits):
            return Arrival(float(self.seconds[int(hits[0]) + HELD - 1]))
        return Arrival(float(self.seconds[-1]), reached=False)


def run_one(comparison: Comparison, method: str, seed: int, budget_s: float | None, keep: Path) -> Curve:
    """Run a method, or read its finished run."""
    if keep.exists():
        return Curve(**json.loads(keep.read_text()))
    task = comparison.task if isinstance(comparison.task, str) else comparison.task(seed)
    settings = {"eval_every": 1, **comparison.settings}
    length: dict[str, Any] = {"rounds": comparison.rounds} if budget_s is None else {"budget_s": budget_s}
    result = fb.run(task, method, seed, settings=settings, workers=1, devices=comparison.devices, **length)
    metric = result.metric
    levels = result.evals[metric.name].to_list()
    curve = Curve(
        result.evals["clock_s"].to_list(), levels, float(result.rounds["down_bytes"].sum()),
        float(result.rounds["up_bytes"].sum()),
    )  # fmt: skip
    keep.parent.mkdir(parents=True, exist_ok=True)
    write_text(keep, json.dumps(vars(curve)))
    return curve


def compare(name: str, comparison: Comparison, seeds: Sequence[int], runs: Path) -> str:
    """Run a comparison and return its table as Markdown."""
    curves: dict[str, list[Curve]] = {label: [] for label in comparison.methods}
    for seed in seeds:
        budget_s = None
        for label, method in comparison.methods.items():
            keep = runs / name / f"{seed}-{label.replace(' ', '-').replace(',', '')}.json"
            curve = run_one(comparison, method, seed, budget_s, keep)
            budget_s = comparison.extend * curve.seconds[-1] if budget_s is None else budget_s
            curves[label].append(curve)
            print(f"{name} seed {seed} {label}: {curve.final:.4f} in {curve.seconds[-1]:,.0f} s", flush=True)
    reference = next(iter(curves.values()))
    targets = [comparison.share * curve.final for curve in reference]
    lines = [
        f"## {name}", "", f"{comparison.claim}. Seeds {seeds[0]} to {seeds[-1]}, target {np.mean(targets):.3f}.", "",
        "| method | speed-up (95% CI) | reached | level at the end of the reference's time (95% CI) | GB of traffic |",
        "|:--|--:|--:|--:|--:|",
    ]  # fmt: skip
    for label, mine in curves.items():
        pairs = [
            (one.arrival(target), other.arrival(target))
            for one, other, target in zip(reference, mine, targets, strict=True)
        ]
        ratio = paired_ratio(pairs)
        at_end = [_level_at(other, one.seconds[-1]) for one, other in zip(reference, mine, strict=True)]
        level = Estimate.of(at_end)
        reached = sum(pair[1].reached for pair in pairs)
        gigabytes = np.mean([curve.down_bytes + curve.up_bytes for curve in mine]) / 1e9
        lines.append(
            f"| {label} (`{comparison.methods[label]}`) | {_text(ratio.mean, ratio.low, ratio.high, ratio.bound)} | "
            f"{reached} of {len(seeds)} | {_text(level.mean, level.low, level.high, digits=3)} | {gigabytes:.2f} |"
        )
    return "\n".join([*lines, ""])


def _with_rounds(comparison: Comparison, rounds: int | None) -> Comparison:
    return comparison if rounds is None else replace(comparison, rounds=rounds)


def _level_at(curve: Curve, second: float) -> float:
    counted = [level for at, level in zip(curve.seconds, curve.levels, strict=True) if at <= second * (1 + 1e-9)]
    return float(np.mean(counted[-LAST:]))


def _text(mean: float | None, low: float | None, high: float | None, bound: str = "", digits: int = 2) -> str:
    if mean is None:
        return "?"
    ends = " to ".join("?" if end is None else f"{end:.{digits}f}" for end in (low, high))
    return f"{bound + ' ' if bound else ''}{mean:.{digits}f} ({ends})"


def main() -> None:
    """Run the comparisons that the command names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=COMPARISONS)
    parser.add_argument("--seeds", default="0..4")
    parser.add_argument("--only")
    parser.add_argument("--rounds", type=int, help="Rounds of the reference. Default: those of the comparison.")
    parser.add_argument("--runs", type=Path, default=Path("runs/published"))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    seeds = parse_seeds(chosen.seeds)
    tables = [
        compare(f"{chosen.name}-{name}", _with_rounds(comparison, chosen.rounds), seeds, chosen.runs)
        for name, comparison in COMPARISONS[chosen.name].items()
        if chosen.only in (None, name)
    ]
    print("\n".join(tables))
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        length = "" if chosen.rounds is None else f" --rounds {chosen.rounds}"
        command = f"python benchmarks/published.py {chosen.name} --seeds {chosen.seeds}{length}"
        head = f"# {chosen.name}\n\n    {command}\n\n"
        write_text(chosen.out / f"{chosen.name}.md", head + "\n".join(tables))


if __name__ == "__main__":
    main()
