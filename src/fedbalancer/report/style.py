"""How a method looks, the same in every figure and on the page; and in which unit a time is shown.

The colours are those of Okabe and Ito, which people with any common colour blindness can tell apart; the two that
vanish on a light or a dark page (yellow, black) are left out for a grey. On a dark page each is a lighter shade of
itself. Methods that share a colour differ in line, and a method whose values often equal those of an earlier one has
gaps in its line through which that one shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, product
from math import log10

BLUE, SKY, GREEN, PINK, ORANGE, RED, GREY = (
    "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#D55E00", "#7F7F7F",
)  # fmt: skip
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
"""Line styles by the page's name, with matplotlib's."""
YELLOW, VIOLET, BROWN, OLIVE = "#F2C14E", "#8C6BB1", "#A0522D", "#8A9A2B"
ON_DARK = {
    BLUE: "#4C96D7", SKY: "#A3DAFF", GREEN: "#2CC295", PINK: "#E8A5CB", ORANGE: "#F5B53D", RED: "#FF7A33",
    GREY: "#A8A8A8", VIOLET: "#B79AD6", BROWN: "#CF8A66", OLIVE: "#BFD04F",
}  # fmt: skip
"""The shades that a dark page shows instead."""
COLOURS = (GREY, PINK, ORANGE, GREEN, SKY, BLUE, RED, VIOLET)
"""What methods can have, in the order in which those that the paper does not name get them."""


@dataclass(frozen=True)
class Look:
    """Colour and line of one method."""

    colour: str
    dash: str
    width: float = 2.0

    @property
    def dark(self) -> str:
        """The colour on a dark page."""
        return ON_DARK.get(self.colour, self.colour)


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
    "tempo": Look(VIOLET, "solid", 3.2),
}
OUTCOMES = {
    "completed": ("completed", GREEN),
    "joined": ("late, counted in a later round", OLIVE),
    "download": ("too late in download", YELLOW),
    "forward": ("too late in forward pass", ORANGE),
    "train": ("too late in training", RED),
    "upload": ("too late in upload", PINK),
    "late": ("after the quorum", SKY),
    "unavailable": ("unavailable", GREY),
    "silent": ("no reply in time", BLUE),
    "error": ("its app failed", VIOLET),
    "invalid": ("reply refused", BROWN),
}
"""How a client's round can end: what it is called and its colour."""
PHASES = {
    "download_s": ("download", SKY),
    "forward_s": ("look at the samples", ORANGE),
    "train_s": ("train", BLUE),
    "upload_s": ("upload", PINK),
    "paused_s": ("not available", VIOLET),
    "waiting_s": ("wait for the round's end", GREY),
}
"""Where a device's seconds of a round go: what it is called and its colour."""


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """One look per method: the methods of the paper always have theirs, others get one that nobody here has. A variant
    such as `fedbalancer[w=5]` has the colour of its base if nobody else has, or else one of its own; only when there
    are no more colours do lines alone tell methods apart."""
    chosen = {method: KNOWN[method] for method in methods if method in KNOWN}
    free = [Look(colour, dash) for dash, colour in product(DASHES, COLOURS)]
    taken = {(look.colour, look.dash) for look in chosen.values()}
    free = [look for look in free if (look.colour, look.dash) not in taken]
    spare = list(free)
    for method, dash in zip((name for name in methods if name not in KNOWN), cycle(DASHES), strict=False):
        spare = spare or list(free)  # more methods than looks: they begin again
        colours = {look.colour for look in chosen.values()}
        own, base = [look for look in spare if look.colour not in colours], _base_colour(method)
        # Lines differ as well, so that variants that do the same for a while show through each other.
        chosen[method] = min(own or spare, key=lambda look: (look.colour != base, look.dash != dash))
        spare.remove(chosen[method])
    return {method: chosen[method] for method in methods}


def _base_colour(method: str) -> str:
    """The colour of the method that this one is a variant of; none if that is not known."""
    base = method.partition("[")[0]
    while base and base not in KNOWN and f"{base}+1t" not in KNOWN:
        base = base[: max(base.rfind("+"), base.rfind("-"), 0)]
    return (KNOWN.get(base) or KNOWN[f"{base}+1t"]).colour if base else ""


def time_unit(longest_s: float) -> tuple[float, str]:
    """Seconds per unit, and the unit's name, for an axis that goes up to `longest_s`.

    >>> time_unit(90.0), time_unit(4_000.0), time_unit(50_000.0)
    ((1.0, 's'), (60.0, 'min'), (3600.0, 'h'))
    """
    if longest_s < 600:
        return 1.0, "s"
    return (60.0, "min") if longest_s < 4 * 3600 else (3600.0, "h")


def byte_unit(most: float) -> tuple[float, str]:
    """Bytes per unit, and the unit's name, for an axis that goes up to `most` bytes.

    >>> byte_unit(900.0), byte_unit(61e6)
    ((1.0, 'B'), (1000000.0, 'MB'))
    """
    power = min(max(int(log10(max(most, 1.0)) + 1e-12) // 3, 0), len(BYTE_UNITS) - 1)
    return 1000.0**power, BYTE_UNITS[power]


def size_text(count: float | None) -> str:
    """Bytes for people.

    >>> size_text(999), size_text(61_000_000), size_text(None)
    ('999 B', '61.0 MB', '–')
    """
    if count is None:
        return "–"
    per_unit, unit = byte_unit(float(count))
    return f"{count / per_unit:.1f} {unit}" if per_unit > 1 else f"{count:.0f} B"


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
