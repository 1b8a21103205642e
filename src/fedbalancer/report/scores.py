"""The paper's scoring rule: how much sooner a method reaches the accuracy that the best FedAvg variant ends with.

Per seed: the budget G is FedAvg+1T's clock after the task's rounds. The target is the final accuracy (the last
evaluation with clock <= G) of the best FedAvg variant; a method's time is the clock of its first evaluation at or
above the target, and its speed-up the reference's time over its own. Runs may go on beyond G: that counts for the time
only. A target that is never reached is a speed-up of 0. Among FedAvg variants that end equal, the one that was there
first is the reference. Without any FedAvg variant the first method listed is.

Departures from the authors' notebooks: an evaluation is stamped with the end of its round, when the model exists, and
± is the sample standard deviation (ddof 1). `stamp="start"` gives their stamp, the start of the round, to everything
that is a time: when the target was reached, which evaluation is the last within the budget (and with it the final
accuracies and the target), and the budget itself, which is then the start of FedAvg+1T's last round.

>>> import polars as pl
>>> frame = pl.DataFrame({"start_s": [0.0, 10.0], "clock_s": [10.0, 20.0], "accuracy": [0.5, 0.8]})
>>> fast = pl.DataFrame({"start_s": [0.0, 5.0], "clock_s": [5.0, 10.0], "accuracy": [0.6, 0.8]})
>>> result = score([RunCurve("fedavg+1t", 0, frame), RunCurve("fedbalancer", 0, fast)], {0: 20.0})
>>> result["fedbalancer"].speedup.mean
2.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedbalancer.errors import BadSetting, UnknownName
from fedbalancer.report.estimate import Estimate
from fedbalancer.report.folders import Results, RunCurve
from fedbalancer.report.rule import (
    BUDGET_METHOD,
    Stamp,
    final_accuracy,
    is_fedavg,
    stamped_budget_s,
    time_to_accuracy,
)


@dataclass(frozen=True)
class Score:
    """One method on one seed. `time_s` is None and `speedup` 0.0 if the target was never reached; the bytes are those
    sent within the budget, None if they were not recorded."""

    method: str
    seed: int
    time_s: float | None
    speedup: float
    accuracy: float
    down_bytes: int | None = None
    up_bytes: int | None = None


@dataclass(frozen=True)
class SeedScore:
    """What one seed was scored against, and the scores."""

    seed: int
    budget_s: float
    target: float
    reference: str
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class MethodScore:
    """One method over the seeds on which it can be scored."""

    method: str
    scores: tuple[Score, ...]

    @property
    def speedup(self) -> Estimate:
        """The mean counts a seed on which the target was never reached as 0, as the paper does. That 0 stands for "not
        in the time given" and was not measured, so that with such a seed there is no interval, and without any other
        no deviation either."""
        found = Estimate.of([score.speedup for score in self.scores])
        if self.reached == len(self.scores):
            return found
        return replace(found, low=None, high=None, std=found.std if self.reached else None)

    @property
    def accuracy(self) -> Estimate:
        return Estimate.of([score.accuracy for score in self.scores])

    @property
    def down_bytes(self) -> Estimate:
        return Estimate.of([score.down_bytes for score in self.scores if score.down_bytes is not None])

    @property
    def up_bytes(self) -> Estimate:
        return Estimate.of([score.up_bytes for score in self.scores if score.up_bytes is not None])

    @property
    def reached(self) -> int:
        """On how many seeds the target was reached."""
        return sum(score.time_s is not None for score in self.scores)


@dataclass(frozen=True)
class Comparison:
    """The scores of all methods. `notes` say in words what could not be scored, and why."""

    methods: tuple[MethodScore, ...]
    seeds: tuple[SeedScore, ...]
    fedavg_reference: bool
    stamp: Stamp = "end"
    notes: tuple[str, ...] = ()
    task: str = ""
    variant: str = ""
    rounds: int | None = None

    def __getitem__(self, method: str) -> MethodScore:
        for found in self.methods:
            if found.method == method:
                return found
        raise UnknownName("method", method, [known.method for known in self.methods])

    @property
    def target(self) -> float | None:
        """Mean over the scored seeds."""
        return Estimate.of([seed.target for seed in self.seeds]).mean

    @property
    def budget_s(self) -> float | None:
        """Mean over the scored seeds."""
        return Estimate.of([seed.budget_s for seed in self.seeds]).mean

    @property
    def reference(self) -> str:
        """What the speed-ups are relative to."""
        return "the best FedAvg variant" if self.fedavg_reference else f"the reference {self.methods[0].method}"

    def to_json(self) -> dict[str, Any]:
        """The shape that `compare --json` and `summary.json` share."""
        return {
            "target": self.target,
            "budget_s": self.budget_s,
            "methods": {method.method: _method_json(method) for method in self.methods},
            "seeds": len(self.seeds),
            "per_seed": [_seed_json(seed) for seed in self.seeds],
        }


def score(
    curves: Iterable[RunCurve],
    budgets_s: Mapping[int, float],
    *,
    methods: Sequence[str] | None = None,
    stamp: Stamp = "end",
    task: str = "",
    variant: str = "",
    rounds: int | None = None,
) -> Comparison:
    """Score every run that is done or has come to the end of its seed's budget.

    `budgets_s` has the seconds that each seed's runs are given, `methods` the order (default: as the curves come),
    `stamp` what counts as the time of an evaluation. `task`, `variant` and `rounds` are only for captions.
    """
    if stamp not in ("end", "start"):
        raise BadSetting(f"stamp {stamp!r} is not known; use 'end' or 'start'")
    curves = list(curves)
    names = list(methods) if methods is not None else list(dict.fromkeys(curve.method for curve in curves))
    variants = [name for name in names if is_fedavg(name)]
    seeds: list[SeedScore] = []
    notes: list[str] = []
    for seed in sorted({curve.seed for curve in curves}):
        scored, said = _score_seed(
            seed, [curve for curve in curves if curve.seed == seed], budgets_s.get(seed), variants or names[:1], stamp
        )
        seeds += [scored] if scored else []
        notes += said
    everything = [result for seed_score in seeds for result in seed_score.scores]
    return Comparison(
        methods=tuple(MethodScore(name, tuple(s for s in everything if s.method == name)) for name in names),
        seeds=tuple(seeds),
        fedavg_reference=bool(variants),
        stamp=stamp,
        notes=tuple(notes),
        task=task,
        variant=variant,
        rounds=rounds,
    )


def score_comparison(results: Results, stamp: Stamp = "end") -> Comparison:
    """The scores of what a folder holds."""
    return score(
        results.curves, results.budgets_s, methods=results.methods, stamp=stamp,
        task=results.task, variant=results.variant, rounds=results.rounds,
    )  # fmt: skip


def _score_seed(
    seed: int, curves: list[RunCurve], budget_s: float | None, candidates: list[str], stamp: Stamp
) -> tuple[SeedScore | None, list[str]]:
    """The scores of one seed, if it has a budget and a reference; and what a reader must know about them."""
    if budget_s is None:
        return None, [f"seed {seed} is not scored: its time budget is not known"]
    covering = {curve.method: curve for curve in curves if curve.covers(budget_s)}
    limit_s = stamped_budget_s(budget_s, covering.get(BUDGET_METHOD), stamp)
    ends = {name: final_accuracy(curve.evals, limit_s, stamp) for name, curve in covering.items()}
    by_name = {name: curve for name, curve in covering.items() if ends[name] is not None}
    notes = [_gap(curve, limit_s, covering) for curve in curves if curve.method not in by_name]
    notes += [_unfinished(curve) for curve in by_name.values() if curve.status != "done"]
    best = [
        (-accuracy, time_s, order, name)
        for order, name in enumerate(candidates)
        if (accuracy := ends.get(name)) is not None
        and (time_s := time_to_accuracy(by_name[name].evals, accuracy, stamp)) is not None
    ]
    if not best:
        return None, [*notes, f"seed {seed} is not scored: no reference among {', '.join(candidates)} can be scored"]
    negative, reference_s, _, reference = min(best)
    scores = [_score_run(curve, limit_s, -negative, reference_s, ends[name], stamp) for name, curve in by_name.items()]
    return SeedScore(seed, limit_s, -negative, reference, tuple(scores)), notes


def _score_run(
    curve: RunCurve, budget_s: float, target: float, reference_s: float, accuracy: float | None, stamp: Stamp
) -> Score:
    time_s = time_to_accuracy(curve.evals, target, stamp)
    speedup = 0.0 if time_s is None else reference_s / time_s
    down_bytes, up_bytes = (curve.sent_bytes(way, budget_s, f"{stamp}_s") for way in ("down_bytes", "up_bytes"))
    return Score(curve.method, curve.seed, time_s, speedup, float(accuracy or 0.0), down_bytes, up_bytes)


def _gap(curve: RunCurve, budget_s: float, covering: Mapping[str, RunCurve]) -> str:
    came = f"only came to {curve.last_s:.0f} s (status: {curve.status}) of"
    what = "has no evaluation within" if curve.method in covering else came
    return f"{curve.method}, seed {curve.seed} is not scored: it {what} the budget of {budget_s:.0f} s"


def _unfinished(curve: RunCurve) -> str:
    return f"{curve.method}, seed {curve.seed} is {curve.status}: it is scored as far as it came, {curve.last_s:.0f} s"


def _method_json(method: MethodScore) -> dict[str, Any]:
    others = {"accuracy": method.accuracy, "down_bytes": method.down_bytes, "up_bytes": method.up_bytes}
    return {
        "speedup": {**asdict(method.speedup), "reached": method.reached},
        **{name: {"mean": found.mean, "std": found.std} for name, found in others.items()},
    }


def _seed_json(seed: SeedScore) -> dict[str, Any]:
    return {
        "seed": seed.seed,
        "target": seed.target,
        "budget_s": seed.budget_s,
        "reference": seed.reference,
        "methods": {s.method: {"time_s": s.time_s, "speedup": s.speedup, "accuracy": s.accuracy} for s in seed.scores},
    }
