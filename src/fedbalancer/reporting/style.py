"""Colours and line styles of methods, the same in every figure and page, and the formatting of values.

The colours are the palette of Okabe and Ito, which is readable with any common colour blindness. Yellow and black are
replaced by grey, because one of them is invisible on a light or a dark page. A dark page uses lighter shades. Methods
that share a colour have different line styles, and a method whose values often equal those of another has a dashed line
through which the other remains visible.
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
"""Line styles: the page's name and matplotlib's."""
YELLOW, VIOLET, BROWN, OLIVE = "#F2C14E", "#8C6BB1", "#A0522D", "#8A9A2B"
ON_DARK = {
    BLUE: "#4C96D7", SKY: "#A3DAFF", GREEN: "#2CC295", PINK: "#E8A5CB", ORANGE: "#F5B53D", RED: "#FF7A33",
    GREY: "#A8A8A8", VIOLET: "#B79AD6", BROWN: "#CF8A66", OLIVE: "#BFD04F",
}  # fmt: skip
"""Shades for a dark page."""
COLOURS = (GREY, PINK, ORANGE, GREEN, SKY, BLUE, RED, VIOLET)
"""Colours for methods without a fixed look, in the order in which they are assigned."""


@dataclass(frozen=True)
class Look:
    """Colour and line style of one method."""

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
    "canter": Look(VIOLET, "solid", 3.2),
    "canter+auto": Look(VIOLET, "dash", 3.2),
}
OUTCOMES = {
    "completed": ("completed", GREEN),
    "joined": ("late, counted in a later round", OLIVE),
    "download": ("deadline during download", YELLOW),
    "forward": ("deadline during forward pass", ORANGE),
    "train": ("deadline during training", RED),
    "upload": ("deadline during upload", PINK),
    "late": ("after the quorum", SKY),
    "unavailable": ("unavailable", GREY),
    "silent": ("no reply in time", BLUE),
    "error": ("client error", VIOLET),
    "invalid": ("report rejected", BROWN),
}
"""How a client's round can end: label and colour."""
PHASES = {
    "download_s": ("download", SKY),
    "forward_s": ("forward pass", ORANGE),
    "train_s": ("training", BLUE),
    "upload_s": ("upload", PINK),
    "paused_s": ("unavailable", VIOLET),
    "waiting_s": ("waiting for the end of the round", GREY),
}
"""Phases of a device's round: label and colour."""


def choose_looks(methods: Sequence[str]) -> dict[str, Look]:
    """Choose a colour and line style for each method.

    The methods of the paper have fixed looks; every other method gets a look that no method here uses. A variant such
    as `fedbalancer[w=5]` gets the colour of its base if it is free, otherwise another colour. Methods differ in the
    line style alone only if there are more methods than colours.

    Args:
        methods: Names of the methods.

    Returns:
        The look by method, in the same order.
    """
    chosen = {method: KNOWN[method] for method in methods if method in KNOWN}
    free = [Look(colour, dash) for dash, colour in product(DASHES, COLOURS)]
    taken = {(look.colour, look.dash) for look in chosen.values()}
    free = [look for look in free if (look.colour, look.dash) not in taken]
    spare = list(free)
    for method, dash in zip((name for name in methods if name not in KNOWN), cycle(DASHES), strict=False):
        spare = spare or list(free)  # more methods than looks: start again
        colours = {look.colour for look in chosen.values()}
        unused, base = [look for look in spare if look.colour not in colours], _base_colour(method)
        # Line styles differ as well, so that variants with equal values remain visible through each other.
        chosen[method] = min(unused or spare, key=lambda look: (look.colour != base, look.dash != dash))
        spare.remove(chosen[method])
    return {method: chosen[method] for method in methods}


def _base_colour(method: str) -> str:
    """Return the colour of the method that this one is a variant of; "" if there is none."""
    base = method.partition("[")[0]
    while base and base not in KNOWN and f"{base}+1t" not in KNOWN:
        base = base[: max(base.rfind("+"), base.rfind("-"), 0)]
    return (KNOWN.get(base) or KNOWN[f"{base}+1t"]).colour if base else ""


def time_unit(longest_s: float) -> tuple[float, str]:
    """Choose the unit of a time axis.

    Args:
        longest_s: The longest time on the axis.

    Returns:
        Seconds per unit, and the name of the unit.

    Example:
        >>> time_unit(90.0), time_unit(4_000.0), time_unit(50_000.0)
        ((1.0, 's'), (60.0, 'min'), (3600.0, 'h'))
    """
    if longest_s < 600:
        return 1.0, "s"
    return (60.0, "min") if longest_s < 4 * 3600 else (3600.0, "h")


def byte_unit(most: float) -> tuple[float, str]:
    """Choose the unit of a byte axis.

    Args:
        most: The largest number of bytes on the axis.

    Returns:
        Bytes per unit, and the name of the unit.

    Example:
        >>> byte_unit(900.0), byte_unit(61e6)
        ((1.0, 'B'), (1000000.0, 'MB'))
    """
    power = min(max(int(log10(max(most, 1.0)) + 1e-12) // 3, 0), len(BYTE_UNITS) - 1)
    return 1000.0**power, BYTE_UNITS[power]


def size_text(count: float | None) -> str:
    """Format a number of bytes.

    Example:
        >>> size_text(999), size_text(61_000_000), size_text(None)
        ('999 B', '61.0 MB', '–')
    """
    if count is None:
        return "–"
    per_unit, unit = byte_unit(float(count))
    return f"{count / per_unit:.1f} {unit}" if per_unit > 1 else f"{count:.0f} B"


def accuracy_text(value: float | None) -> str:
    """Format an accuracy with three digits; a dash if there is none.

    Example:
        >>> accuracy_text(0.81449), accuracy_text(None)
        ('0.814', '–')
    """
    return "–" if value is None else f"{value:.3f}"


def time_text(value_s: float) -> str:
    """Format a time in seconds, with a larger unit in brackets.

    Example:
        >>> time_text(41.0), time_text(11481.4)
        ('41 s', '11,481 s (191 min)')
    """
    per_unit, unit = time_unit(value_s)
    if unit == "s":
        return f"{value_s:,.0f} s"
    in_unit = value_s / per_unit
    return f"{value_s:,.0f} s ({in_unit:,.1f} {unit})" if in_unit < 100 else f"{value_s:,.0f} s ({in_unit:,.0f} {unit})"
