"""A client that lies about its losses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from fedbalancer.core.types import ClientReport, Order, Summary

Field = Literal["all", "high", "low", "sum"]


@dataclass(frozen=True)
class MetadataLiar:
    """Says that its losses are `factor` times what they are, to move the loss threshold and the pace.

    `field` is what it lies about: "all", which stays consistent in itself, or only the "high" or the "low" loss or the
    "sum". A factor below 1 makes losses small. Of a histogram it tells that all samples are in the last bin, or in the
    first one; of a share that it is 1, or 0.
    """

    factor: float = 10.0
    field: Field = "all"

    def __post_init__(self) -> None:
        if not (0 <= self.factor < math.inf and self.field in get_args(Field)):
            raise ValueError(
                f"factor = {self.factor} from 0 on, and field one of {', '.join(get_args(Field))}, not {self.field!r}"
            )

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        summary = report.summary
        in_place = summary.released and not summary.loss_count  # of statistics, not beside them
        lie = self._of_histogram(summary) if in_place else self._of_statistics(summary)
        return replace(report, summary=lie)

    def _of_statistics(self, summary: Summary) -> Summary:
        names = ("low", "high", "sum") if self.field == "all" else (self.field,)
        lies = {f"loss_{name}": getattr(summary, f"loss_{name}") * self.factor for name in names}
        if self.field == "all":
            lies["over_sumsq"] = summary.over_sumsq * self.factor * self.factor
        return replace(summary, **lies)

    def _of_histogram(self, summary: Summary) -> Summary:
        counts = summary.released
        if len(counts) == 1:  # a share of losses over the threshold
            return replace(summary, released=(float(self.factor >= 1),))
        rest = (0.0,) * (len(counts) - 1)
        total = (math.fsum(counts),)
        return replace(summary, released=(*rest, *total) if self.factor >= 1 else (*total, *rest))
