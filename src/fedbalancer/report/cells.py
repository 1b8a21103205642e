"""What stands in the tables of a comparison: the scores, other targets, what the phones paid, and the clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedbalancer.report.estimate import Estimate
from fedbalancer.report.ratio import Ratio
from fedbalancer.report.style import size_text
from fedbalancer.report.values import Comparison, Cost, MethodScore, TargetScore

HEADER = ("Method", "Speed-up", "Reached", "Median time", "Final accuracy")
FEWEST_SHOWN = 3
"""Seeds from which on an interval is shown: of two seeds it often goes from 0 to thousands, and reads as a finding."""


@dataclass(frozen=True)
class Cell:
    """What stands in a table, and whether no method has a higher value there."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table with its title and what a reader must know, a row per method."""

    title: str
    header: tuple[str, ...]
    rows: list[list[Cell]]
    about: str = ""


def table_rows(comparison: Comparison) -> list[list[Cell]]:
    """The cells of the main table, in the order of the comparison."""
    fastest = _highest(method.speedup.mean for method in comparison.methods if ranks(method))
    best = _highest(method.accuracy.mean for method in comparison.methods)
    main = comparison.targets[0]
    return [
        [
            Cell(method.method),
            Cell(speedup_text(method), ranks(method) and method.speedup.mean == fastest),
            Cell(f"{method.reached}/{len(method.scores)}"),
            Cell(median_text(method.at(main))),
            Cell(estimate_text(method.accuracy, 3), method.accuracy.mean is not None and method.accuracy.mean == best),
        ]
        for method in comparison.methods
    ]


def further_sheets(comparison: Comparison) -> list[Sheet]:
    """The tables beside the main one, as far as there is something to show."""
    if not comparison.seeds:
        return []
    sheets = [_targets(comparison), _costs(comparison), _clients(comparison)]
    return [sheet for sheet in sheets if any(cell.text != "–" for row in sheet.rows for cell in row[1:])]


def _targets(comparison: Comparison) -> Sheet:
    main, *others = comparison.targets
    header = [f"At {share:.0%}" for share in others] + [f"First touch of {main:.0%}", "Paired test"]
    rows = []
    for method in comparison.methods:
        found = [method.at(share) for share in others]
        cells = [f"{ratio_text(each.ratio)}, {each.reached}/{each.runs}" if each.runs else "–" for each in found]
        at_main = method.at(main)
        cells += [ratio_text(at_main.touch), "–" if at_main.ratio.p is None else f"p = {at_main.ratio.p:.2g}"]
        rows.append([Cell(method.method), *map(Cell, cells)])
    about = (
        f"Times as fast as {comparison.reference} to other shares of its final accuracy, and to the first evaluation "
        "that touches the target."
    )
    return Sheet("Other targets", ("Method", *header), rows, about)


def _costs(comparison: Comparison) -> Sheet:
    rows = []
    for method in comparison.methods:
        at = method.at(comparison.targets[0])
        least = "≥ " if at.reached < at.runs else ""
        rows.append([Cell(method.method), *map(Cell, _both(least, at.cost, method.cost))])
    header = ("Method", "Samples trained", "Device time", "Sent down", "Sent up")
    about = (
        "Until the target / within the budget, mean over seeds, failed clients and lost rounds included. "
        "≥: some runs never came to the target, and count as far as they ran."
    )
    return Sheet("What the phones paid", header, rows, about)


def _both(least: str, until: Cost, within: Cost) -> list[str]:
    pairs = (
        (count_text(until.sample_passes), count_text(within.sample_passes)),
        (hours_text(until.device_s), hours_text(within.device_s)),
        (size_text(until.down_bytes), size_text(within.down_bytes)),
        (size_text(until.up_bytes), size_text(within.up_bytes)),
    )
    return ["–" if {a, b} == {"–"} else f"{least}{a} / {b}" for a, b in pairs]


def _clients(comparison: Comparison) -> Sheet:
    found = {method.method: method.fairness for method in comparison.methods}
    lowest = _highest(fairness.worst_decile for fairness in found.values())
    rows = []
    for name, fairness in found.items():
        slow = fairness.by_device.get("slow", {})
        worst = fairness.worst_decile
        rows.append([
            Cell(name), Cell(_number(fairness.median)), Cell(_number(worst), worst is not None and worst == lowest),
            Cell(_number(fairness.jain)), Cell(_percent(fairness.never)), Cell(_number(fairness.gini, 2)),
            Cell(_slow(slow.get("clients"), slow.get("places"))), Cell(_number(slow.get("accuracy"))),
        ])  # fmt: skip
    header = (
        "Method", "Median", "Worst decile", "Jain's index", "Never chosen", "Gini", "Slow → places", "Slow median",
    )  # fmt: skip
    about = (
        "Accuracy of the model at the end of the budget on each client's own data: of the median client, of the worst "
        "decile, and how equal (Jain's index). Places in rounds until then: clients that had none, and how unequal "
        "(Gini). Slow phones: their share of the clients → of the places, and their median accuracy."
    )
    return Sheet("The clients", header, rows, about)


def ranks(method: MethodScore) -> bool:
    """Whether the speed-up can be the best: not if all that is known of it is that it is below something."""
    found = method.speedup
    return method.reached > 0 and found.mean is not None and not (isinstance(found, Ratio) and found.bound == "<")


def speedup_text(method: MethodScore) -> str:
    """The speed-up, or in words that the target was never reached. By the fair rule with its interval."""
    found = method.speedup
    if isinstance(found, Ratio):
        return f"never, {ratio_text(found)}" if method.scores and not method.reached else ratio_text(found)
    return "never" if method.scores and not method.reached else estimate_text(found, 2)


def ratio_text(ratio: Ratio) -> str:
    """A ratio and its interval, as far as they are known.

    >>> ratio_text(Ratio(2.0, 0.1, 1.5, 2.5)), ratio_text(Ratio(0.5, None, None, 0.6, "<")), ratio_text(Ratio(None))
    ('2.00× (1.50 to 2.50)', '< 0.50× (up to 0.60)', '–')
    >>> ratio_text(Ratio(2.0, 0.1, 0.01, 512.0, seeds=2))
    '2.00×'
    """
    if ratio.mean is None:
        return "–"
    text = f"{ratio.bound} {ratio.mean:.2f}×".strip()
    interval = interval_text(ratio) if shows_interval(ratio.seeds) else ""
    return f"{text} ({interval})" if interval else text


def shows_interval(seeds: int) -> bool:
    """Whether so many seeds are enough for an interval to be shown; 0 is a ratio that does not say how many it has."""
    return not 0 < seeds < FEWEST_SHOWN


def interval_text(ratio: Estimate) -> str:
    """The 95 % interval in words, as far as it is known."""
    low, high = ratio.low, ratio.high
    if low is not None and high is not None:
        return f"{low:.2f} to {high:.2f}"
    return f"from {low:.2f}" if low is not None else f"up to {high:.2f}" if high is not None else ""


def median_text(found: TargetScore) -> str:
    """The median time, or what it lies above."""
    if found.median_s is not None:
        return f"{found.median_s:,.0f} s"
    return "–" if found.above_s is None else f"> {found.above_s:,.0f} s"


def estimate_text(estimate: Estimate, digits: int) -> str:
    """Mean ± standard deviation, as far as they are defined."""
    if estimate.mean is None:
        return "–"
    return f"{estimate.mean:.{digits}f}" + ("" if estimate.std is None else f" ± {estimate.std:.{digits}f}")


def count_text(count: float | None) -> str:
    """A count for people.

    >>> count_text(950), count_text(1_234_567), count_text(None)
    ('950', '1.23 M', '–')
    """
    if count is None:
        return "–"
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.0f}"


def hours_text(time_s: float | None) -> str:
    """Device seconds for people.

    >>> hours_text(90.0), hours_text(36000.0), hours_text(None)
    ('90 s', '10 h', '–')
    """
    if time_s is None:
        return "–"
    return f"{time_s:.0f} s" if time_s < 3600 else f"{time_s / 3600:.3g} h"


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _slow(clients: float | None, places: float | None) -> str:
    return "–" if clients is None or places is None else f"{clients:.0%} → {places:.0%}"


def _highest(means: Iterable[float | None]) -> float | None:
    return max((mean for mean in means if mean is not None), default=None)
