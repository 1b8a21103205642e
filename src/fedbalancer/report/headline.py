"""What a comparison found, in plain words and from the measured numbers only."""

from __future__ import annotations

from fedbalancer.report.scores import Comparison, MethodScore

OURS = "fedbalancer"


def headline(comparison: Comparison) -> str:
    """One or two sentences: who reached the target first and by what factor, and how FedBalancer fared."""
    ranked = [method for method in comparison.methods if method.reached]
    if not comparison.seeds or not ranked:
        return "Nothing can be scored yet: no run of a reference method has come to the end of its time budget."
    fastest = max(_mean(method) for method in ranked)
    winners = [method for method in ranked if _mean(method) == fastest]
    sentences = [_winner(comparison, winners, fastest)]
    names = [method.method for method in comparison.methods]
    if OURS in names and OURS not in [winner.method for winner in winners]:
        sentences.append(_ours(comparison, comparison[OURS]))
    caution = _caution(winners[0]) if fastest > 1 else ""
    return " ".join([*sentences, caution]).strip()


def _winner(comparison: Comparison, winners: list[MethodScore], factor: float) -> str:
    names, rival = _join([winner.method for winner in winners]), comparison.reference
    target = f"the target accuracy of {comparison.target:.1%}"
    if len(comparison.methods) == 1:
        return f"{names} was compared with nothing: {target} is its own."
    if factor <= 1:
        return f"No method reached {target} sooner than {rival}{_over_seeds(len(comparison.seeds))}."
    reached, runs = min(winner.reached for winner in winners), min(len(winner.scores) for winner in winners)
    times = f"{factor:.2f} times as fast as {rival}{_over_seeds(runs)}"
    some = "" if reached == runs else f", though only on {reached} of {runs} seeds"
    return f"{names} reached {target} first: {times}{some}."


def _ours(comparison: Comparison, ours: MethodScore) -> str:
    if not ours.scores:
        return f"{OURS} did not win: no run of it can be scored."
    if not ours.reached:
        return f"{OURS} did not win: it never reached the target."
    some = (
        ""
        if ours.reached == len(ours.scores)
        else f", reaching the target on {ours.reached} of {len(ours.scores)} seeds"
    )
    return f"{OURS} did not win: {_mean(ours):.2f} times the speed of {comparison.reference}{some}."


def _caution(winner: MethodScore) -> str:
    """What the number of seeds allows to say."""
    low, high = winner.speedup.low, winner.speedup.high
    if len(winner.scores) == 1:
        return "One seed says nothing about chance."
    if low is None or high is None:
        return "Where the target was not reached there is no time to compare, so no interval can be given."
    if low > 1:
        return ""
    interval = f"the 95% interval ({max(low, 0):.2f} to {high:.2f})"
    return f"With {len(winner.scores)} seeds {interval} includes 1: this can be chance."


def _over_seeds(count: int) -> str:
    return f" (mean of {count} seeds)" if count > 1 else " (one seed)"


def _mean(method: MethodScore) -> float:
    return method.speedup.mean or 0.0


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
