"""`fedbalancer privacy`: plan the noise of private metadata, and audit printed epsilons."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from fedbalancer.cli import options
from fedbalancer.cli.errors import Commands, with_clear_errors
from fedbalancer.core.errors import BadSetting

privacy = typer.Typer(
    cls=Commands,
    help="Differential privacy: noise for an epsilon, and an audit of printed epsilons.",
    no_args_is_help=True,
)

NOT_COVERED = (
    "the model updates",
    "the number of samples of a client, which it reports when it joins",
    "whether and when a client's replies arrive: a client that trains more takes longer",
    "a client's seconds per batch, forward pass, training and round, each with two digits",
    "metrics that you add to a reply, and evaluation on clients",
)
"""What a server learns about a client besides its private summary."""


def plan(
    epsilon: Annotated[float | None, typer.Option(help="Largest allowed epsilon.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds in which one client participates.")] = None,
    noise: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise, divided by the sensitivity.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Probability with which the guarantee may fail.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="Upper bound at which losses are clipped.")] = 5.0,
    as_json: options.Json = False,
) -> None:
    """Compute one of --epsilon, --rounds and --noise from the other two, for the metadata only, not for the model.

    Examples:

        fedbalancer privacy plan --epsilon 8 --rounds 140

        fedbalancer privacy plan --noise 7.2 --rounds 140

        fedbalancer privacy plan --epsilon 8 --noise 7.2
    """
    from fedbalancer.privacy.accounting import epsilon_of

    result = compute_plan(epsilon, rounds, noise, delta)
    mechanisms = _mechanisms(result["noise_multiplier"], clip)
    replaced = epsilon_of(result["noise_multiplier"] / math.sqrt(2), result["rounds"], delta)
    if as_json:
        more = {"epsilon_replaced": replaced, "mechanisms": mechanisms, "not_covered": NOT_COVERED}
        typer.echo(json.dumps({**result, **more}))
        return
    typer.echo(
        f"noise of {result['noise_multiplier']:.4g} times the sensitivity: epsilon {result['epsilon']:.4g} at delta "
        f"{delta:g} for a client in {result['rounds']} rounds (metadata only)"
    )
    for each in mechanisms:
        typer.echo(f"{each['mechanism']}, protects one {each['unit']}: {each['method']}")
    typer.echo(
        "This protects a sample that is added or removed. For a sample that is replaced by another, the epsilon of the "
        f"histograms is {replaced:.4g}."
    )
    typer.echo("Not covered:")
    for item in NOT_COVERED:
        typer.echo(f"- {item}")


def compute_plan(epsilon: float | None, rounds: int | None, noise: float | None, delta: float) -> dict[str, Any]:
    """Compute the missing one of epsilon, rounds and noise.

    Args:
        epsilon: Largest allowed epsilon.
        rounds: Number of rounds in which one client participates.
        noise: Standard deviation of the noise, divided by the sensitivity.
        delta: Probability with which the guarantee may fail.

    Raises:
        BadSetting: If not exactly two are set, or one is invalid.
    """
    from fedbalancer.privacy.accounting import UNBOUNDED, epsilon_of, most_releases, noise_for

    if noise is not None and not 0 < noise < math.inf:
        raise BadSetting(f"--noise {noise} must be a finite number > 0")
    if rounds is not None and not 1 <= rounds <= UNBOUNDED:
        raise BadSetting(f"--rounds {rounds} must be an integer from 1 to {UNBOUNDED}")
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise BadSetting(f"--epsilon {epsilon} must be a finite number > 0")
    if epsilon is not None and rounds is not None and noise is None:
        noise = noise_for(epsilon, rounds, delta)
    elif epsilon is None and rounds is not None and noise is not None:
        epsilon = epsilon_of(noise, rounds, delta)
    elif epsilon is not None and rounds is None and noise is not None:
        rounds = most_releases(noise, epsilon, delta)
    else:
        raise BadSetting("set two of --epsilon, --rounds and --noise, for example: --epsilon 8 --rounds 140")
    return {"epsilon": epsilon, "delta": delta, "rounds": rounds, "noise_multiplier": noise}


def _mechanisms(noise: float, clip: float) -> list[dict[str, Any]]:
    """Return method names whose summaries have this noise, rounded up."""
    from fedbalancer.client.summary import LossStatistics
    from fedbalancer.client.summary.histogram import LEAST_DEVIATION
    from fedbalancer.client.summary.noise import MOST_NOISE

    try:
        statistics = LossStatistics(loss_clip=clip, utility_samples="all")
    except BadSetting as error:
        raise BadSetting(f"--clip {clip}: {error}") from error
    multiplier, deviation = _round_up(noise), _round_up(noise * statistics.sensitivity)
    if deviation > MOST_NOISE:
        raise BadSetting(
            f"this needs noise {deviation:g}, but at most {MOST_NOISE:g} is allowed; use a larger --epsilon"
        )
    least = min(int((noise / LEAST_DEVIATION) ** 2), 10)
    histogram = f"noise_multiplier={multiplier},clip={clip:g}"
    tracked = f"threshold=TrackedThreshold,pace=ConstantPace,summary=fraction-tracker(noise_multiplier={multiplier})"
    gaussian = f"summary=gaussian(noise_factor={deviation},loss_clip={clip:g},utility_samples='all')"
    summed = f"fedbalancer[forward_pass=every,summary=secagg-histogram({histogram},least={least})]"
    methods = {
        "histogram": ("sample", f"fedbalancer[forward_pass=every,summary=histogram({histogram})]"),
        **({"secagg-histogram": ("sample", summed)} if least >= 2 else {}),
        "gaussian": ("sample", f"fedbalancer[forward_pass=every,{gaussian}]"),
        "fraction-tracker": ("client", f"fedbalancer-clients[{tracked}]"),
    }
    return [{"mechanism": name, "unit": unit, "method": method} for name, (unit, method) in methods.items()]


def _round_up(value: float) -> float:
    """Round up to four digits.

    >>> _round_up(7.13841)
    7.139
    """
    digits = 3 - math.floor(math.log10(value))
    return float(round(math.ceil(value * 10**digits - 1e-9) / 10**digits, max(digits, 0)))


def audit(
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            help="Mechanism to audit; repeatable: histogram, secagg-histogram, gaussian, fraction-tracker, silent or "
            "private-mean. Default: all."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method to audit in all situations; repeatable. Default: 35 methods, two of them in all situations."
        ),
    ] = None,
    plays: Annotated[
        int | None,
        typer.Option(
            min=10,
            help="Plays of each of two neighbouring data sets. Default: 1,200 for the first figures of a mechanism, "
            "150 for others.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Play neighbouring data sets, and compare what they prove with the epsilon that a run prints.

    Every play runs through the server, the simulated engine and the client's round, or the round of a Flower client.
    Shown is a lower bound on epsilon that holds with a probability of 0.99998 (Clopper and Pearson). The command ends
    with exit code 1 if a printed epsilon is contradicted. By default it takes about five minutes.

    Examples:

        fedbalancer privacy audit

        fedbalancer privacy audit --mechanism histogram --method fedbalancer --plays 400

        fedbalancer privacy audit --mechanism private-mean --json
    """
    from fedbalancer.experiments.privacy_audit import AuditRow, audit_figures, to_table

    def note(row: AuditRow) -> None:
        if not as_json:
            typer.echo(
                f"{'holds' if row.holds else 'CONTRADICTED'}: {row.mechanism} with {row.method}, {row.situation}: "
                f"{row.claim} of one {row.unit}, {row.releases} x {row.plays} releases, delta {row.delta:g}: "
                f"claimed <= {row.claimed:.3g}, shown >= {row.shown:.3g}"
            )

    rows = audit_figures(mechanism or (), method or (), plays, note)
    if not rows:
        raise BadSetting("no printed epsilon is finite for these mechanisms and methods, so there is nothing to audit")
    wrong = [row for row in rows if not row.holds]
    if as_json:
        typer.echo(json.dumps([{**asdict(row), "holds": row.holds} for row in rows]))
    else:
        typer.echo(to_table(rows))
        typer.echo(f"{len(rows)} figures audited, {len(wrong)} contradicted")
    if wrong:
        raise typer.Exit(1)


privacy.command("plan")(with_clear_errors(plan))
privacy.command("audit")(with_clear_errors(audit))


@privacy.callback()
def _about() -> None:
    """Differential privacy: noise for an epsilon, and an audit of printed epsilons."""
