"""The scores of a comparison: per run, per method and overall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.metrics import ACCURACY, Metric
from fedbalancer.core.types.round import total
from fedbalancer.methods.names import canonical_name
from fedbalancer.reporting.clients import Fairness, mean_fairness
from fedbalancer.reporting.ratio import Arrival, Estimate, Ratio, median_s, one_ratio, paired_ratio
from fedbalancer.reporting.rule import Rule, Stamp
from fedbalancer.store.comparison import TARGETS

if TYPE_CHECKING:
    import polars as pl

    from fedbalancer.reporting.notebook import Plot
    from fedbalancer.reporting.results import RunCurve


@dataclass(frozen=True)
class Cost:
    """The cost on the devices: sample passes, busy device seconds, bytes down and up; None if not recorded."""

    sample_passes: float | None = None
    device_s: float | None = None
    down_bytes: float | None = None
    up_bytes: float | None = None


@dataclass(frozen=True)
class Reach:
    """When one run, and the reference of its seed, reached one target.

    Attributes:
        target: The target, a value of the metric.
        arrival: When the run reached it by the rule.
        touch: When a single evaluation of the run was first at the target.
        reference: `arrival` of the reference.
        reference_touch: `touch` of the reference.
        cost: Cost of the run until it reached the target, or of the whole run if it never did.
    """

    target: float
    arrival: Arrival
    touch: Arrival
    reference: Arrival
    reference_touch: Arrival
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Score:
    """The scores of one method on one seed.

    Attributes:
        method: Name of the method.
        seed: The seed.
        time_s: Time to the main target; None if it was never reached.
        speedup: Speed-up at the main target. If the target was never reached, this is 0.0 by the paper's rule; by the
            fair rule it is an upper bound, and `bound` is "<".
        final: The metric at the end of the budget.
        bound: "<" or ">" if the speed-up is a bound.
        cost: Cost within the budget.
        reaches: Times and costs by target.
        fairness: Statistics over clients; None if not recorded.
    """

    method: str
    seed: int
    time_s: float | None
    speedup: float
    final: float
    bound: str = ""
    cost: Cost = field(default_factory=Cost)
    reaches: Mapping[float, Reach] = field(default_factory=dict)
    fairness: Fairness | None = None

    @property
    def accuracy(self) -> float:
        """`final`, for comparisons by accuracy."""
        return self.final

    @property
    def down_bytes(self) -> float | None:
        return self.cost.down_bytes

    @property
    def up_bytes(self) -> float | None:
        return self.cost.up_bytes


@dataclass(frozen=True)
class SeedScore:
    """The budget, target and reference of one seed, its scores, and the final value of the reference."""

    seed: int
    budget_s: float
    target: float
    reference: str
    scores: tuple[Score, ...]
    final: float


@dataclass(frozen=True)
class TargetScore:
    """One method and one target over seeds.

    Attributes:
        share: The target as a share of the reference's final value.
        target: The mean target.
        median_s: Kaplan-Meier median of the times; None if fewer than half of the runs reach the target.
        above_s: A time that the median exceeds, if `median_s` is None.
        ratio: Speed-up over the reference by the rule.
        touch: Speed-up over the reference by the first single evaluation at the target.
        reached: Number of runs that reach the target.
        runs: Number of runs.
        cost: Mean cost until the target; a lower bound if some runs never reach it.
    """

    share: float
    target: float | None
    median_s: float | None
    above_s: float | None
    ratio: Ratio
    touch: Ratio
    reached: int
    runs: int
    cost: Cost


@dataclass(frozen=True)
class MethodScore:
    """One method over the seeds on which it can be scored."""

    method: str
    scores: tuple[Score, ...]
    rule: Rule = "fair"
    targets: tuple[float, ...] = TARGETS

    @cached_property
    def speedup(self) -> Estimate:
        """The speed-up over the reference; by the fair rule, the `Ratio` at the main target.

        By the paper's rule, the mean counts a seed on which the target was never reached as 0. This 0 is not measured,
        so there is no interval with such a seed, and no standard deviation if no seed reached the target.
        """
        if self.rule == "fair":
            return self.at(self.targets[0]).ratio
        estimate = Estimate.of([score.speedup for score in self.scores])
        if self.reached == len(self.scores):
            return estimate
        return replace(estimate, low=None, high=None, std=estimate.std if self.reached else None)

    def at(self, share: float) -> TargetScore:
        """Return the scores at one target.

        Args:
            share: The target as a share of the reference's final value; one of `targets`.

        Raises:
            BadSetting: If the comparison was not scored at this target.
        """
        if share not in self.targets:
            known = ", ".join(f"{target:g}" for target in self.targets)
            raise BadSetting(f"target {share:g} was not scored; the targets are {known}")
        return self._by_target[share]

    @cached_property
    def _by_target(self) -> dict[float, TargetScore]:
        return {share: self._score_target(share) for share in self.targets}

    def _score_target(self, share: float) -> TargetScore:
        reaches = [score.reaches[share] for score in self.scores if share in score.reaches]
        return TargetScore(
            share,
            Estimate.of([reach.target for reach in reaches]).mean,
            *median_s([reach.arrival for reach in reaches]),
            paired_ratio([(reach.reference, reach.arrival) for reach in reaches]),
            paired_ratio([(reach.reference_touch, reach.touch) for reach in reaches]),
            sum(reach.arrival.reached for reach in reaches),
            len(reaches),
            mean_cost([reach.cost for reach in reaches]),
        )

    @property
    def final(self) -> Estimate:
        """The metric at the end of the budget."""
        return Estimate.of([score.final for score in self.scores])

    @property
    def accuracy(self) -> Estimate:
        """`final`, for comparisons by accuracy."""
        return self.final

    @property
    def cost(self) -> Cost:
        """Mean cost over seeds within the budget."""
        return mean_cost([score.cost for score in self.scores])

    @property
    def down_bytes(self) -> Estimate:
        return Estimate.of([score.down_bytes for score in self.scores if score.down_bytes is not None])

    @property
    def up_bytes(self) -> Estimate:
        return Estimate.of([score.up_bytes for score in self.scores if score.up_bytes is not None])

    @property
    def fairness(self) -> Fairness:
        """Means over seeds, also by device class."""
        return mean_fairness([score.fairness for score in self.scores if score.fairness is not None])

    @property
    def reached(self) -> int:
        """Number of seeds on which the main target was reached."""
        return sum(score.time_s is not None for score in self.scores)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The scores of all methods of a comparison, as returned by `fedbalancer.compare`.

    Attributes:
        methods: Scores by method, in the order of the comparison; `comparison["fedbalancer"]` gives one of them.
        seeds: Scores by seed.
        fedavg_reference: Whether the reference is the best FedAvg variant. Otherwise it is the first method.
        stamp: Whether evaluations count at the end or the start of their round (paper's rule).
        notes: What could not be scored, and why.
        task: Name of the task.
        variant: Variant of the task.
        rounds: Number of rounds that the budget is based on.
        rule: The scoring rule, "fair" or "paper".
        targets: Shares of the reference's final value, the main target first.
        runs: The runs that were scored.
        metric: The metric of targets and scores, usually the accuracy.

    Example:
        >>> import fedbalancer as fb
        >>> result = fb.compare("synthetic", methods=["fedavg+1t", "fedbalancer"], seeds=1)  # doctest: +SKIP
        >>> result["fedbalancer"].speedup.mean  # doctest: +SKIP
        1.4
    """

    methods: tuple[MethodScore, ...]
    seeds: tuple[SeedScore, ...]
    fedavg_reference: bool
    stamp: Stamp = "end"
    notes: tuple[str, ...] = ()
    task: str = ""
    variant: str = ""
    rounds: int | None = None
    rule: Rule = "fair"
    targets: tuple[float, ...] = TARGETS
    runs: tuple[RunCurve, ...] = field(default=(), compare=False)
    metric: Metric = ACCURACY

    def __repr__(self) -> str:
        speedups = "".join(
            f", {method.method} {_short_text(method.speedup)}" for method in self.methods if method.speedup.mean
        )
        return f"Comparison({self.task or 'unnamed task'}, {len(self.seeds)} seeds{speedups})"

    def _repr_html_(self) -> str:
        from fedbalancer.reporting.notebook import comparison_html

        return comparison_html(self)

    def to_polars(self) -> pl.DataFrame:
        """Return a frame with a row per method: speed-up with its interval, median time, final metric."""
        from fedbalancer.reporting.notebook import comparison_frame

        return comparison_frame(self)

    def to_pandas(self) -> Any:
        """Return the frame of `to_polars` as a pandas frame.

        Raises:
            MissingData: If pandas is not installed.
        """
        from fedbalancer.reporting.notebook import to_pandas

        return to_pandas(self.to_polars())

    @property
    def curves(self) -> pl.DataFrame:
        """Every evaluation of every run, by method and seed."""
        from fedbalancer.reporting.notebook import curves_frame

        return curves_frame(self.runs)

    def plot(self, kind: str = "accuracy") -> Plot:
        """Plot the comparison; a notebook shows the result.

        Args:
            kind: "accuracy" for the metric over time, or "speedup".

        Raises:
            UnknownName: If there is no such kind.
            BadSetting: If the comparison holds scores without their runs.
        """
        from fedbalancer.reporting.notebook import plot_comparison

        return plot_comparison(self, kind)

    def __getitem__(self, method: str) -> MethodScore:
        by_name = {score.method: score for score in self.methods}
        name = method if method in by_name else canonical_name(method)
        if name not in by_name:
            raise UnknownName("method", method, list(by_name))
        return by_name[name]

    @property
    def target(self) -> float | None:
        """Main target, a value of the metric, mean over the scored seeds."""
        return Estimate.of([seed.target for seed in self.seeds]).mean

    @property
    def budget_s(self) -> float | None:
        """Time budget, mean over the scored seeds."""
        return Estimate.of([seed.budget_s for seed in self.seeds]).mean

    @property
    def reference(self) -> str:
        """The reference of the speed-ups, as a phrase."""
        return "the best FedAvg variant" if self.fedavg_reference else f"the reference {self.methods[0].method}"

    def ratio(self, method: str, to: str | Sequence[str], share: float | None = None) -> Ratio:
        """Compute how many times as fast as another method a method is, over the seeds on which both were scored.

        Args:
            method: Name of the method.
            to: Name of the other method. Of several names, the method with the best final value on each seed.
            share: The target as a share of the reference's final value. Default: the main target.

        Raises:
            UnknownName: If a method is not part of the comparison.
        """
        share = self.targets[0] if share is None else share
        method, others = self[method].method, [self[name].method for name in ([to] if isinstance(to, str) else to)]
        pairs = []
        for seed in self.seeds:
            by_name = {score.method: score for score in seed.scores}
            rivals = [by_name[name] for name in others if name in by_name]
            if method in by_name and rivals:
                rival = max(rivals, key=lambda score: self.metric.sign * score.final)
                pairs.append((rival.reaches[share].arrival, by_name[method].reaches[share].arrival))
        return paired_ratio(pairs)

    def to_json(self) -> dict[str, object]:
        """Return the scores as JSON values, as in `summary.json` and `compare --json`."""
        from fedbalancer.reporting.summary import comparison_json

        return comparison_json(self)


def _short_text(speedup: Estimate) -> str:
    """Format a speed-up, with its sign if it is only a bound.

    Example:
        >>> _short_text(Ratio(0.5, bound="<")), _short_text(Ratio(2.0))
        ('< 0.50x', '2.00x')
    """
    return f"{getattr(speedup, 'bound', '')} {speedup.mean:.2f}x".strip()


def run_speedup(reach: Reach, rule: Rule) -> tuple[float, str]:
    """Return the speed-up of one run and its bound; by the paper's rule, 0 if the target was never reached."""
    value, bound = one_ratio(reach.reference, reach.arrival)
    if rule == "paper":
        return (0.0 if bound else value), ""
    return value, bound


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Average each part of the cost; None where a run did not record it."""

    def mean(part: str) -> float | None:
        values = [getattr(cost, part) for cost in costs]
        return None if None in values or not values else total(values) / len(values)

    return Cost(mean("sample_passes"), mean("device_s"), mean("down_bytes"), mean("up_bytes"))
