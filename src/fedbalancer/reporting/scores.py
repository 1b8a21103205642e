"""Scoring: how much sooner a method reaches the final accuracy of the best FedAvg variant.

For each seed, the budget G is FedAvg+1T's clock after the task's number of rounds. The reference is the FedAvg variant
with the best final accuracy; of equals, the one that reached it first. Without a FedAvg variant, the first method
listed is the reference. Targets are shares of the reference's final accuracy. Runs may continue beyond G to reach a
target; the final accuracy is always the one at G. The rule defines "final" and "reached":

- `fair` (the default) uses evaluations on a grid of simulated seconds that all methods share. A target is reached when
  the mean of three consecutive evaluations is at or above it, and the final accuracy is this mean at G. A run that
  never reaches the target is censored at its last second. Over seeds: geometric mean of the paired ratios with a
  bootstrap interval.
- `paper` uses evaluations after rounds: the first evaluation at the target, the last evaluation within G, and the
  arithmetic mean over seeds with 0 for a target that was never reached. Two differences from the authors' notebooks: an
  evaluation counts at the end of its round, when the model exists, and ± is the sample standard deviation (ddof 1).
  `stamp="start"` gives the notebooks' times: an evaluation counts at the start of its round, and the budget is the
  start of FedAvg+1T's last round.

Another metric can take the place of the accuracy. If lower values are better, a target is reached at or below it, and a
share of the final value is the value divided by the share.

Example:
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

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.metrics import ACCURACY, Metric
from fedbalancer.reporting.clients import measure_fairness
from fedbalancer.reporting.comparison import Comparison, Cost, MethodScore, Reach, Score, SeedScore, run_speedup
from fedbalancer.reporting.ratio import Arrival
from fedbalancer.reporting.results import COSTS, Results, RunCurve
from fedbalancer.reporting.rule import (
    BUDGET_METHOD,
    Rule,
    Stamp,
    check_rule,
    final_level,
    is_fedavg,
    select_evaluations,
    stamp_budget,
    time_to_target,
)
from fedbalancer.store.comparison import TARGETS


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
    metric: Metric | None = None,
) -> Comparison:
    """Score every run that is done or covers the budget of its seed.

    Args:
        curves: The runs.
        budgets_s: Time budget in seconds by seed.
        methods: Order of the methods. Default: the order of the curves.
        rule: "fair" or "paper".
        targets: Shares of the reference's final value, the main target first.
        stamp: With the rule "paper": whether an evaluation counts at the end or the start of its round.
        task: Name of the task, for captions.
        variant: Variant of the task, for captions.
        rounds: Number of rounds of the budget, for captions.
        metric: The metric to score by. Default: that of the first curve.

    Raises:
        UnknownName: If there is no such rule.
        BadSetting: If a target is not between 0 and 2, or the stamp does not fit the rule.
    """
    checked, shares = check_rule(rule, stamp), check_targets(targets)
    curves = list(curves)
    metric = metric if metric is not None else curves[0].metric if curves else ACCURACY
    curves = [curve if curve.metric == metric else replace(curve, metric=metric) for curve in curves]
    names = list(methods) if methods is not None else list(dict.fromkeys(curve.method for curve in curves))
    variants = [name for name in names if is_fedavg(name)]
    scorer = _Scorer(checked, stamp, shares, tuple(variants or names[:1]), metric)
    seeds: list[SeedScore] = []
    notes = _rule_notes(checked, curves)
    for seed in sorted({curve.seed for curve in curves}):
        seed_curves = [curve for curve in curves if curve.seed == seed]
        seed_score, seed_notes = scorer.score_seed(seed, seed_curves, budgets_s.get(seed))
        seeds += [seed_score] if seed_score else []
        notes += seed_notes
    scores = [run_score for seed_score in seeds for run_score in seed_score.scores]
    return Comparison(
        methods=tuple(
            MethodScore(name, tuple(s for s in scores if s.method == name), checked, shares) for name in names
        ),
        seeds=tuple(seeds),
        fedavg_reference=bool(variants),
        stamp=stamp,
        notes=tuple(notes),
        task=task,
        variant=variant,
        rounds=rounds,
        rule=checked,
        targets=shares,
        runs=tuple(curves),
        metric=metric,
    )


def score_comparison(
    results: Results, stamp: Stamp = "end", rule: str | None = None, targets: Sequence[float] | None = None
) -> Comparison:
    """Score loaded results.

    Args:
        results: The runs, see `load`.
        stamp: Whether an evaluation counts at the end or the start of its round. "start" implies the rule "paper".
        rule: "fair" or "paper". Default: the rule of the comparison.
        targets: Shares of the reference's final accuracy. Default: the targets of the comparison.

    Raises:
        UnknownName: If there is no such rule.
        BadSetting: If a target is not between 0 and 2, or the stamp does not fit the rule.
    """
    rule = rule or ("paper" if stamp == "start" else results.rule)
    comparison = score(
        results.curves, results.budgets_s, methods=results.methods, stamp=stamp, rule=rule,
        targets=results.targets if targets is None else targets,
        task=results.task, variant=results.variant, rounds=results.rounds, metric=results.metric,
    )  # fmt: skip
    if rule == results.rule:
        return comparison
    note = (
        f"scored by the rule {rule}, but the runs were stopped by the rule {results.rule}: beyond the budget they ran "
        "only until that rule was satisfied, so a target counted as not reached here might be reached by a longer run"
    )
    return replace(comparison, notes=(note, *comparison.notes))


def check_targets(targets: Sequence[float]) -> tuple[float, ...]:
    """Validate targets and remove duplicates.

    Raises:
        BadSetting: If there is no target, or one is not above 0 and at most 2.
    """
    for share in targets:
        if not 0 < share <= 2:
            raise BadSetting(
                f"target {share:g} must be a share of the reference's final accuracy, greater than 0 and at most 2"
            )
    if not targets:
        raise BadSetting("a comparison needs at least one target, such as 1.0")
    return tuple(dict.fromkeys(float(share) for share in targets))


@dataclass(frozen=True, eq=False)
class _Run:
    """A run that can be scored: its evaluations as selected by the rule, and its level at the end of the budget.

    Levels are values of the metric times its sign, so that higher is better.
    """

    curve: RunCurve
    evaluations: pl.DataFrame
    level: float

    @property
    def final(self) -> float:
        """The value of the metric at the end of the budget."""
        return self.curve.metric.sign * self.level

    def arrival(self, level: float, column: str = "level") -> Arrival:
        time_s = time_to_target(self.evaluations, level, column)
        return Arrival(self.curve.last_s, reached=False) if time_s is None else Arrival(time_s)


@dataclass(frozen=True)
class _Scorer:
    """Scores seeds by one rule; the best of the methods in `candidates` is the reference."""

    rule: Rule
    stamp: Stamp
    targets: tuple[float, ...]
    candidates: tuple[str, ...]
    metric: Metric

    def score_seed(
        self, seed: int, curves: list[RunCurve], budget_s: float | None
    ) -> tuple[SeedScore | None, list[str]]:
        """Return the scores of one seed, None without a budget or a reference, and notes for the reader."""
        if budget_s is None:
            return None, [f"seed {seed} is not scored: its time budget is not known"]
        covering = {curve.method: curve for curve in curves if curve.covers(budget_s)}
        limit_s = stamp_budget(budget_s, covering.get(BUDGET_METHOD), self.stamp)
        selected = {
            name: select_evaluations(curve, budget_s, self.rule, self.stamp) for name, curve in covering.items()
        }
        finals = {name: final_level(evaluations, limit_s) for name, evaluations in selected.items()}
        runs = {name: _Run(covering[name], selected[name], end) for name, end in finals.items() if end is not None}
        notes = [_missing_note(curve, limit_s, covering) for curve in curves if curve.method not in runs]
        notes += [_unfinished_note(run.curve) for run in runs.values() if run.curve.status != "done"]
        name = self._reference(runs)
        if name is None:
            among = ", ".join(self.candidates)
            return None, [*notes, f"seed {seed} is not scored: no reference among {among} can be scored"]
        scores = tuple(self._score_run(run, limit_s, runs[name]) for run in runs.values())
        final = runs[name].final
        return SeedScore(seed, limit_s, self.metric.share_of(final, self.targets[0]), name, scores, final), notes

    def _reference(self, runs: Mapping[str, _Run]) -> str | None:
        """Return the candidate with the best final value; of equals, the one that reached it first."""
        best = [
            (-run.level, arrival.seconds, order, name)
            for order, name in enumerate(self.candidates)
            if (run := runs.get(name)) is not None and (arrival := run.arrival(run.level)).reached
        ]
        return min(best)[-1] if best else None

    def _score_run(self, run: _Run, budget_s: float, reference: _Run) -> Score:
        reaches = {
            share: self._reach(run, self.metric.share_of(reference.final, share), reference) for share in self.targets
        }
        main = reaches[self.targets[0]]
        speedup, bound = run_speedup(main, self.rule)
        return Score(
            run.curve.method,
            run.curve.seed,
            main.arrival.seconds if main.arrival.reached else None,
            speedup,
            run.final,
            bound,
            self._cost(run.curve, budget_s),
            reaches,
            measure_fairness(run.curve.population, self.metric),
        )

    def _reach(self, run: _Run, target: float, reference: _Run) -> Reach:
        level = self.metric.sign * target
        arrival = run.arrival(level)
        touches = run.arrival(level, "value"), reference.arrival(level, "value")
        return Reach(
            target, arrival, touches[0], reference.arrival(level), touches[1], self._cost(run.curve, arrival.seconds)
        )

    def _cost(self, curve: RunCurve, until_s: float) -> Cost:
        return Cost(*(curve.spent(part, until_s, f"{self.stamp}_s") for part in COSTS))


def _rule_notes(rule: Rule, curves: Iterable[RunCurve]) -> list[str]:
    by_rounds = sorted({curve.method for curve in curves if curve.evals.height and not curve.has_grid})
    if rule == "paper" or not by_rounds:
        return []
    return [
        f"{', '.join(by_rounds)}: evaluated by rounds only, so each time on the grid of seconds has the latest "
        "evaluation before it"
    ]


def _missing_note(curve: RunCurve, budget_s: float, covering: Mapping[str, RunCurve]) -> str:
    covered = f"covers only {curve.last_s:.0f} s (status: {curve.status}) of"
    reason = f"has no evaluation with a value of {curve.metric.title} within" if curve.method in covering else covered
    return f"{curve.method}, seed {curve.seed} is not scored: it {reason} the budget of {budget_s:.0f} s"


def _unfinished_note(curve: RunCurve) -> str:
    return (
        f"{curve.method}, seed {curve.seed} is {curve.status}: it is scored up to its last second, {curve.last_s:.0f} s"
    )
