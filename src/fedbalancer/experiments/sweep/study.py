"""Optuna's side of a sweep: where it keeps its trials, what it tries next, and when it gives a trial up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedbalancer.core.errors import MissingData, RunFolderError
from fedbalancer.experiments.sweep.plan import SweepPlan

if TYPE_CHECKING:
    import optuna

STORAGE = "study.db"
NAME = "fedbalancer"
WARM_UP = 5
"""Trials, and twentieths of the budget, that are left alone before any is given up."""


def with_optuna() -> Any:
    """Optuna, or where to get it."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise MissingData("a sweep needs optuna; type: pip install 'fedbalancer[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(plan: SweepPlan, out: Path, *, prune: bool = True) -> optuna.Study:
    """The study in a sweep's folder, with what an earlier command left unfinished put first in the queue. Whoever calls
    holds the folder's lock, so that a trial which is running there is one whose process is gone."""
    package = with_optuna()
    try:
        study = package.create_study(
            storage=f"sqlite:///{(out / STORAGE).absolute()}",
            study_name=NAME,
            direction="minimize" if plan.minimised else "maximize",
            sampler=_sampler(plan, package),
            pruner=package.pruners.MedianPruner(WARM_UP, WARM_UP) if prune else package.pruners.NopPruner(),
            load_if_exists=True,
        )
    except Exception as error:  # of the database, each of its own kind
        raise RunFolderError(f"{out / STORAGE} is no storage of a sweep: {' '.join(str(error).split())}") from error
    _take_up(study, package)
    study.sampler = _sampler(plan, package, len(study.trials))  # else every command would draw the same numbers again
    if plan.sampler == "grid":
        _queue_grid(study, plan)
    return cast("optuna.Study", study)


def finished(study: optuna.Study) -> int:
    """How many trials have come to an end of their own."""
    optuna = with_optuna()
    ends = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return len(study.get_trials(deepcopy=False, states=ends)) + len(_diverged(study, optuna))


def _sampler(plan: SweepPlan, optuna: Any, seed: int = 0) -> Any:
    if plan.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def _take_up(study: optuna.Study, optuna: Any) -> None:
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params)


def _queue_grid(study: optuna.Study, plan: SweepPlan) -> None:
    """Every point of the grid that is not there yet, or as many as trials were asked for: the same ones every time."""
    points = plan.space.grid()
    random.Random(0).shuffle(points)
    known = [_asked(trial) for trial in study.get_trials(deepcopy=False)]
    for point in points[: plan.trials]:
        if point not in known:
            study.enqueue_trial(point)


def _asked(trial: Any) -> Any:
    return trial.params or trial.system_attrs.get("fixed_params")


def _diverged(study: optuna.Study, optuna: Any) -> list[Any]:
    failed = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.FAIL,))
    return [trial for trial in failed if "why" in trial.user_attrs]
