"""`fedbalancer privacy`: the epsilon of noise on the metadata, and the noise for an epsilon."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

from fedbalancer.cli import options
from fedbalancer.cli.errors import Commands, with_clear_errors
from fedbalancer.core.errors import BadSetting

privacy = typer.Typer(
    cls=Commands, help="Privacy of what clients tell of their losses, as a number.", no_args_is_help=True
)

NOT_COVERED = (
    "the updates of the model",
    "how many samples a client has, which it says when it enrolls",
    "whether and when its replies arrive, which the server sees: a client that trains more takes longer",
    "its seconds for a batch, a forward pass, the training and all of its work, each in two digits",
    "metrics that you add to a reply, and evaluation on clients",
)
"""What a server still learns of a client whose summary is private."""


def plan(
    epsilon: Annotated[float | None, typer.Option(help="Largest epsilon allowed.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in which one client takes part.")] = None,
    noise: Annotated[float | None, typer.Option(help="Deviation of the noise over the sensitivity.")] = None,
    delta: Annotated[float, typer.Option(help="Chance with which the guarantee may fail.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="Losses are cut at this bound.")] = 5.0,
    as_json: options.Json = False,
) -> None:
    """Compute one of --epsilon, --rounds and --noise from the other two, for the metadata only, not for the model.

    Examples:

        fedbalancer privacy plan --epsilon 8 --rounds 140

        fedbalancer privacy plan --noise 7.2 --rounds 140

        fedbalancer privacy plan --epsilon 8 --noise 7.2
    """
    from fedbalancer.privacy.accounting import epsilon_of

    found = planned(epsilon, rounds, noise, delta)
    ways = _ways(found["noise_multiplier"], clip)
    replaced = epsilon_of(found["noise_multiplier"] / math.sqrt(2), found["rounds"], delta)
    if as_json:
        more = {"epsilon_replaced": replaced, "mechanisms": ways, "not_covered": NOT_COVERED}
        typer.echo(json.dumps({**found, **more}))
        return
    typer.echo(
        f"noise {found['noise_multiplier']:.4g} times the sensitivity keeps {found['rounds']} rounds of one client "
        f"within epsilon {found['epsilon']:.4g} at delta {delta:g} (metadata only)"
    )
    for way in ways:
        typer.echo(f"{way['mechanism']}, hides one {way['unit']}: {way['method']}")
    typer.echo(
        "A sample is hidden as one that is added or removed. For one replaced by another, epsilon of the histograms is "
        f"{replaced:.4g}."
    )
    typer.echo("Not covered:")
    for each in NOT_COVERED:
        typer.echo(f"- {each}")


def planned(epsilon: float | None, rounds: int | None, noise: float | None, delta: float) -> dict[str, Any]:
    """The three numbers, of which two are given."""
    from fedbalancer.privacy.accounting import UNBOUNDED, epsilon_of, most_releases, noise_for

    if noise is not None and not 0 < noise < math.inf:
        raise BadSetting(f"--noise {noise} must be a finite number over 0")
    if rounds is not None and not 1 <= rounds <= UNBOUNDED:
        raise BadSetting(f"--rounds {rounds} must be a whole number from 1 to {UNBOUNDED}")
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise BadSetting(f"--epsilon {epsilon} must be a finite number over 0")
    if epsilon is not None and rounds is not None and noise is None:
        noise = noise_for(epsilon, rounds, delta)
    elif epsilon is None and rounds is not None and noise is not None:
        epsilon = epsilon_of(noise, rounds, delta)
    elif epsilon is not None and rounds is None and noise is not None:
        rounds = most_releases(noise, epsilon, delta)
    else:
        raise BadSetting("give two of --epsilon, --rounds and --noise, as in: --epsilon 8 --rounds 140")
    return {"epsilon": epsilon, "delta": delta, "rounds": rounds, "noise_multiplier": noise}


def _ways(noise: float, clip: float) -> list[dict[str, Any]]:
    """The summaries with this noise, as methods ready to paste; rounded up, never down."""
    from fedbalancer.client.summary import LossStatistics
    from fedbalancer.client.summary.histogram import LEAST_DEVIATION
    from fedbalancer.client.summary.noise import MOST_NOISE

    try:
        statistics = LossStatistics(loss_clip=clip, utility_samples="all")
    except ValueError as error:
        raise BadSetting(f"--clip {clip}: {error}") from error
    enough, of_statistics = _rounded_up(noise), _rounded_up(noise * statistics.sensitivity)
    if of_statistics > MOST_NOISE:
        raise BadSetting(
            f"noise {of_statistics:g} would be needed, and {MOST_NOISE:g} is the most: take a larger --epsilon"
        )
    least = min(int((noise / LEAST_DEVIATION) ** 2), 10)
    histogram = f"noise_multiplier={enough},clip={clip:g}"
    tracked = f"threshold=TrackedThreshold,pace=ConstantPace,summary=fraction-tracker(noise_multiplier={enough})"
    gaussian = f"summary=gaussian(noise_factor={of_statistics},loss_clip={clip:g},utility_samples='all')"
    summed = f"fedbalancer[forward_pass=every,summary=secagg-histogram({histogram},least={least})]"
    ways = {
        "histogram": ("sample", f"fedbalancer[forward_pass=every,summary=histogram({histogram})]"),
        **({"secagg-histogram": ("sample", summed)} if least >= 2 else {}),
        "gaussian": ("sample", f"fedbalancer[forward_pass=every,{gaussian}]"),
        "fraction-tracker": ("client", f"fedbalancer-clients[{tracked}]"),
    }
    return [{"mechanism": name, "unit": unit, "method": method} for name, (unit, method) in ways.items()]


def _rounded_up(value: float) -> float:
    """Four digits of it.

    >>> _rounded_up(7.13841)
    7.139
    """
    digits = 3 - math.floor(math.log10(value))
    return float(round(math.ceil(value * 10**digits - 1e-9) / 10**digits, max(digits, 0)))


privacy.command("plan")(with_clear_errors(plan))


@privacy.callback()
def _about() -> None:
    """Privacy of what clients tell of their losses, as a number."""
