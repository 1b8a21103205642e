"""Equal tuning: every method gets the same number of trials over its declared space, on the same tuning seeds.

FedAvg's variants come first. The target of a tuning seed is the highest accuracy that any of their trials holds at the
end of the budget. All methods are then tuned for the shortest time to this target, geometric mean over the seeds;
a trial that misses it counts as the budget, increased by the share that it missed. FedAvg's variants are judged by the
same value, from the same runs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.files import readable, write_json
from fedbalancer.experiments.benchmark.suite import FEDAVG, Cell, Suite
from fedbalancer.experiments.jobs import JobPool
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.experiments.sweep.objective import Reference, time_ratio, value_at_budget
from fedbalancer.experiments.sweep.plan import TIME, SweepPlan, run_folder
from fedbalancer.experiments.sweep.results import Trial, read_trials
from fedbalancer.experiments.sweep.search import Listen, Search, open_study
from fedbalancer.experiments.sweep.space import Space, parse_parameter
from fedbalancer.methods.names import canonical_name
from fedbalancer.methods.search_spaces import SearchSpace, space_of
from fedbalancer.reporting import RunCurve
from fedbalancer.reporting.results import load_run
from fedbalancer.store.contents import make_folder

TUNED = "tuned.json"


@dataclass(frozen=True)
class Tuned:
    """A method after its trials in one cell.

    Args:
        method: The method.
        chosen: Its best trial, as a method name.
        trials: One mapping per trial: number, method, state, value, and the values on the tuning seeds.
        targets: The target on every tuning seed.
    """

    method: str
    chosen: str
    trials: tuple[dict[str, object], ...]
    targets: dict[int, float]


def trial_methods(method: str, count: int, learning_rate: float, space: SearchSpace | None = None) -> tuple[str, ...]:
    """Return the trials of a method: its defaults, then points that fill its declared space.

    Args:
        method: The method.
        count: Number of trials.
        learning_rate: The client's learning rate of the task.
        space: Its search space. Default: the declared one.

    Returns:
        One method name per trial.

    >>> trial_methods("fedavg+1t", 3, 0.01)
    ('fedavg+1t', 'fedavg+1t[epochs=2,learning_rate=.01]', 'fedavg+1t[epochs=5,learning_rate=.02]')
    """
    texts = (space if space is not None else space_of(method)).texts
    rate, *own = [parse_parameter(*text.split("=", 1)) for text in texts]
    values = Space(canonical_name(method), (rate, *own))
    points = values.spread(count - 1)
    names = [
        values.name({**point, rate.key: float(f"{float(point[rate.key]) * learning_rate:.4g}")}) for point in points
    ]
    return (canonical_name(method), *names)


class Tuning:
    """The trials of one cell.

    Args:
        suite: The suite.
        cell: The cell.
        out: Folder of the cell.
        pool: The processes that run the trials.
        listen: Called for every event of a trial.
        stopped: Returns True if the trials should stop.
        spaces: Search spaces of methods that the table does not have.
    """

    def __init__(
        self,
        suite: Suite,
        cell: Cell,
        out: Path,
        pool: JobPool,
        listen: Listen,
        stopped: Callable[[], bool],
        spaces: Mapping[str, SearchSpace] = MappingProxyType({}),
    ) -> None:
        self.spaces = spaces
        self.suite, self.cell, self.out, self.pool = suite, cell, out, pool
        self.listen, self.stopped = listen, stopped
        self.plan = ComparisonPlan.make(cell.base(FEDAVG[0]), [FEDAVG[0]], suite.tuning_seeds, 1.0)
        self.learning_rate = float(resolve_spec(self.plan.base, self.plan.task)[0].learning_rate)  # type: ignore[arg-type]

    def tune(self, methods: Sequence[str], tuned: Mapping[str, Tuned]) -> Iterator[tuple[str, Tuned]]:
        """Tune FedAvg's variants, then the other methods. Yields each method when it is tuned; less if it was stopped.

        Args:
            methods: The methods.
            tuned: The methods that are tuned already. They are not yielded again, unless FedAvg needs new trials.
        """
        if all(is_tuned(self.suite, tuned, method) for method in FEDAVG):
            targets, finished = tuned[FEDAVG[0]].targets, tuned
        else:
            fedavg = {method: self._run(method, {}) for method in FEDAVG if not self.stopped()}
            if len(fedavg) < len(FEDAVG) or any(trials is None for trials in fedavg.values()):
                return
            targets, finished = {seed: max(self._finals(fedavg, seed)) for seed in self.plan.seeds}, {}
            for method, trials in fedavg.items():
                yield method, self._judge(method, trials or (), targets)
        for method in methods:
            if method not in FEDAVG and not is_tuned(self.suite, finished, method) and not self.stopped():
                trials = self._run(method, targets)
                if trials is not None:
                    yield method, self._judge(method, trials, targets)

    def _run(self, method: str, targets: dict[int, float]) -> tuple[Trial, ...] | None:
        """Run the trials of a method that are left; None if it was stopped before the last."""
        names = trial_methods(method, self.suite.trials, self.learning_rate, self.spaces.get(method))
        plan = SweepPlan(
            comparison=self.plan, space=Space(method, ()), objective=TIME if targets else "accuracy", sampler="list",
            trials=len(names), share=1.0, methods=names, targets=targets,
        )  # fmt: skip
        # Trials towards other targets or with other seeds are another study, which shares the finished runs.
        identity = json.dumps([names[:1], sorted(targets.items()), self.plan.seeds, self.suite.name])
        out = self.out / "tuning" / method / hashlib.sha256(identity.encode()).hexdigest()[:12]
        make_folder(out)
        study = open_study(plan, out)
        search = Search(plan, self.out, study, self.pool, self.listen, self.stopped)
        search.run()
        trials = read_trials(study)
        ended = [trial for trial in trials if trial.state in ("done", "given up", "failed")]
        return trials if len(ended) >= len(names) else None

    def _finals(self, trials: dict[str, tuple[Trial, ...] | None], seed: int) -> list[float]:
        """Return the accuracies that the trials hold at the end of the budget of a seed."""
        finals = [
            value_at_budget(self._curve(trial.method, seed), self.plan.budgets_s[seed])
            for each in trials.values()
            for trial in each or ()
            if trial.state == "done"
        ]
        known = [value for value in finals if value is not None]
        if not known:
            raise FedBalancerError(f"cell {self.cell.name}: no trial of FedAvg is done, so there is no target")
        return known

    def _judge(self, method: str, trials: Sequence[Trial], targets: dict[int, float]) -> Tuned:
        """Choose the best trial of a method; of equals the first, and the defaults if no trial is done."""
        rows = []
        for trial in trials:
            ratios = [] if trial.state != "done" else [
                time_ratio(self._curve(trial.method, seed), self.plan.budgets_s[seed], Reference(target, 1.0))
                / self.plan.budgets_s[seed]
                for seed, target in targets.items()
            ]  # fmt: skip
            value = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
            rows.append({"number": trial.number, "method": trial.method, "state": trial.state, "value": value,
                         "values": ratios, "why": trial.why})  # fmt: skip
        done = [row for row in rows if row["value"] is not None]
        best = min(done, key=lambda row: (row["value"], row["number"])) if done else {"method": method}
        return Tuned(method, str(best["method"]), tuple(rows), targets)

    def _curve(self, method: str, seed: int) -> RunCurve:
        return replace(load_run(run_folder(self.out, method, seed), method, seed).curve, metric=self.plan.metric.plain)


def is_tuned(suite: Suite, tuned: Mapping[str, Tuned], method: str) -> bool:
    """Return whether a method has all trials, on the suite's tuning seeds and towards the present targets.

    Args:
        suite: The suite.
        tuned: The tuned methods of a cell. FedAvg's variants set the targets.
        method: The method.
    """
    mine, reference = tuned.get(method), tuned.get(FEDAVG[0])
    if mine is None or reference is None or len(mine.trials) < suite.trials:
        return False
    return mine.targets == reference.targets and mine.targets.keys() == set(suite.tuning_seeds)


def write_tuned(file: Path, tuned: Mapping[str, Tuned]) -> None:
    """Write the tuned methods of a cell, besides those that the file has."""
    known = {**read_tuned(file), **tuned}
    write_json(file, readable({name: asdict(each) for name, each in known.items()}))


def read_tuned(file: Path) -> dict[str, Tuned]:
    """Read the tuned methods of a cell; none if there is no such file."""
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    return {
        name: Tuned(
            each["method"], each["chosen"], tuple(each["trials"]),
            {int(seed): float(value) for seed, value in each["targets"].items()},
        )
        for name, each in content.items()
    }  # fmt: skip
