"""Table 1 at the paper's shape: published users, cohort, sizes, devices and deadlines; generated data, narrow models.

    python benchmarks/paper_shape.py rows [--shapes femnist,celeba,reddit] [--seeds 0..2] [--out FOLDER]
    python benchmarks/paper_shape.py vary [--shapes reddit] [--properties sizes,cohort]
    python benchmarks/paper_shape.py sizes

`rows` runs Table 1's methods on every shape. `vary` changes one property of a shape at a time and runs FedAvg and
FedBalancer. `sizes` prints how unequal the clients are. Every comparison is a folder under --runs; finished seeds
are not repeated. `tables` prints what is finished.

A user's features are normal around the user's own centre. The label is drawn from the softmax of a linear map of them,
tilted by the user's own preference for some labels. Nothing is downloaded, and the files of the tasks are not needed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import fedbalancer as fb
from fedbalancer.cli.options import parse_seeds
from fedbalancer.core.files import write_text
from fedbalancer.core.randomness import stream
from fedbalancer.data.clients import SlicedClients
from fedbalancer.data.partition import lognormal_sizes
from fedbalancer.data.tasks import celeba, femnist, reddit
from fedbalancer.experiments.comparison import run_comparison
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.reporting.ratio import Arrival, Estimate, paired_ratio
from fedbalancer.reporting.summary import comparison_json
from fedbalancer.simulation.executors import Resources

FEATURES = 24
EXTEND = 1.25
"""Budgets that a method may use to reach the target."""


@dataclass(frozen=True)
class Shape:
    """A task of the paper's shape.

    Args:
        name: Task of the paper, whose batch latencies are used.
        users: Number of users, those for tests included.
        samples: Number of samples of all users.
        variation: Standard deviation of the samples per user over their mean.
        least: Smallest number of samples of a user.
        most: Largest number of samples of a user.
        split: Shares of a user's samples that train and test, or of the users, if `by_user`.
        by_user: Whether whole users train or test.
        model_bytes: Size of the published model.
        classes: Number of labels.
        zipf: Power of the frequency of the labels. 0: all labels are equally frequent.
        skew: Concentration of a user's own frequencies of labels (Dirichlet), per label. inf: no label skew.
        style: Standard deviation of the users' centres.
        sharpness: Scale of the true scores; the higher, the more certain the labels.
        hidden: Units of the model's hidden layer. 0: a linear model.
        tilt: How much the labels of a user depend on its number of samples. 0: not at all.
        settings: Further settings of the task.
    """

    name: str
    users: int
    samples: int
    variation: float
    least: int
    most: int
    split: tuple[float, float]
    by_user: bool
    model_bytes: int
    classes: int
    zipf: float
    skew: float
    style: float
    sharpness: float
    hidden: int = 0
    tilt: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> fb.Task:
        """Make the task. The data depend on the shape only."""
        sizes = lognormal_sizes(self.users, self.samples, self.variation, least=self.least, most=self.most)
        draws = stream(0, "paper shape")
        teacher = draws.normal(0, self.sharpness / math.sqrt(FEATURES), (FEATURES, self.classes))
        base = np.arange(1, self.classes + 1) ** -self.zipf
        direction, large = draws.normal(0, 1, self.classes), _standardized(np.log(sizes))
        tilts = [np.exp(self.tilt * more * direction) * base for more in large]
        bases = [tilted / tilted.sum() for tilted in tilts]
        data = [_user(int(size), teacher, bases[user], self, user) for user, size in enumerate(sizes)]
        train, test = self._divide(data)
        names = tuple(f"u{user:03}" for user in range(len(train)))
        lengths = tuple(len(labels) for _, labels in train)
        return fb.Task(
            clients=SlicedClients(names, lengths, *_joined(train)), test=_joined(test), name=f"{self.name} shape",
            model=partial(make_model, self.classes, self.hidden), latency=self.name, model_bytes=self.model_bytes,
            classes=self.classes, **self.settings,
        )  # fmt: skip

    def _divide(self, data: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
        first, last = self.split
        if self.by_user:
            ends = math.floor(first * len(data) + 0.5)
            return list(data[:ends]), list(data[ends:])
        train = [(x[: max(1, round(first * len(y)))], y[: max(1, round(first * len(y)))]) for x, y in data]
        test = [(x[len(y) - round(last * len(y)) :], y[len(y) - round(last * len(y)) :]) for x, y in data]
        return train, test


def _user(size: int, teacher: Any, base: Any, shape: Shape, user: int) -> tuple[Any, Any]:
    draws = stream(1, "paper shape", 0, str(user))
    own = draws.dirichlet(shape.skew * shape.classes * base) if math.isfinite(shape.skew) else base
    features = draws.normal(0, 1, (size, FEATURES)) + draws.normal(0, shape.style, FEATURES)
    scores = features @ teacher + np.log(np.maximum(own, 1e-9))
    labels = np.argmax(scores + draws.gumbel(size=scores.shape), axis=1)
    return features.astype(np.float32), labels


def _standardized(values: Any) -> Any:
    return (values - values.mean()) / max(float(values.std()), 1e-9)


def _joined(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def make_model(classes: int, hidden: int) -> Any:
    """Make the model: linear, or with one hidden layer."""
    from torch import nn

    from fedbalancer.data.tasks.layers import init_glorot

    if not hidden:
        return init_glorot(nn.Sequential(nn.Linear(FEATURES, classes)))
    return init_glorot(nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, classes)))


COMMON = {"batch_size": 10, "epochs": 5, "clients_per_round": 100, "eval_every": 1_000_000}
SHAPES = {
    "femnist": Shape(
        "femnist", 712, 157_132, 88.94 / 226.83, 10, 500, (0.9, 0.1), True, femnist.MODEL_BYTES, classes=62, zipf=0.0,
        skew=5.0, style=0.3, sharpness=8.0, settings={**COMMON, "rounds": 16, "learning_rate": 0.05},
    ),
    "celeba": Shape(
        "celeba", 915, 19_923, 7.63 / 21.44, 5, 35, (0.9, 0.1), True, celeba.MODEL_BYTES, classes=2, zipf=0.0,
        skew=1.0, style=1.0, sharpness=3.0, settings={**COMMON, "rounds": 60, "learning_rate": 0.01, "prox_mu": 0.01},
    ),
    "reddit": Shape(
        "reddit", 813, 32_680, 62.95 / 34.07, 5, 1000, (0.6, 0.2), False, reddit.MODEL_BYTES, classes=100, zipf=0.7,
        skew=0.1, style=0.3, sharpness=2.0,
        settings={**COMMON, "rounds": 60, "learning_rate": 0.5, "sample_selection_deadline": 2},
    ),
}  # fmt: skip
"""Spread of the sizes: LEAF's table of data sets. Other values: chosen on FedAvg+1T and FedAvg+WFA, seed 0."""

FEDAVG = ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa")
TABLE = (*FEDAVG, "prox+1t", "prox+2t", "sampleselection", "fedbalancer")
VARIED = ("fedavg+1t", "fedavg+2t", "fedbalancer")
"""With the two FedAvg variants that were best on some seed of `rows`."""
PUBLISHED = "as published"


def _set(**changes: Any) -> Callable[[Shape], Shape]:
    def changed(shape: Shape) -> Shape:
        return replace(shape, settings={**shape.settings, **changes})

    return changed


def _spread(variation: float) -> Callable[[Shape], Shape]:
    """Change the spread of the sizes; users have at most 25 times the mean, as in Reddit."""

    def changed(shape: Shape) -> Shape:
        return replace(shape, variation=variation, most=max(shape.most, 25 * shape.samples // shape.users))

    return changed


def _skew(concentration: float) -> Callable[[Shape], Shape]:
    return lambda shape: replace(shape, skew=concentration)


def _tilt(tilt: float) -> Callable[[Shape], Shape]:
    return lambda shape: replace(shape, tilt=tilt)


PROPERTIES: Mapping[str, Mapping[str, Mapping[str, Callable[[Shape], Shape]]]] = {
    "sizes": {
        "femnist": {"equal": _spread(0), "variation 1.85": _spread(1.85)},
        "celeba": {"equal": _spread(0), "variation 1.85": _spread(1.85)},
        "reddit": {"equal": _spread(0), "variation 0.55": _spread(0.55)},
    },
    "labels": {
        "femnist": {"no skew": _skew(math.inf), "strong skew": _skew(0.1)},
        "celeba": {"no skew": _skew(math.inf), "strong skew": _skew(0.1)},
        "reddit": {"no skew": _skew(math.inf), "mild skew": _skew(1.0)},
    },
    "rounds": {
        "femnist": {"48": _set(rounds=48)},
        "celeba": {"20": _set(rounds=20), "150": _set(rounds=150)},
        "reddit": {"20": _set(rounds=20), "150": _set(rounds=150)},
    },
    "large users": {"reddit": {"other labels": _tilt(1.0)}},
    "learning rate": {"reddit": {"0.1": _set(learning_rate=0.1)}},
    "cohort": {name: {"K = 10": _set(clients_per_round=10)} for name in SHAPES},
}
"""The values of each property, besides the published one."""
VALUES = tuple(dict.fromkeys(value for of in PROPERTIES.values() for shape in of.values() for value in shape))


@dataclass(frozen=True)
class Compared:
    """One comparison: a shape, the property that is changed and its value."""

    shape: str
    property: str
    value: str
    task: Shape
    methods: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return "-".join((self.shape, self.property, self.value)).replace(" ", "-")

    def run(self, seeds: Sequence[int], runs: Path) -> None:
        """Run the seeds that are not finished, and write one file per seed."""
        task = None
        for seed in seeds:
            path = runs / self.folder / f"seed-{seed}.json"
            if path.exists():
                continue
            task = task or self.task.make()
            plan = ComparisonPlan.make(RunSpec(task=task, settings={"eval_clients": 0}), self.methods, (seed,), EXTEND)
            outcome = run_comparison(plan, jobs=1, resources=Resources(workers=1))
            summary = comparison_json(outcome.scores_or_error())["per_seed"][0]
            for method, found in summary["methods"].items():
                memory = outcome.outcomes[method, seed].memory
                found["work"] = work_within(memory.frames()["rounds"], summary["budget_s"])
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(summary))
            print(f"{self.folder}, seed {seed}: done", flush=True)


def work_within(rounds: pl.DataFrame, budget_s: float) -> dict[str, float]:
    """Return what a run did within its budget: rounds, their seconds, reports and trained samples."""
    within = rounds.filter(pl.col("end_s") <= budget_s)
    return {
        "rounds": len(within),
        "round_s": float((within["end_s"] - within["start_s"]).mean() or 0),
        "completed_share": float(within["completed"].sum() / max(1, within["selected"].sum())),
        "trained_samples": int(within["samples"].sum()),
    }


def planned(
    what: str, shapes: Sequence[str], properties: Sequence[str], values: Sequence[str] | None = None
) -> list[Compared]:
    """Return the comparisons of a subcommand."""
    if what == "rows":
        return [Compared(name, "rows", PUBLISHED, SHAPES[name], TABLE) for name in shapes]
    return [
        Compared(name, of, value, change(SHAPES[name]), VARIED)
        for of in properties
        for name in shapes
        for value, change in PROPERTIES[of].get(name, {}).items()
        if values is None or value in values
    ]


def collected(runs: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of scores and of seeds of everything that is finished."""
    scores, rows = [], []
    for compared in (*planned("rows", tuple(SHAPES), ()), *planned("vary", tuple(SHAPES), tuple(PROPERTIES))):
        paths = sorted((runs / compared.folder).glob("seed-*.json"))
        seeds = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        head = {"shape": compared.shape, "property": compared.property, "value": compared.value}
        common = set.intersection(*(set(seed["methods"]) for seed in seeds)) if seeds else set()
        for method in filter(common.__contains__, compared.methods):
            scores += [head | row for row in _scores(method, seeds)]
            rows += [head | row for row in _seeds(method, seeds)]
    return scores, rows


def _scores(method: str, seeds: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Return one row per share of the target: the speed-up over the best FedAvg, and the final accuracy."""
    level = Estimate.of([seed["methods"][method]["accuracy"] for seed in seeds])
    for share in seeds[0]["methods"][method]["times"]:
        pairs = [(_arrival(seed, seed["reference"], share), _arrival(seed, method, share)) for seed in seeds]
        ratio = paired_ratio(pairs)
        yield {
            "method": method, "target_share": float(share), "speedup": ratio.mean, "low": ratio.low,
            "high": ratio.high, "bound": ratio.bound, "reached": sum(mine.reached for _, mine in pairs),
            "seeds": len(seeds), "accuracy": level.mean, "accuracy_low": level.low, "accuracy_high": level.high,
        }  # fmt: skip


def _arrival(seed: Mapping[str, Any], method: str, share: str) -> Arrival:
    time = seed["methods"][method]["times"][share]
    return Arrival(time["seconds"], time["reached"])


def _seeds(method: str, seeds: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Return one row per seed and share of the target."""
    for seed in seeds:
        found = seed["methods"][method]
        for share, time in found["times"].items():
            yield {
                "method": method, "seed": seed["seed"], "target_share": float(share), "seconds": time["seconds"],
                "reached": time["reached"], "target": seed["target"] * float(share), "budget_s": seed["budget_s"],
                "reference": seed["reference"], "accuracy": found["accuracy"], **found["work"],
            }  # fmt: skip


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same columns."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _short(value) for name, value in row.items()} for row in rows)
    write_text(path, text.getvalue())


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value


def sizes_table() -> str:
    """Return how unequal the clients of the shapes are, as Markdown."""
    lines = ["| shape | users | samples | mean | spread | median | 90% | most |", "|:--|--:|--:|--:|--:|--:|--:|--:|"]
    for name, shape in SHAPES.items():
        sizes = lognormal_sizes(shape.users, shape.samples, shape.variation, least=shape.least, most=shape.most)
        spread = sizes.std() / sizes.mean()
        lines.append(
            f"| {name} | {len(sizes)} | {sizes.sum():,} | {sizes.mean():.1f} | {spread:.2f} | {np.median(sizes):.0f} "
            f"| {np.percentile(sizes, 90):.0f} | {sizes.max()} |"
        )
    return "\n".join(lines)


def table(rows: Sequence[Mapping[str, Any]], head: str) -> str:
    """Return the speed-ups and accuracies of one comparison as Markdown."""
    lines = [f"### {head}", "", "| method | 100% | 95% | 90% | reached | accuracy |", "|:--|--:|--:|--:|--:|--:|"]
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = {row["target_share"]: row for row in rows if row["method"] == method}
        ratios = " | ".join(
            _interval(row["speedup"], row["low"], row["high"], 2, row["bound"]) for row in mine.values()
        )
        whole = mine[1.0]
        level = _interval(whole["accuracy"], whole["accuracy_low"], whole["accuracy_high"], 3)
        lines.append(f"| {method} | {ratios} | {whole['reached']} of {whole['seeds']} | {level} |")
    return "\n".join([*lines, ""])


def _interval(mean: float | None, low: float | None, high: float | None, digits: int, bound: str = "") -> str:
    if mean is None:
        return "–"
    ends = "" if low is None and high is None else f" ({_end(low, digits)}–{_end(high, digits)})"
    return f"{bound}{' ' if bound else ''}{mean:.{digits}f}{ends}"


def _end(value: float | None, digits: int) -> str:
    return "?" if value is None else f"{value:.{digits}f}"


def main() -> None:
    """Run what the command names, and write the tables of everything that is finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rows", "vary", "sizes", "tables"))
    parser.add_argument("--shapes", type=_names(SHAPES), default=tuple(SHAPES), help="default: all")
    parser.add_argument("--properties", type=_names(PROPERTIES), default=tuple(PROPERTIES), help="default: all")
    parser.add_argument("--values", type=_names(VALUES), help="default: all")
    parser.add_argument("--seeds", type=_seed_list, default=(0, 1, 2), help="default: 0..2")
    parser.add_argument("--runs", type=Path, default=Path("runs/paper-shape"))
    parser.add_argument("--out", type=Path, help="folder for scores.csv and seeds.csv")
    chosen = parser.parse_args()
    if chosen.what == "sizes":
        print(sizes_table())
        return
    wanted = planned(chosen.what, chosen.shapes, chosen.properties, chosen.values) if chosen.what != "tables" else ()
    for compared in wanted:
        compared.run(chosen.seeds, chosen.runs)
    scores, seeds = collected(chosen.runs)
    for head in dict.fromkeys((row["shape"], row["property"], row["value"]) for row in scores):
        print(table([row for row in scores if (row["shape"], row["property"], row["value"]) == head], ", ".join(head)))
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        write_csv(chosen.out / "scores.csv", scores)
        write_csv(chosen.out / "seeds.csv", seeds)


def _names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        wrong = [name for name in names if name not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(known)}")
        return names

    return read


def _seed_list(text: str) -> tuple[int, ...]:
    try:
        return tuple(parse_seeds(text))
    except Exception as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    main()
