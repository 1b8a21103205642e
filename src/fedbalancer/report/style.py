"""How a method looks, the same in every figure and on the page; and in which unit a time is shown.

The colours are those of Okabe and Ito, which people with any common colour blindness can tell apart; the two that
vanish on a light or a dark page (yellow, black) are left out for a grey. Methods that share a colour differ in line,
and a method whose values often equal those of an earlier one has gaps in its line through which that one shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

BLUE, SKY, GREEN, PINK, ORANGE, RED, GREY = (
    "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#D55E00", "#7F7F7F",
)  # fmt: skip
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
"""Line styles by plotly's name, with matplotlib's."""


@dataclass(frozen=True)
class Look:
    """Colour and line of one method."""

    colour: str
    dash: str
    width: float = 2.0


KNOWN = {
    "fedavg+1t": Look(BLUE, "solid"),
    "fedavg+2t": Look(BLUE, "dashdot"),
    "fedavg+spc": Look(SKY, "solid"),
    "fedavg+wfa": Look(SKY, "dot"),
    "prox+1t": Look(GREEN, "dash"),
    "prox+2t": Look(GREEN, "dot"),
    "sampleselection": Look(PINK, "dashdot"),
    "oort": Look(ORANGE, "solid"),
    "oortbalancer": Look(ORANGE, "dash"),
    "fedbalancer": Look(RED, "solid", 3.2),
}
OUTCOMES = {
    "completed": ("completed", GREEN),
    "download": ("too late in download", "#F2C14E"),
    "forward": ("too late in forward pass", "#E69F00"),
    "train": ("too late in training", "#D55E00"),
    "upload": ("too late in upload", "#CC79A7"),
    "late": ("after the quorum", SKY),
    "unavailable": ("unavailable", GREY),
    "error": ("its app failed", "#8C6BB1"),
    "invalid": ("reply refused", "#A0522D"),
}
"""How a client's round can end: what it is called and its colour."""


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """One look per method: the methods of the paper always have theirs, others get one that nobody here has."""
    chosen = {method: KNOWN[method] for method in methods if method in KNOWN}
    free = [
        Look(colour, dash) for dash, colour in product(DASHES, (GREY, PINK, ORANGE, GREEN, SKY, BLUE, RED))
    ]  # fmt: skip
    taken = {(look.colour, look.dash) for look in chosen.values()}
    free = [look for look in free if (look.colour, look.dash) not in taken]
    others = [method for method in methods if method not in chosen]
    chosen.update({method: free[number % len(free)] for number, method in enumerate(others)})
    return {method: chosen[method] for method in methods}


def time_unit(longest_s: float) -> tuple[float, str]:
    """Seconds per unit, and the unit's name, for an axis that goes up to `longest_s`.

    >>> time_unit(90.0), time_unit(4_000.0), time_unit(50_000.0)
    ((1.0, 's'), (60.0, 'min'), (3600.0, 'h'))
    """
    if longest_s < 600:
        return 1.0, "s"
    return (60.0, "min") if longest_s < 4 * 3600 else (3600.0, "h")


def size_text(count: float | None) -> str:
    """Bytes for people.

    >>> size_text(999), size_text(61_000_000), size_text(None)
    ('999 B', '61.0 MB', '–')
    """
    if count is None:
        return "–"
    units = ("B", "kB", "MB", "GB", "TB")
    value, unit = float(count), 0
    while value >= 1000 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {units[unit]}" if unit else f"{value:.0f} B"


def accuracy_text(value: float | None) -> str:
    """Three digits, or a dash where nothing was measured.

    >>> accuracy_text(0.81449), accuracy_text(None)
    ('0.814', '–')
    """
    return "–" if value is None else f"{value:.3f}"


def seconds(value_s: float) -> str:
    """A time for people: seconds, and in brackets the unit that is easier to grasp.

    >>> seconds(41.0), seconds(11481.4)
    ('41 s', '11,481 s (191 min)')
    """
    per_unit, unit = time_unit(value_s)
    if unit == "s":
        return f"{value_s:,.0f} s"
    in_unit = value_s / per_unit
    return f"{value_s:,.0f} s ({in_unit:,.1f} {unit})" if in_unit < 100 else f"{value_s:,.0f} s ({in_unit:,.0f} {unit})"
