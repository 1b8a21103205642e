"""What a comparison found, in plain words and from the measured numbers only."""

from __future__ import annotations

from fedbalancer.report.cells import ranks, shows_interval
from fedbalancer.report.ratio import Ratio
from fedbalancer.report.values import Comparison, MethodScore

OURS = "fedbalancer"


def headline(comparison: Comparison) -> str:
    """A few sentences: who reached the target first, by what factor and whether the seeds resolve it, and how
    FedBalancer fared."""
    ranked = [method for method in comparison.methods if ranks(method)]
    if not comparison.seeds or not ranked:
        return "Nothing can be scored yet: no run of a reference method has come to the end of its time budget."
    fastest = max(_mean(method) for method in ranked)
    winners = [method for method in ranked if _mean(method) == fastest]
    sentences = [_winner(comparison, winners, fastest)]
    if fastest > 1:
        sentences.append(_chance(winners[0]))
    names = [method.method for method in comparison.methods]
    if OURS in names and OURS not in [winner.method for winner in winners]:
        sentences.append(_ours(comparison, comparison[OURS]))
    return " ".join(filter(None, sentences))


def _winner(comparison: Comparison, winners: list[MethodScore], factor: float) -> str:
    names, rival = _join([winner.method for winner in winners]), comparison.reference
    held = "held" if comparison.rule == "fair" else "reached"
    main = comparison.targets[0]
    share = "" if main == 1 else f" ({main:.0%} of what {rival} ends with)"
    target = f"the target accuracy of {comparison.target:.1%}{share}"
    if len(comparison.methods) == 1:
        return f"{names} was compared with nothing: {target} is its own."
    if factor <= 1:
        return f"No method {held} {target} sooner than {rival}{_over_seeds(len(comparison.seeds))}."
    reached, runs = min(winner.reached for winner in winners), min(len(winner.scores) for winner in winners)
    bound = "at least " if _bound(winners[0]) == ">" else ""
    times = f"{bound}{factor:.2f} times as fast as {rival}{_over_seeds(runs)}"
    some = "" if reached == runs else f", though only on {reached} of {runs} seeds"
    return f"{names} {held} {target} first: {times}{some}."


def _ours(comparison: Comparison, ours: MethodScore) -> str:
    if not ours.scores:
        return f"{OURS} did not win: no run of it can be scored."
    if not ours.reached:
        return f"{OURS} did not win: it never reached the target."
    if ours.speedup.mean is None:
        return f"{OURS} did not win: where it and its rivals did not arrive, there is nothing to compare."
    some = (
        ""
        if ours.reached == len(ours.scores)
        else f", reaching the target on {ours.reached} of {len(ours.scores)} seeds"
    )
    bound = {"<": "under ", ">": "over "}.get(_bound(ours), "")
    speed = f"{bound}{_mean(ours):.2f} times the speed of {comparison.reference}{some}."
    if _mean(ours) > 1 and _bound(ours) != "<":  # behind the winner, and faster than the reference all the same
        return f"{OURS} comes after that, at {speed} {_chance(ours)}"
    return f"{OURS} did not win: {speed}"


def _chance(winner: MethodScore) -> str:
    """What the number of seeds allows to say."""
    found, count = winner.speedup, len(winner.scores)
    if count == 1:
        return "One seed says nothing about chance."
    if found.low is None or found.high is None:
        return "Where the target was not reached there is no time to compare, so no interval can be given."
    if not shows_interval(count):
        return f"With {count} seeds there is no interval to speak of: this can be chance."
    interval = f"the 95% interval ({max(found.low, 0):.2f} to {found.high:.2f})"
    if found.low > 1:
        return f"With {count} seeds {interval} excludes 1: the difference is resolved."
    return f"With {count} seeds {interval} includes 1: this can be chance."


def _over_seeds(count: int) -> str:
    return f" (mean of {count} seeds)" if count > 1 else " (one seed)"


def _mean(method: MethodScore) -> float:
    return method.speedup.mean or 0.0


def _bound(method: MethodScore) -> str:
    return method.speedup.bound if isinstance(method.speedup, Ratio) else ""


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
