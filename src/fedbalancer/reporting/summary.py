"""Summaries of a comparison or a single run: JSON values, a headline in words, and the table of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedbalancer.core.metrics import ACCURACY, ACCURACY_NAME, Metric
from fedbalancer.reporting.comparison import Comparison, MethodScore, Score, SeedScore, TargetScore
from fedbalancer.reporting.privacy import account_privacy
from fedbalancer.reporting.ratio import Estimate, Ratio
from fedbalancer.reporting.results import EVALS, Results, StoredRun
from fedbalancer.reporting.rule import stamp_evaluations
from fedbalancer.reporting.series import clock_name
from fedbalancer.reporting.style import time_text
from fedbalancer.reporting.tables import can_rank, escape_cell, shows_interval

OURS = "fedbalancer"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return all scores of a comparison as JSON values, as in `summary.json` and `compare --json`."""
    return {
        "metric": comparison.metric.to_json(),
        "target": comparison.target,
        "budget_s": comparison.budget_s,
        "rule": comparison.rule,
        "targets": list(comparison.targets),
        "methods": {method.method: _method_json(method, comparison.metric) for method in comparison.methods},
        "seeds": len(comparison.seeds),
        "per_seed": [_seed_json(seed, comparison.metric) for seed in comparison.seeds],
    }


def _method_json(method: MethodScore, metric: Metric) -> dict[str, Any]:
    means = {metric.name: method.final, "down_bytes": method.down_bytes, "up_bytes": method.up_bytes}
    return {
        "speedup": _speedup_json(method),
        **{name: _estimate_json(estimate) for name, estimate in means.items()},
        "targets": {f"{share:g}": _target_json(method.at(share)) for share in method.targets},
        "cost": asdict(method.cost),
        "clients": {name: value for name, value in asdict(method.fairness).items() if name != "places"},
    }


def _speedup_json(method: MethodScore) -> dict[str, Any]:
    """Return the speed-up; the key "bound" exists only if the mean is a bound."""
    speedup = method.speedup
    bound = {"bound": speedup.bound} if isinstance(speedup, Ratio) and speedup.bound else {}
    numbers = {"mean": speedup.mean, "std": speedup.std, "low": speedup.low, "high": speedup.high}
    return {**numbers, "reached": method.reached, **bound}


def _estimate_json(estimate: Estimate) -> dict[str, float | None]:
    return {"mean": estimate.mean, "std": estimate.std}


def _target_json(target: TargetScore) -> dict[str, Any]:
    return {
        "target": target.target,
        "median_s": target.median_s,
        "above_s": target.above_s,
        "ratio": asdict(target.ratio),
        "touch_ratio": asdict(target.touch),
        "reached": target.reached,
        "runs": target.runs,
        "cost": asdict(target.cost),
    }


def _seed_json(seed: SeedScore, metric: Metric) -> dict[str, Any]:
    return {
        "seed": seed.seed,
        "target": seed.target,
        "budget_s": seed.budget_s,
        "reference": seed.reference,
        "methods": {score.method: _score_json(score, metric) for score in seed.scores},
    }


def _score_json(score: Score, metric: Metric) -> dict[str, Any]:
    times = {
        f"{share:g}": {"seconds": reach.arrival.seconds, "reached": reach.arrival.reached,
                       "touch_s": reach.touch.seconds if reach.touch.reached else None}
        for share, reach in score.reaches.items()
    }  # fmt: skip
    fairness = {} if score.fairness is None else {"clients": asdict(score.fairness)}
    return {
        "time_s": score.time_s, "speedup": score.speedup, "bound": score.bound, metric.name: score.final,
        "times": times, "cost": asdict(score.cost), **fairness,
    }  # fmt: skip


def write_headline(comparison: Comparison) -> str:
    """Write a few sentences: the fastest method, its speed-up, whether seeds resolve it, FedBalancer's result."""
    ranked = [method for method in comparison.methods if can_rank(method)]
    if not comparison.seeds or not ranked:
        return "Nothing can be scored yet: no run of a reference method covers its time budget."
    fastest = max(_mean(method) for method in ranked)
    winners = [method for method in ranked if _mean(method) == fastest]
    sentences = [_winner_sentence(comparison, winners, fastest)]
    if fastest > 1:
        sentences.append(_chance_sentence(winners[0]))
    names = [method.method for method in comparison.methods]
    if OURS in names and OURS not in [winner.method for winner in winners]:
        sentences.append(_our_sentence(comparison, comparison[OURS]))
    return " ".join(filter(None, sentences))


def _winner_sentence(comparison: Comparison, winners: list[MethodScore], factor: float) -> str:
    names, rival = _join([winner.method for winner in winners]), comparison.reference
    main = comparison.targets[0]
    title = comparison.metric.title
    share = "" if main == 1 else f" ({main:.0%} of the final {title} of {rival})"
    target = f"the target {title} of {headline_text(comparison.target, comparison.metric)}{share}"
    if len(comparison.methods) == 1:
        return f"{names} is the only method: {target} is its own."
    if factor <= 1:
        return f"No method reached {target} sooner than {rival}{_seeds_text(len(comparison.seeds))}."
    reached, runs = min(winner.reached for winner in winners), min(len(winner.scores) for winner in winners)
    bound = "at least " if _bound(winners[0]) == ">" else ""
    times = f"{bound}{factor:.2f} times as fast as {rival}{_seeds_text(runs)}"
    some = "" if reached == runs else f", but only on {reached} of {runs} seeds"
    return f"{names} reached {target} first: {times}{some}."


def _our_sentence(comparison: Comparison, ours: MethodScore) -> str:
    if not ours.scores:
        return f"{OURS} was not the fastest: none of its runs can be scored."
    if not ours.reached:
        return f"{OURS} was not the fastest: it never reached the target."
    if ours.speedup.mean is None:
        return f"{OURS} was not the fastest: on some seeds neither it nor the reference reached the target."
    some = (
        ""
        if ours.reached == len(ours.scores)
        else f", reaching the target on {ours.reached} of {len(ours.scores)} seeds"
    )
    bound = {"<": "under ", ">": "over "}.get(_bound(ours), "")
    speed = f"{bound}{_mean(ours):.2f} times the speed of {comparison.reference}{some}."
    if _mean(ours) > 1 and _bound(ours) != "<":  # slower than the winner, but faster than the reference
        return f"{OURS} follows at {speed} {_chance_sentence(ours)}"
    return f"{OURS} was not the fastest: {speed}"


def _chance_sentence(winner: MethodScore) -> str:
    """Write whether the seeds resolve the difference."""
    speedup, count = winner.speedup, len(winner.scores)
    if count == 1:
        return "One seed cannot separate this from chance."
    if speedup.low is None or speedup.high is None:
        return "On some seeds the target was not reached, so there is no interval."
    if not shows_interval(count):
        return f"{count} seeds are too few for an interval: this can be chance."
    interval = f"the 95% interval ({max(speedup.low, 0):.2f} to {speedup.high:.2f})"
    if speedup.low > 1:
        return f"With {count} seeds {interval} excludes 1: the difference is resolved."
    return f"With {count} seeds {interval} includes 1: this can be chance."


def _seeds_text(count: int) -> str:
    return f" (mean of {count} seeds)" if count > 1 else " (one seed)"


def _mean(method: MethodScore) -> float:
    return method.speedup.mean or 0.0


def _bound(method: MethodScore) -> str:
    return method.speedup.bound if isinstance(method.speedup, Ratio) else ""


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def run_summary(results: Results) -> dict[str, Any]:
    """Return the values of `summary.json` of a run folder."""
    run = results.runs[0]
    metric = run.curve.metric
    evals = stamp_evaluations(run.curve.evals, "end", metric)
    last = evals.row(-1, named=True) if evals.height else {}
    losses = list(account_privacy(results))
    best: Any = evals["value"].max()
    return {
        "task": results.task,
        "variant": results.variant,
        "scale": results.scale,
        "method": run.curve.method,
        "seed": run.curve.seed,
        "status": run.curve.status,
        "why": run.why,
        "rounds": run.rounds.height,
        "clock_s": run.curve.last_s,
        "budget_s": results.budgets_s.get(run.curve.seed),
        "metric": metric.name,
        **{name: last.get(name) for name in dict.fromkeys((metric.name, *_metric_columns(run), "loss"))},
        f"best_{metric.name}": None if best is None else metric.sign * best,
        **({"epsilon": losses[0].epsilon, "privacy": losses[0].sentence} if losses else {}),
    }


def _metric_columns(run: StoredRun) -> list[str]:
    """Return the names of the run's other metrics; the accuracy only if it was computed."""
    evals = run.curve.evals
    names = [name for name in evals.columns if name not in EVALS]
    return [*(["accuracy"] if evals.height and evals["accuracy"].is_finite().any() else []), *names]


def headline_text(value: float | None, metric: Metric) -> str:
    """Format a value of a metric for a sentence: a share as a percentage, other values with three digits.

    Example:
        >>> headline_text(0.8144, ACCURACY), headline_text(1.23456, Metric("mae"))
        ('81.4%', '1.23')
    """
    if value is None:
        return "–"
    return f"{value:.1%}" if metric.name == ACCURACY_NAME or metric.is_share else f"{value:.3g}"


def write_run_headline(results: Results) -> str:
    """Write one sentence about the main metric of a run."""
    summary, metric = run_summary(results), results.metric
    name = f"{summary['method']} on {summary['task']}, seed {summary['seed']}"
    if summary[metric.name] is None:
        return f"{name}: no evaluation yet{_status_text(results.runs[0])}."
    after = f"after {summary['rounds']} rounds and {time_text(summary['clock_s'])} of {clock_name(results)}"
    verb = "is at" if summary["status"] == "running" else "ended at"
    what = "an accuracy" if metric == ACCURACY else f"a value of {metric.title}"
    value = headline_text(summary[metric.name], metric)
    return f"{name}, {verb} {what} of {value} {after}{_status_text(results.runs[0])}."


def run_markdown(results: Results) -> str:
    """Return the Markdown table of a run folder."""
    summary = run_summary(results)
    rows = [f"| {key} | {_cell(value)} |" for key, value in summary.items() if value not in (None, "")]
    return "\n".join(["| | |", "|:--|:--|", *rows]) + "\n"


def _status_text(run: StoredRun) -> str:
    return "" if run.curve.status == "done" else f" (status: {run.curve.status})"


def _cell(value: Any) -> str:
    return escape_cell(f"{value:.6g}" if isinstance(value, float) else str(value))
