"""What a comparison found: scores per run, per method and over all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedbalancer.errors import BadSetting, UnknownName
from fedbalancer.report.estimate import Estimate
from fedbalancer.report.fairness import Fairness, mean_fairness
from fedbalancer.report.ratio import Arrival, Ratio, median_s, one_ratio, paired_ratio
from fedbalancer.report.rule import Rule, Stamp
from fedbalancer.spelling import one_name
from fedbalancer.store.comparison import TARGETS
from fedbalancer.sums import total

if TYPE_CHECKING:
    import polars as pl

    from fedbalancer.report.notebook import Plot
    from fedbalancer.report.stored import RunCurve


@dataclass(frozen=True)
class Cost:
    """What the phones paid: sample passes, seconds that devices were busy, bytes down and up; None: not recorded."""

    sample_passes: float | None = None
    device_s: float | None = None
    down_bytes: float | None = None
    up_bytes: float | None = None


@dataclass(frozen=True)
class Reach:
    """One run and one target: when it was reached by the rule and when it was first touched, the same of the reference,
    and what it cost until then (or, if it was never reached, until the end of the run)."""

    target: float
    arrival: Arrival
    touch: Arrival
    reference: Arrival
    reference_touch: Arrival
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Score:
    """One method on one seed. `time_s` is that of the main target, None if it was never reached. `speedup` is then 0.0
    by the paper's rule; by the fair one it is what the run could at most have reached, and `bound` is "<". `cost` is
    what was spent within the budget."""

    method: str
    seed: int
    time_s: float | None
    speedup: float
    accuracy: float
    bound: str = ""
    cost: Cost = field(default_factory=Cost)
    reaches: Mapping[float, Reach] = field(default_factory=dict)
    fairness: Fairness | None = None

    @property
    def down_bytes(self) -> float | None:
        return self.cost.down_bytes

    @property
    def up_bytes(self) -> float | None:
        return self.cost.up_bytes


@dataclass(frozen=True)
class SeedScore:
    """What one seed was scored against, and the scores."""

    seed: int
    budget_s: float
    target: float
    reference: str
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class TargetScore:
    """One method and one target over seeds: the Kaplan-Meier median of its times (None with `above_s`, which it lies
    above, if half of the runs never came there), the paired ratio to the reference by the rule and by first touch, on
    how many of the runs it was reached, and the mean cost until then (at least that, if not all came there)."""

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
        """How many times as fast as the reference: by the fair rule the `Ratio` at the main target.

        By the paper's, the mean counts a seed on which the target was never reached as 0. That 0 stands for "not in the
        time given" and was not measured, so that with such a seed there is no interval, and without any other no
        deviation either."""
        if self.rule == "fair":
            return self.at(self.targets[0]).ratio
        found = Estimate.of([score.speedup for score in self.scores])
        if self.reached == len(self.scores):
            return found
        return replace(found, low=None, high=None, std=found.std if self.reached else None)

    def at(self, share: float) -> TargetScore:
        """The times to this share of the reference's final accuracy."""
        if share not in self.targets:
            known = ", ".join(f"{each:g}" for each in self.targets)
            raise BadSetting(f"target {share:g} was not scored; the shares are {known}")
        return self._at[share]

    @cached_property
    def _at(self) -> dict[float, TargetScore]:
        return {share: self._scored_at(share) for share in self.targets}

    def _scored_at(self, share: float) -> TargetScore:
        found = [score.reaches[share] for score in self.scores if share in score.reaches]
        return TargetScore(
            share,
            Estimate.of([reach.target for reach in found]).mean,
            *median_s([reach.arrival for reach in found]),
            paired_ratio([(reach.reference, reach.arrival) for reach in found]),
            paired_ratio([(reach.reference_touch, reach.touch) for reach in found]),
            sum(reach.arrival.reached for reach in found),
            len(found),
            mean_cost([reach.cost for reach in found]),
        )

    @property
    def accuracy(self) -> Estimate:
        return Estimate.of([score.accuracy for score in self.scores])

    @property
    def cost(self) -> Cost:
        """Mean over seeds of what was spent within the budget."""
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
        """On how many seeds the target was reached."""
        return sum(score.time_s is not None for score in self.scores)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The scores of all methods. `notes` say in words what could not be scored, and why. `targets` are shares of the
    reference's final accuracy, the main one first; `target` is that one as an accuracy. `runs` are those scored."""

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

    def __repr__(self) -> str:
        speedups = "".join(
            f", {method.method} {_short(method.speedup)}" for method in self.methods if method.speedup.mean
        )
        return f"Comparison({self.task or 'unnamed task'}, {len(self.seeds)} seeds{speedups})"

    def _repr_html_(self) -> str:
        from fedbalancer.report.notebook import comparison_html

        return comparison_html(self)

    def to_polars(self) -> pl.DataFrame:
        """A row per method: speed-up with its interval, median time, accuracy."""
        from fedbalancer.report.notebook import comparison_frame

        return comparison_frame(self)

    def to_pandas(self) -> Any:
        """The same for pandas."""
        from fedbalancer.report.notebook import to_pandas

        return to_pandas(self.to_polars())

    @property
    def curves(self) -> pl.DataFrame:
        """Every evaluation of every run, by method and seed."""
        from fedbalancer.report.notebook import curves_frame

        return curves_frame(self.runs)

    def plot(self, kind: str = "accuracy") -> Plot:
        """A picture of the accuracies over time, or of the speed-ups (`speedup`)."""
        from fedbalancer.report.notebook import plotted

        return plotted(self, kind)

    def __getitem__(self, method: str) -> MethodScore:
        names = [found.method for found in self.methods]
        name = method if method in names else one_name(method)
        for found in self.methods:
            if found.method == name:
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

    def ratio(self, method: str, to: str | Sequence[str], share: float | None = None) -> Ratio:
        """How many times as fast a method is as another or, of several others, as the one that on each seed ended with
        the best accuracy; over the seeds on which both were scored."""
        share = self.targets[0] if share is None else share
        method, others = self[method].method, [self[name].method for name in ([to] if isinstance(to, str) else to)]
        pairs = []
        for seed in self.seeds:
            by_name = {score.method: score for score in seed.scores}
            rivals = [by_name[name] for name in others if name in by_name]
            if method in by_name and rivals:
                rival = max(rivals, key=lambda score: score.accuracy)
                pairs.append((rival.reaches[share].arrival, by_name[method].reaches[share].arrival))
        return paired_ratio(pairs)

    def to_json(self) -> dict[str, object]:
        """The shape that `compare --json` and `summary.json` share."""
        from fedbalancer.report.summary import comparison_json

        return comparison_json(self)


def _short(speedup: Estimate) -> str:
    """A speed-up in a few characters, with its sign if it is only a bound.

    >>> _short(Ratio(0.5, bound="<")), _short(Ratio(2.0))
    ('< 0.50x', '2.00x')
    """
    return f"{getattr(speedup, 'bound', '')} {speedup.mean:.2f}x".strip()


def speedup_of(reach: Reach, rule: Rule) -> tuple[float, str]:
    """The speed-up of one run, and whether it is a bound; the paper's rule has a 0 for "never"."""
    if rule == "paper":
        value, bound = one_ratio(reach.reference, reach.arrival)
        return (0.0 if bound else value), ""
    return one_ratio(reach.reference, reach.arrival)


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Mean of each part, None where a run did not record it."""

    def mean(part: str) -> float | None:
        values = [getattr(cost, part) for cost in costs]
        return None if None in values or not values else total(values) / len(values)

    return Cost(mean("sample_passes"), mean("device_s"), mean("down_bytes"), mean("up_bytes"))
