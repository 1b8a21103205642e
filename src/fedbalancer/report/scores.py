"""Scoring: how much sooner a method reaches the accuracy that the best FedAvg variant ends with.

Per seed: the budget G is FedAvg+1T's clock after the task's rounds. The reference is the FedAvg variant with the best
final accuracy; of those that end equal, the one that was there first. Without any FedAvg variant the first method
listed is. Targets are shares of the reference's final accuracy; runs may go on beyond G, which counts for the times
only. Two rules say what "final" and "reached" mean.

- `fair` (the default) looks at a grid of simulated seconds, the same for all methods. A target is reached when the mean
  of three evaluations in a row is at it, and the final accuracy is that mean at G. A run that never reaches the target
  is censored at the seconds it ran to. Over seeds: geometric mean of the paired ratios, bootstrap interval.
- `paper` looks at the evaluations by rounds: first touch, the last evaluation within G, arithmetic mean over seeds with
  0 for a target that was never reached. Departures from the authors' notebooks: an evaluation is stamped with the end
  of its round, when the model exists, and ± is the sample standard deviation (ddof 1). `stamp="start"` gives their
  stamp, the start of the round, to everything that is a time: when the target was reached, which evaluation is the
  last within the budget, and the budget itself, which is then the start of FedAvg+1T's last round.

>>> import polars as pl
>>> frame = pl.DataFrame({"start_s": [0.0, 10.0], "clock_s": [10.0, 20.0], "accuracy": [0.5, 0.8]})
>>> fast = pl.DataFrame({"start_s": [0.0, 5.0], "clock_s": [5.0, 10.0], "accuracy": [0.6, 0.8]})
>>> result = score([RunCurve("fedavg+1t", 0, frame), RunCurve("fedbalancer", 0, fast)], {0: 20.0}, rule="paper")
>>> result["fedbalancer"].speedup.mean
2.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from fedbalancer.errors import BadSetting
from fedbalancer.report.fairness import fairness_of
from fedbalancer.report.ratio import Arrival
from fedbalancer.report.rule import (
    BUDGET_METHOD,
    Rule,
    Stamp,
    checked_rule,
    final_accuracy,
    is_fedavg,
    points,
    stamped_budget_s,
    time_to_accuracy,
)
from fedbalancer.report.stored import COSTS, Results, RunCurve
from fedbalancer.report.values import (
    Comparison,
    Cost,
    MethodScore,
    Reach,
    Score,
    SeedScore,
    TargetScore,
    speedup_of,
)
from fedbalancer.store.comparison import TARGETS

__all__ = [
    "Comparison",
    "Cost",
    "MethodScore",
    "Score",
    "SeedScore",
    "TargetScore",
    "score",
    "score_comparison",
]


@dataclass(frozen=True, eq=False)
class _Run:
    """A run that can be scored: its evaluations as the rule sees them, and its accuracy at the end of the budget."""

    curve: RunCurve
    points: pl.DataFrame
    accuracy: float

    def arrival(self, target: float, column: str = "level") -> Arrival:
        time_s = time_to_accuracy(self.points, target, column)
        return Arrival(self.curve.last_s, reached=False) if time_s is None else Arrival(time_s)


def score(
    curves: Iterable[RunCurve],
    budgets_s: Mapping[int, float],
    *,
    methods: Sequence[str] | None = None,
    rule: str = "fair",
    targets: Sequence[float] = TARGETS,
    stamp: Stamp = "end",
    task: str = "",
    variant: str = "",
    rounds: int | None = None,
) -> Comparison:
    """Score every run that is done or has come to the end of its seed's budget.

    `budgets_s` has the seconds that each seed's runs are given, `methods` the order (default: as the curves come),
    `targets` the shares of the reference's final accuracy, the main one first, `stamp` what counts as the time of an
    evaluation by the paper's rule. `task`, `variant` and `rounds` are only for captions.
    """
    by, shares = checked_rule(rule, stamp), checked_targets(targets)
    curves = list(curves)
    names = list(methods) if methods is not None else list(dict.fromkeys(curve.method for curve in curves))
    variants = [name for name in names if is_fedavg(name)]
    scorer = _Scorer(by, stamp, shares, tuple(variants or names[:1]))
    seeds: list[SeedScore] = []
    notes = _rule_notes(by, curves)
    for seed in sorted({curve.seed for curve in curves}):
        scored, said = scorer.seed(seed, [curve for curve in curves if curve.seed == seed], budgets_s.get(seed))
        seeds += [scored] if scored else []
        notes += said
    everything = [result for seed_score in seeds for result in seed_score.scores]
    return Comparison(
        methods=tuple(
            MethodScore(name, tuple(s for s in everything if s.method == name), by, shares) for name in names
        ),
        seeds=tuple(seeds),
        fedavg_reference=bool(variants),
        stamp=stamp,
        notes=tuple(notes),
        task=task,
        variant=variant,
        rounds=rounds,
        rule=by,
        targets=shares,
        runs=tuple(curves),
    )


def score_comparison(
    results: Results, stamp: Stamp = "end", rule: str | None = None, targets: Sequence[float] | None = None
) -> Comparison:
    """The scores of what a folder holds, by the rule and at the targets that its runs were made for, unless told
    otherwise."""
    rule = rule or ("paper" if stamp == "start" else results.rule)
    found = score(
        results.curves, results.budgets_s, methods=results.methods, stamp=stamp, rule=rule,
        targets=results.targets if targets is None else targets,
        task=results.task, variant=results.variant, rounds=results.rounds,
    )  # fmt: skip
    return found if rule == results.rule else replace(found, notes=(_other_rule(rule, results.rule), *found.notes))


def _other_rule(rule: str, own: str) -> str:
    return (
        f"scored by the rule {rule}, but the runs were made for the rule {own}: beyond the budget they went on only "
        "until that was content, so that a target counts as not reached here that a longer run might have reached"
    )


def checked_targets(targets: Sequence[float]) -> tuple[float, ...]:
    """Shares of the reference's final accuracy, each once."""
    for share in targets:
        if not 0 < share <= 2:
            raise BadSetting(f"target {share:g} must be a share of the reference's final accuracy, over 0 and up to 2")
    if not targets:
        raise BadSetting("a comparison needs at least one target, such as 1.0")
    return tuple(dict.fromkeys(float(share) for share in targets))


@dataclass(frozen=True)
class _Scorer:
    """Scores seeds by one rule; `candidates` are the methods of which the best is the reference."""

    rule: Rule
    stamp: Stamp
    targets: tuple[float, ...]
    candidates: tuple[str, ...]

    def seed(self, seed: int, curves: list[RunCurve], budget_s: float | None) -> tuple[SeedScore | None, list[str]]:
        """The scores of one seed, if it has a budget and a reference; and what a reader must know about them."""
        if budget_s is None:
            return None, [f"seed {seed} is not scored: its time budget is not known"]
        covering = {curve.method: curve for curve in curves if curve.covers(budget_s)}
        limit_s = stamped_budget_s(budget_s, covering.get(BUDGET_METHOD), self.stamp)
        seen = {name: points(curve, budget_s, self.rule, self.stamp) for name, curve in covering.items()}
        ends = {name: final_accuracy(found, limit_s) for name, found in seen.items()}
        runs = {name: _Run(covering[name], seen[name], end) for name, end in ends.items() if end is not None}
        notes = [_gap(curve, limit_s, covering) for curve in curves if curve.method not in runs]
        notes += [_unfinished(run.curve) for run in runs.values() if run.curve.status != "done"]
        name = self._reference(runs)
        if name is None:
            among = ", ".join(self.candidates)
            return None, [*notes, f"seed {seed} is not scored: no reference among {among} can be scored"]
        scores = tuple(self._run(run, limit_s, runs[name]) for run in runs.values())
        return SeedScore(seed, limit_s, self.targets[0] * runs[name].accuracy, name, scores), notes

    def _reference(self, runs: Mapping[str, _Run]) -> str | None:
        """The candidate with the best final accuracy; of equals, the one that was there first."""
        best = [
            (-run.accuracy, arrival.seconds, order, name)
            for order, name in enumerate(self.candidates)
            if (run := runs.get(name)) is not None and (arrival := run.arrival(run.accuracy)).reached
        ]
        return min(best)[-1] if best else None

    def _run(self, run: _Run, budget_s: float, reference: _Run) -> Score:
        reaches = {share: self._reach(run, share * reference.accuracy, reference) for share in self.targets}
        main = reaches[self.targets[0]]
        speedup, bound = speedup_of(main, self.rule)
        return Score(
            run.curve.method,
            run.curve.seed,
            main.arrival.seconds if main.arrival.reached else None,
            speedup,
            run.accuracy,
            bound,
            self._cost(run.curve, budget_s),
            reaches,
            fairness_of(run.curve.population),
        )

    def _reach(self, run: _Run, target: float, reference: _Run) -> Reach:
        arrival = run.arrival(target)
        touches = run.arrival(target, "accuracy"), reference.arrival(target, "accuracy")
        return Reach(
            target, arrival, touches[0], reference.arrival(target), touches[1], self._cost(run.curve, arrival.seconds)
        )

    def _cost(self, curve: RunCurve, until_s: float) -> Cost:
        return Cost(*(curve.spent(part, until_s, f"{self.stamp}_s") for part in COSTS))


def _rule_notes(rule: Rule, curves: Iterable[RunCurve]) -> list[str]:
    bare = sorted({curve.method for curve in curves if curve.evals.height and not curve.has_grid})
    if rule == "paper" or not bare:
        return []
    return [
        f"{', '.join(bare)}: evaluated by rounds only, so that its times on the grid of seconds are those of the last "
        "evaluation before"
    ]


def _gap(curve: RunCurve, budget_s: float, covering: Mapping[str, RunCurve]) -> str:
    came = f"only came to {curve.last_s:.0f} s (status: {curve.status}) of"
    what = "has no evaluation with an accuracy within" if curve.method in covering else came
    return f"{curve.method}, seed {curve.seed} is not scored: it {what} the budget of {budget_s:.0f} s"


def _unfinished(curve: RunCurve) -> str:
    return f"{curve.method}, seed {curve.seed} is {curve.status}: it is scored as far as it came, {curve.last_s:.0f} s"
