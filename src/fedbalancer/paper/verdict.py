"""Our figure against the paper's: within, better or worse, by how much, and whether our seeds resolve it.

The paper's interval is its mean ± one standard deviation as printed, widened by half of the last digit. Ours is the
95 % interval of the mean over our seeds. A verdict is resolved if our whole interval gives it: all of it inside of the
paper's, or all of it on the same side.

>>> from fedbalancer.paper.printed import Printed
>>> compare(Ours(2.0, 1.8, 2.2), Printed(1.56, 0.28)).words
'better, 1.28 ×, not resolved'
>>> compare(Ours(0.80, 0.79, 0.81), Printed(0.855, 0.034, 3), ratio=False).words
'worse, -0.055, resolved'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedbalancer.paper.printed import Printed

Word = Literal["within", "better", "worse", "above", "below", "unknown", "not measured", "not in the paper"]


@dataclass(frozen=True)
class Ours:
    """A figure of ours with its 95 % interval; None where there is none. `bound` is "<" or ">" if the figure is only
    known to be below or above `mean`, because some run never reached its target, and "?" if it may be anywhere."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    bound: str = ""


@dataclass(frozen=True)
class Verdict:
    """What our figure is beside the paper's. `factor` is ours over the paper's mean and `difference` ours less it;
    `resolved` is None where nothing can be said: no interval of ours, or nothing of the paper's."""

    word: Word
    factor: float | None = None
    difference: float | None = None
    resolved: bool | None = None
    ratio: bool = True
    digits: int = 2

    @property
    def words(self) -> str:
        """The verdict as it stands in a table."""
        if self.difference is None:
            return self.word
        amount = f"{self.difference:+.{self.digits}f}"
        if self.ratio and self.factor is not None:
            amount = f"{self.factor:.2f} ×"
        said = {True: ", resolved", False: ", not resolved", None: ", no interval"}[self.resolved]
        return f"{self.word}, {amount}{said}"

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.word, "factor": self.factor, "difference": self.difference, "resolved": self.resolved,
        }  # fmt: skip


def compare(ours: Ours, paper: Printed | None, *, ratio: bool = True, more_is_better: bool | None = True) -> Verdict:
    """The verdict on a figure. `ratio` says by a factor how far it is, and not by a difference; where more is neither
    better nor worse, the words are above and below."""
    if ours.mean is None:
        return Verdict("unknown" if ours.bound == "?" else "not measured")
    if paper is None:
        return Verdict("not in the paper")
    side = _side(ours.mean, paper)
    if side != {"<": -1, ">": 1}.get(ours.bound, side):
        return Verdict("unknown")  # it may be anywhere beyond its bound
    factor = ours.mean / paper.mean if paper.mean else None
    return Verdict(
        _word(side, more_is_better), factor, ours.mean - paper.mean, _resolved(ours, paper, side), ratio, paper.digits
    )


def _side(value: float, paper: Printed) -> int:
    """-1, 0 or 1: below, within or above the paper's interval."""
    return int(value > paper.high) - int(value < paper.low)


def _word(side: int, more_is_better: bool | None) -> Word:
    if side == 0:
        return "within"
    if more_is_better is None:
        return "above" if side > 0 else "below"
    return "better" if (side > 0) == more_is_better else "worse"


def _resolved(ours: Ours, paper: Printed, side: int) -> bool | None:
    """Of a bound only the end that it leaves known has to be on the same side."""
    ends = {"<": (ours.high,), ">": (ours.low,)}.get(ours.bound, (ours.low, ours.high))
    return None if None in ends else all(_side(end, paper) == side for end in ends if end is not None)
