"""canter against the paper's FedBalancer, FedAvg and their like: what docs/results/canter has, made again.

    python benchmarks/canter.py held-out [--tasks har,femnist] [--seeds 10..19]    # seeds that it was not made with
    python benchmarks/canter.py gifts [--tasks har]                                # what it is given, given to others
    python benchmarks/canter.py parts [--tasks har]                                # without one part each
    python benchmarks/canter.py peers [--tasks har,femnist]                        # methods of other papers
    python benchmarks/canter.py unseen                                             # data that it was not made with
    python benchmarks/canter.py trials [--tasks synthetic]                         # other phones, cohorts, labels
    python benchmarks/canter.py labels [--tasks har]                               # wrong labels: +trimmed
    python benchmarks/canter.py added [--tasks synthetic]                          # parts that it does not have
    python benchmarks/canter.py trials --only 'come and go' --seeds 15..19 --out docs/results/canter/seeds-15-to-19
    python benchmarks/canter.py pace [--tasks har]                                 # the ratios by the fall of losses
    python benchmarks/canter.py power [--tasks har]                                # of the batches: others, or learned
    python benchmarks/canter.py rate [--tasks har]                                 # wrong learning rates: +auto

Every comparison is a folder of `fedbalancer compare` under --runs, which continues where it was stopped. Ratios are
those of seconds to the target on the same seed, over FedBalancer (first; `rate`: over canter) and over the best FedAvg,
geometric mean and 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from fedbalancer.core.files import write_bytes, write_text
from fedbalancer.methods.names import canonical_name
from fedbalancer.reporting.ratio import Arrival, Ratio, paired_ratio

TASKS = ("har", "femnist", "celeba", "shakespeare", "reddit")
FEDAVG = ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa")
USUAL = (*FEDAVG, "prox+1t", "oort", "fedbalancer", "canter")
COSTS = ("sample_passes", "device_s", "down_bytes", "up_bytes")
SHARES = ("1", "0.95", "0.9")
_GIFTS = "deadline=UsefulWork,aggregate=ExtrapolatedMomentum"
GIVEN = (
    *FEDAVG, "fedbalancer", f"fedavg+batches+averaged[{_GIFTS}]", f"prox+batches+averaged[{_GIFTS}]",
    f"fedbalancer+batches+averaged[w=5,p=.75,{_GIFTS}]", "canter",
)  # fmt: skip
PARTS = (
    *FEDAVG, "fedbalancer", "canter", "canter[samples=EverySample]", "canter[samples=OverThreshold(p=1)]",
    "canter[clients=Uniform]", "canter[deadline=PeakDeadline]", "canter[work=WholeEpochs]",
    "canter[aggregate=ExtrapolatedMomentum(beta=0)]", "canter[aggregate=ServerMomentum(beta=.5)]",
    "canter[aggregate=WeightedMean]", "canter[deliver=LastModel]",
)  # fmt: skip
PEERS = (*FEDAVG, "fedavg+1t+fednova", "oort", "fedbuff", "timelyfl", "refl", "fedbalancer", "canter", "canter+late")
COME_AND_GO = "phones that come and go, 300 users, ten times the rounds"
"""In the first hours that were recorded two to four phones of a hundred are there, after a day twenty: with fewer users
a round would have nobody to ask, and in fewer rounds only those few would be trained on."""
TRIALS: Mapping[str, tuple[str, ...]] = {
    "as it is": (),
    "phones twice as unequal": ("device_spread=2",),
    "a fifth of the labels wrong": ("label_noise=.2",),
    "5 clients a round": ("clients_per_round=5",),
    "half of the clients a round": ("clients_per_round=HALF",),
    "all clients a round": ("clients_per_round=ALL",),
    "one local epoch": ("epochs=1",),
    "batches of 50": ("batch_size=50",),
    COME_AND_GO: ("availability=TRACES", "rounds=1000"),
    "networks without their slowest moments": ("network_floor=.1",),
}
ADDED = ("fedavg+1t", "fedbalancer", "canter", "canter+trimmed", "canter+forecast", "canter+classfloor")
_PROGRESS = "summary.utility_samples=all,pace=ProgressControl"
PACES = ("fedavg+1t", "fedavg+wfa", "fedbalancer", f"fedbalancer[{_PROGRESS}]", "canter", f"canter[{_PROGRESS}]")
POWERS = (
    "fedavg+1t", "fedavg+wfa", "fedbalancer",
    *(f"canter[deadline=UsefulWork(gamma={power})]" for power in (0.25, 0.75)), "canter", "canter+learned",
)  # fmt: skip
LABELS = ("fedavg+1t", "fedbalancer", "canter", "canter+trimmed")
RATES = {"har": 0.005, "femnist": 0.015, "synthetic": 0.01, "watch": 0.003, "celeba": 0.01}
"""The tasks' learning rates at `small`."""
RATE_ROUNDS = {"watch": ("rounds=20",), **dict.fromkeys(("har", "femnist", "celeba"), ("rounds=25",))}
"""Shorter budgets: the search is over after a few rounds."""
USERS = {"synthetic": 100}
DIGITS = """name = "digits"
[data]
kind = "npz"
path = "digits.npz"
partition = "dirichlet"
clients = 40
alpha = 0.5
test_share = 0.2
[model]
name = "mlp"
hidden = [32]
[settings]
rounds = 80
clients_per_round = 8
learning_rate = 0.05
latency = "femnist"
"""
"""scikit-learn's 1,797 digits of 8 x 8 pixels, in unequal shares and with unequal labels."""


class Compared(NamedTuple):
    """One comparison: its name in the table, and its arguments of `fedbalancer compare`."""

    name: str
    task: str
    methods: Sequence[str]
    seeds: str
    settings: Sequence[str] = ()
    shown: Sequence[str] = ()
    """Methods that the table shows. Default: all."""
    variant: str = ""
    users: int | None = None
    extend: int = 2
    """Budgets that a run may take to reach the target."""

    def made(self, runs: Path) -> dict[str, Any]:
        """Its summary; the runs that are missing are run first."""
        out = runs / self.name.replace(" ", "-")
        if (out / "comparison.json").exists():
            command = ["resume", str(out)]
        else:
            users = self.users or USERS.get(self.task)
            told = [f"--users={users}"] if users else []
            told += [f"--variant={self.variant}"] if self.variant else []
            # All methods are evaluated on one grid of seconds; evaluations by rounds would only cost time.
            for setting in ("eval_every=1000000", *self.settings):
                told += ["--set", filled(setting, users or 20)]
            methods = ",".join(self.methods)
            command = ["compare", self.task, "--methods", methods, "--seeds", self.seeds, "--out", str(out)]
            command += ["--extend", str(self.extend), *told]
        subprocess.run([sys.executable, "-m", "fedbalancer", *command], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        shown = {canonical_name(method) for method in self.shown or self.methods}
        return found | {"methods": {name: found["methods"][name] for name in found["methods"] if name in shown}}


def filled(setting: str, users: int) -> str:
    """A trial's setting with its words exchanged for what they stand for: of the users, or recorded phones."""
    traces = f"{os.environ.get('FEDBALANCER_DATA', 'data')}/devices.zip:ready_loose.json"
    for word, meant in (("HALF", str(users // 2)), ("ALL", str(users)), ("TRACES", traces)):
        setting = setting.replace(word, meant)
    return setting


def wrong_rates(task: str) -> tuple[str, ...]:
    """Methods with the task's learning rate, a tenth of it and ten times as much, given or as a start of the search."""
    wrong = [f"[learning_rate={RATES[task] * times:g}]" for times in (0.1, 10)]
    named = [f"{method}{rate}" for method in ("canter", "canter+auto") for rate in ("", *wrong)]
    return ("fedavg+1t", "fedavg+wfa", *named)


def first_of(summary: Mapping[str, Any]) -> str:
    """The method over which all ratios are: FedBalancer, or canter in a comparison without it."""
    return "fedbalancer" if "fedbalancer" in summary["methods"] else "canter"


def over(summary: Mapping[str, Any], mine: str, reference: str, share: str) -> Ratio:
    """How many times as fast `mine` is at this share of the target as `reference` (or the best FedAvg of the seed)."""

    def arrival(seed: Mapping[str, Any], method: str) -> Arrival:
        time = seed["methods"][method]["times"][share]
        return Arrival(time["seconds"], time["reached"])

    seeds = summary["per_seed"]
    return paired_ratio([(arrival(s, reference or s["reference"]), arrival(s, mine)) for s in seeds])


def rows(name: str, task: str, summary: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Return the rows of a comparison: one per method, target and reference."""
    for method, found in summary["methods"].items():
        for share in SHARES:
            for reference in (first_of(summary), ""):
                ratio = over(summary, method, reference, share)
                yield {
                    "comparison": name, "task": task, "method": method, "target_share": float(share),
                    "over": reference or "best fedavg", "ratio": ratio.mean, "low": ratio.low, "high": ratio.high,
                    "bound": ratio.bound, "p": ratio.p, "seeds": ratio.seeds, "accuracy": found["accuracy"]["mean"],
                    "worst_decile": found["clients"]["worst_decile"], "never_chosen": found["clients"]["never"],
                    "reached": found["targets"][share]["reached"],
                    **{name: found["targets"][share]["cost"][name] for name in COSTS},
                }  # fmt: skip


def cell(ratio: Ratio) -> str:
    """A ratio as the tables say it."""
    if ratio.mean is None:
        return "?"
    ends = [f"{end:.2f}" if end is not None else "?" for end in (ratio.low, ratio.high)]
    interval = "" if ratio.low is None and ratio.high is None else f" ({' to '.join(ends)})"
    return f"{ratio.bound + ' ' if ratio.bound else ''}{ratio.mean:.2f}{interval}"


def table(name: str, summary: Mapping[str, Any]) -> list[str]:
    """A comparison in Markdown."""
    count, first = len(summary["per_seed"]), first_of(summary)
    title = {"fedbalancer": "FedBalancer", "canter": "canter"}[first]
    lines = [
        f"### {name}: {count} seeds, target {summary['target']:.3f}",
        "",
        f"| method | over {title}, 100 % | 95 % | 90 % | over the best FedAvg, 100 % | reached | accuracy "
        "| worst decile | device hours to the target |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for method, found in summary["methods"].items():
        ratios = [cell(over(summary, method, first, share)) for share in SHARES]
        ratios.append(cell(over(summary, method, "", "1")))
        decile = found["clients"]["worst_decile"]
        cells = [
            f"`{method}`", *ratios, f"{found['speedup']['reached']} of {count}", f"{found['accuracy']['mean']:.3f}",
            "–" if decile is None else f"{decile:.3f}", hours(found["targets"]["1"]["cost"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *over_canter(summary)]


def over_canter(summary: Mapping[str, Any]) -> list[str]:
    """Its variants beside `canter` itself, on the same seeds: two ratios to a third may overlap and yet differ."""
    variants = [name for name in summary["methods"] if name.startswith("canter") and name != "canter"]
    if "canter" not in summary["methods"] or not variants or first_of(summary) == "canter":
        return []
    ratios = {name: [cell(over(summary, name, "canter", share)) for share in SHARES] for name in variants}
    said = [f"- `{name}` over `canter`, 100, 95 and 90 %: {', '.join(found)}" for name, found in ratios.items()]
    return [*said, ""]


def hours(cost: Mapping[str, Any]) -> str:
    """Device hours; those of a run that never reached the target are a lower bound."""
    return "–" if cost.get("device_s") is None else f"{cost['device_s'] / 3600:.2f}"


def chosen(what: str, tasks: Sequence[str] | None, seeds: str | None, runs: Path) -> list[Compared]:
    """The comparisons of one kind; a task that is made for it is written to `runs`."""
    if what == "trials":
        cases = [(task, trial) for task in tasks or ("synthetic",) for trial in TRIALS]
        methods = ("fedavg+1t", "fedavg+wfa", "fedbalancer", "canter")
        users = {COME_AND_GO: 300}
        return [
            Compared(f"{t}, {trial}", t, methods, seeds or "10..14", TRIALS[trial], users=users.get(trial))
            for t, trial in cases
        ]
    if what == "unseen":
        strokes = Compared("femnist strokes", "femnist", PEERS, seeds or "10..14", variant="strokes")
        return [Compared("digits", str(digits(runs)), PEERS, seeds or "10..19"), strokes]
    if what == "labels":
        wrong = "a fifth of the labels wrong"
        kinds: Mapping[str, tuple[str, ...]] = {wrong: TRIALS[wrong], "labels as they are": ()}
        cases = [(task, kind) for task in tasks or ("har", "synthetic") for kind in kinds]
        return [Compared(f"{t}, {kind}", t, LABELS, seeds or "10..12", kinds[kind]) for t, kind in cases]
    if what == "rate":
        return [
            Compared(t, t, wrong_rates(t), seeds or "10..12", RATE_ROUNDS.get(t, ()), extend=1) for t in tasks or RATES
        ]
    methods, usual_tasks, usual_seeds = {
        "held-out": (USUAL, TASKS, "10..19"),
        "gifts": (GIVEN, ("har",), "0..4"),
        "parts": (PARTS, ("har",), "0..4"),
        "peers": (PEERS, TASKS, "10..14"),
        "added": (ADDED, ("synthetic",), "10..12"),
        "pace": (PACES, ("har", "synthetic"), "10..12"),
        "power": (POWERS, ("har", "femnist", "synthetic"), "10..14"),
    }[what]
    # Two tables of one comparison: what they have in common runs once.
    run = tuple(dict.fromkeys((*PARTS, *GIVEN))) if methods in (GIVEN, PARTS) else methods
    return [Compared(task, task, run, seeds or usual_seeds, shown=methods) for task in tasks or usual_tasks]


def digits(runs: Path) -> Path:
    """The task's file, written with its data."""
    import numpy as np
    from sklearn.datasets import load_digits

    runs.mkdir(parents=True, exist_ok=True)
    x, y = load_digits(return_X_y=True)
    np.savez(runs / "digits.npz", x=(x / 16).astype("float32"), y=y)
    write_text(runs / "digits.toml", DIGITS)
    return (runs / "digits.toml").resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("held-out", "gifts", "parts", "peers", "unseen", "trials", "labels", "added", "pace", "power", "rate")
    parser.add_argument("what", choices=kinds)
    parser.add_argument("--tasks", type=lambda text: text.split(","))
    parser.add_argument("--seeds")
    parser.add_argument("--methods", help="in place of all of the table's")
    parser.add_argument("--only", default="", help="comparisons with this in their names")
    parser.add_argument("--runs", type=Path, default=Path("runs/canter"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/canter"))
    told = parser.parse_args()
    made: list[dict[str, Any]] = []
    lines = [f"## {told.what}", ""]
    asked = [each for each in chosen(told.what, told.tasks, told.seeds, told.runs) if told.only in each.name]
    if told.methods:
        asked = [each._replace(methods=told.methods.split(","), shown=()) for each in asked]
    for compared in asked:
        print(compared.name, flush=True)
        summary = compared.made(told.runs / ("parts" if told.what == "gifts" else told.what))
        made += rows(compared.name, Path(compared.task).stem, summary)  # a task of ours is named by its file
        lines += table(compared.name, summary)
    told.out.mkdir(parents=True, exist_ok=True)
    write_text(told.out / f"{told.what}.md", "\n".join(lines))
    kept = told.out / f"{told.what}.parquet"
    write_bytes(kept, _parquet(pl.DataFrame(made, infer_schema_length=None)))


def _parquet(frame: pl.DataFrame) -> bytes:
    import io

    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
