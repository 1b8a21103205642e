"""The numbers of the paper, exactly as printed, with their places.

J. Shin et al., "FedBalancer: Data and Pace Control for Efficient Federated Learning on Heterogeneous Clients", MobiSys
2022. Means and standard deviations are over three seeds. Where the text and a table disagree, this module has the value
of the table, and `DISAGREE` that of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

TASKS = ("femnist", "celeba", "reddit", "shakespeare", "har")
SEEDS = 3


@dataclass(frozen=True)
class Printed:
    """A number that the paper prints.

    Args:
        mean: The number.
        std: Its standard deviation; None if not printed.
        digits: Number of decimals.
        place: Its place in the paper.
    """

    mean: float
    std: float | None = None
    digits: int = 2
    place: str = ""

    @property
    def low(self) -> float:
        """The mean minus one standard deviation."""
        return self.mean - (self.std or 0.0) - self._rounding

    @property
    def high(self) -> float:
        """The mean plus one standard deviation."""
        return self.mean + (self.std or 0.0) + self._rounding

    @property
    def _rounding(self) -> float:
        """Half a unit of the last digit."""
        return 0.5 * 10.0**-self.digits

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


def _row(place: str, *values: tuple[float, float, float, float]) -> tuple[tuple[Printed, Printed], ...]:
    return tuple(
        (Printed(speedup, speedup_std, 2, place), Printed(accuracy, accuracy_std, 3, place))
        for speedup, speedup_std, accuracy, accuracy_std in values
    )


_TABLE1 = {
    "fedavg+1t": _row(
        "Table 1",
        (1.00, 0.00, 0.796, 0.007), (0.97, 0.05, 0.851, 0.005), (0.08, 0.12, 0.090, 0.001),
        (0.24, 0.22, 0.399, 0.020), (0.49, 0.36, 0.814, 0.029),
    ),
    "fedavg+2t": _row(
        "Table 1",
        (0.59, 0.01, 0.763, 0.009), (0.59, 0.04, 0.824, 0.010), (0.58, 0.07, 0.104, 0.000),
        (0.39, 0.10, 0.373, 0.046), (0.68, 0.07, 0.819, 0.014),
    ),
    "fedavg+spc": _row(
        "Table 1",
        (0.71, 0.02, 0.777, 0.004), (0.80, 0.14, 0.829, 0.013), (0.87, 0.08, 0.112, 0.001),
        (0.56, 0.10, 0.416, 0.017), (0.91, 0.13, 0.840, 0.016),
    ),
    "fedavg+wfa": _row(
        "Table 1",
        (0.33, 0.20, 0.594, 0.205), (0.54, 0.04, 0.813, 0.020), (1.00, 0.00, 0.113, 0.001),
        (1.00, 0.00, 0.439, 0.017), (0.68, 0.07, 0.819, 0.014),
    ),
    "prox+1t": _row(
        "Table 1",
        (0.99, 0.02, 0.795, 0.008), (1.05, 0.03, 0.855, 0.002), (2.87, 0.43, 0.121, 0.005),
        (1.14, 0.16, 0.476, 0.003), (0.96, 0.09, 0.849, 0.008),
    ),
    "prox+2t": _row(
        "Table 1",
        (0.65, 0.02, 0.767, 0.006), (0.75, 0.04, 0.833, 0.010), (3.63, 0.43, 0.127, 0.005),
        (1.00, 0.14, 0.457, 0.003), (0.68, 0.07, 0.819, 0.014),
    ),
    "sampleselection": _row(
        "Table 1",
        (1.01, 0.02, 0.799, 0.006), (1.03, 0.06, 0.852, 0.002), (1.52, 0.38, 0.118, 0.001),
        (0.85, 0.24, 0.439, 0.021), (0.90, 0.05, 0.845, 0.008),
    ),
    "fedbalancer": _row(
        "Table 1",
        (1.57, 0.03, 0.815, 0.006), (1.43, 0.07, 0.862, 0.006), (4.48, 0.23, 0.146, 0.001),
        (1.20, 0.10, 0.489, 0.004), (1.56, 0.28, 0.855, 0.034),
    ),
    "fedbalancer-A": _row(
        "Table 1",
        (1.60, 0.06, 0.820, 0.003), (1.52, 0.07, 0.873, 0.004), (4.08, 0.76, 0.154, 0.000),
        (1.31, 0.28, 0.505, 0.004), (1.39, 0.43, 0.893, 0.008),
    ),
    "fedbalancer-S": _row(
        "Table 1",
        (1.71, 0.01, 0.819, 0.002), (1.67, 0.04, 0.859, 0.006), (4.99, 0.42, 0.148, 0.003),
        (1.83, 0.14, 0.488, 0.001), (1.98, 0.48, 0.863, 0.010),
    ),
}  # fmt: skip
TABLE1: Mapping[tuple[str, str], tuple[Printed, Printed]] = MappingProxyType(
    {(task, method): cells for method, row in _TABLE1.items() for task, cells in zip(TASKS, row, strict=True)}
)
"""Speed-up over the best FedAvg variant, and accuracy, by task and method."""

GRID: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"w": (5, 20), "lss": (0.01, 0.05, 0.10), "dss": (0.05, 0.10, 0.25), "p": (0.75, 1.00)}
)
"""Section 4.1, Method: the settings of the grid; `RECOMMENDED` has the recommended ones."""
RECOMMENDED: Mapping[str, float] = MappingProxyType({"w": 20, "lss": 0.05, "dss": 0.05, "p": 1.00})

TABLE2: Mapping[tuple[str, str], Mapping[str, str]] = MappingProxyType({
    ("femnist", "A"): {"w": "20", "lss": "0.01/0.1/0.1", "dss": "0.10", "p": "1.00"},
    ("femnist", "S"): {"w": "20", "lss": "0.05/0.05/0.01", "dss": "0.25/0.1/0.05", "p": "1.00"},
    ("celeba", "A"): {"w": "20/5/5", "lss": "0.05/0.1/0.01", "dss": "0.1/0.1/0.05", "p": "1.00/0.75/1.00"},
    ("celeba", "S"): {"w": "20/20/5", "lss": "0.01/0.01/0.1", "dss": "0.1/0.1/0.25", "p": "1.00/1.00/0.75"},
    ("reddit", "A"): {"w": "5/20/20", "lss": "0.01", "dss": "0.1/0.25/0.1", "p": "1.00"},
    ("reddit", "S"): {"w": "5", "lss": "0.1", "dss": "0.25/0.1/0.05", "p": "0.75"},
    ("shakespeare", "A"): {"w": "5", "lss": "0.01/0.05/0.01", "dss": "0.1/0.25/0.25", "p": "1/0.75/1"},
    ("shakespeare", "S"): {"w": "5/20/5", "lss": "0.05/0.01/0.1", "dss": "0.1/0.05/0.1", "p": "0.75"},
    ("har", "A"): {"w": "5/5/20", "lss": "0.1/0.01/0.05", "dss": "0.1/0.1/0.25", "p": "1/1/0.75"},
    ("har", "S"): {"w": "5", "lss": "0.1/0.1/0.05", "dss": "0.25", "p": "0.75/0.75/1"},
})  # fmt: skip
"""Table 2: the settings of FedBalancer-A and -S; a slash separates the three seeds."""

_PARAMETERS = (
    ("w", 5), ("w", 20), ("lss", 0.01), ("lss", 0.05), ("lss", 0.10), ("dss", 0.05), ("dss", 0.10), ("dss", 0.25),
    ("p", 0.75), ("p", 1.00),
)  # fmt: skip
_TABLE3 = {
    "femnist": _row(
        "Table 3",
        (1.39, 0.16, 0.813, 0.005), (1.52, 0.15, 0.816, 0.004), (1.37, 0.15, 0.813, 0.004), (1.49, 0.18, 0.815, 0.006),
        (1.50, 0.14, 0.816, 0.006), (1.54, 0.07, 0.817, 0.003), (1.47, 0.16, 0.814, 0.004), (1.35, 0.18, 0.812, 0.005),
        (1.41, 0.15, 0.814, 0.004), (1.50, 0.17, 0.815, 0.005),
    ),
    "reddit": _row(
        "Table 3",
        (3.40, 0.53, 0.146, 0.007), (3.70, 0.23, 0.147, 0.003), (3.60, 0.29, 0.150, 0.002), (3.61, 0.31, 0.147, 0.002),
        (3.44, 0.61, 0.143, 0.008), (3.66, 0.44, 0.147, 0.004), (3.60, 0.33, 0.146, 0.007), (3.40, 0.48, 0.147, 0.005),
        (3.71, 0.30, 0.149, 0.002), (3.39, 0.49, 0.144, 0.007),
    ),
}  # fmt: skip
TABLE3: Mapping[tuple[str, str, float], tuple[Printed, Printed]] = MappingProxyType(
    {
        (task, name, value): cells
        for task, row in _TABLE3.items()
        for (name, value), cells in zip(_PARAMETERS, row, strict=True)
    }
)
"""Speed-up and accuracy by task, parameter and value, over all values of the other parameters."""

TABLE4 = (
    ("Google", 2016, "Pixel", "Snapdragon 821", 2),
    ("Google", 2017, "Pixel 2", "Snapdragon 835", 1),
    ("Google", 2017, "Pixel 2 XL", "Snapdragon 835", 2),
    ("Google", 2018, "Pixel 3", "Snapdragon 845", 1),
    ("Google", 2020, "Pixel 5", "Snapdragon 765G", 1),
    ("Samsung", 2016, "Galaxy S7", "Exynos 8890", 1),
    ("Samsung", 2017, "Galaxy J7", "Exynos 7870", 1),
    ("Samsung", 2019, "Galaxy Fold", "Snapdragon 855", 1),
    ("Huawei", 2015, "Nexus 6P", "Snapdragon 810", 3),
    ("Huawei", 2018, "P20 Lite", "Kirin 659", 1),
    ("Motorola", 2014, "Nexus 6", "Snapdragon 805", 2),
    ("LG", 2015, "Nexus 5X", "Snapdragon 808", 4),
    ("Essential", 2017, "Essential Phone", "Snapdragon 835", 1),
)
"""Table 4: manufacturer, year, device, processor and quantity of the 21 phones of the test bed."""

_TABLE5 = {
    "fedavg+1t": (0.99, 0.03, 0.852, 0.020),
    "fedavg+2t": (0.75, 0.30, 0.800, 0.034),
    "fedavg+spc": (0.61, 0.35, 0.849, 0.013),
    "fedavg+wfa": (0.92, 0.07, 0.846, 0.007),
    "prox+1t": (1.03, 0.23, 0.860, 0.007),
    "prox+2t": (0.90, 0.20, 0.860, 0.013),
    "sampleselection": (0.99, 0.13, 0.846, 0.014),
    "fedbalancer": (1.33, 0.08, 0.885, 0.017),
}
TABLE5: Mapping[str, tuple[Printed, Printed]] = MappingProxyType(
    {method: _row("Table 5", cells)[0] for method, cells in _TABLE5.items()}
)
"""Speed-up and accuracy on the test bed, over three sessions."""

SPEEDUPS: Mapping[tuple[str, str], Printed] = MappingProxyType({
    ("har", "fedavg"): Printed(1.56, None, 2, "section 4.2"),
    ("har", "prox"): Printed(1.63, None, 2, "section 4.2"),
    ("har", "sampleselection"): Printed(1.73, None, 2, "section 4.2"),
    ("femnist", "fedavg"): Printed(1.57, None, 2, "section 4.2, upper end for CV"),
    ("femnist", "prox"): Printed(1.58, None, 2, "section 4.2, upper end for CV"),
    ("femnist", "sampleselection"): Printed(1.55, None, 2, "section 4.2, upper end for CV"),
    ("celeba", "fedavg"): Printed(1.43, None, 2, "section 4.2, lower end for CV"),
    ("celeba", "prox"): Printed(1.36, None, 2, "section 4.2, lower end for CV"),
    ("celeba", "sampleselection"): Printed(1.39, None, 2, "section 4.2, lower end for CV"),
    ("reddit", "fedavg"): Printed(4.48, None, 2, "section 4.2, upper end for NLP"),
    ("reddit", "prox"): Printed(1.23, None, 2, "section 4.2, upper end for NLP"),
    ("reddit", "sampleselection"): Printed(2.95, None, 2, "section 4.2, upper end for NLP"),
    ("shakespeare", "fedavg"): Printed(1.20, None, 2, "section 4.2, lower end for NLP"),
    ("shakespeare", "prox"): Printed(1.05, None, 2, "section 4.2, lower end for NLP"),
    ("shakespeare", "sampleselection"): Printed(1.41, None, 2, "section 4.2, lower end for NLP"),
})  # fmt: skip
"""FedBalancer's speed-up over the best of each kind of baseline. The text gives ranges over the tasks of a domain; the
quotients of Table 1 show which end belongs to which task."""

LOW_NORMS: Mapping[tuple[str, str], Printed] = MappingProxyType(
    {
        ("femnist", "early"): Printed(0.068, None, 3, "section 2.2 (Figure 1), rounds 0 to 150"),
        ("femnist", "late"): Printed(0.800, None, 3, "section 2.2 (Figure 1), the last 150 rounds"),
        ("shakespeare", "early"): Printed(0.067, None, 3, "section 2.2 (Figure 1), rounds 0 to 25"),
        ("shakespeare", "late"): Printed(0.548, None, 3, "section 2.2 (Figure 1), the last 25 rounds"),
    }
)
"""Share of samples whose scaled gradient norm is under 0.2."""

FIGURE2_ACCURACY: Mapping[tuple[str, str], Printed] = MappingProxyType(
    {
        ("femnist", "fedavg+1t"): Printed(0.815, None, 3, "section 2.2 (Figure 2)"),
        ("shakespeare", "fedavg+spc"): Printed(0.488, None, 3, "section 2.2 (Figure 2)"),
    }
)
"""Final accuracy of the best method of the figure."""
FIGURE2_FASTER: Mapping[tuple[str, str], Printed] = MappingProxyType(
    {
        ("femnist", "fedavg+spc"): Printed(1.436, None, 3, "section 2.2 (Figure 2), 1T to 0.750"),
        ("femnist", "fedavg[deadline=1.5T]"): Printed(1.470, None, 3, "section 2.2 (Figure 2), 1T to 0.750"),
        ("femnist", "fedavg+2t"): Printed(1.779, None, 3, "section 2.2 (Figure 2), 1T to 0.750"),
        ("shakespeare", "fedavg+1t"): Printed(1.617, None, 3, "section 2.2 (Figure 2), SmartPC to 0.450"),
        ("shakespeare", "fedavg[deadline=1.5T]"): Printed(1.428, None, 3, "section 2.2 (Figure 2), SmartPC to 0.450"),
        ("shakespeare", "fedavg+2t"): Printed(1.454, None, 3, "section 2.2 (Figure 2), SmartPC to 0.450"),
    }
)
"""How many times as fast as this method the best one is ("43.6% faster" is read as 1.436 times)."""

DDLE: Mapping[str, tuple[Printed, Printed]] = MappingProxyType({
    "femnist": (Printed(172, None, 0, "section 3.3.1 (Figure 4)"), Printed(2.57, None, 2, "section 3.3.1 (Figure 4)")),
    "shakespeare": (
        Printed(157, None, 0, "section 3.3.1 (Figure 4)"), Printed(0.13, None, 2, "section 3.3.1 (Figure 4)"),
    ),
})  # fmt: skip
"""The deadline with the highest DDL-E in seconds, and that DDL-E, for all clients at five epochs."""
CLIENTS: Mapping[str, int] = MappingProxyType(
    {"femnist": 712, "celeba": 915, "reddit": 813, "shakespeare": 171, "har": 30}
)
"""Number of users per data set (section 4.1); in some data sets a tenth of them is for testing only."""

NOISE: Mapping[tuple[str, float], Printed] = MappingProxyType(
    {
        ("femnist", 0.0): Printed(0.819, None, 3, "section 4.3 (Figure 5a)"),
        ("femnist", 0.5): Printed(0.814, None, 3, "section 4.3 (Figure 5a)"),
        ("femnist", 5.0): Printed(0.811, None, 3, "section 4.3 (Figure 5a)"),
    }
)
"""Accuracy of FedBalancer by noise factor."""

COLLABORATION: Mapping[tuple[str, str], tuple[Printed, Printed]] = MappingProxyType({
    ("femnist", "oort"): (Printed(1.84, None, 2, "section 4.5 (Figure 7)"), Printed(0.026, None, 3, "section 4.5")),
    ("femnist", "qffl"): (Printed(1.19, None, 2, "section 4.5 (Figure 7)"), Printed(0.025, None, 3, "section 4.5")),
    ("femnist", "structured"): (
        Printed(1.31, None, 2, "section 4.5 (Figure 7)"), Printed(0.017, None, 3, "section 4.5"),
    ),
})  # fmt: skip
"""Speed-up and gain in accuracy of FedBalancer on top of each method over that method alone."""

NETWORK_CV: Mapping[str, Printed] = MappingProxyType(
    {
        "bed": Printed(0.59, None, 2, "section 4.6"),
        "simulated": Printed(0.40, None, 2, "section 4.6"),
    }
)
"""Mean coefficient of variation of the communication latency."""
NETWORK_PEAK = Printed(3.91, None, 2, "section 4.6: longest divided by mean communication latency")

DISAGREE = (
    "Section 4.3 has 3.71 over 3.42 and 14.8% over 13.3% for w on Reddit; Table 3 has 3.70 over 3.40 and 0.147, 0.146.",
    "Section 4.6 has a speed-up of 1.34 over FedAvg; Table 5 has 1.33.",
    "Table 5 has 0.800 for FedAvg+2T; the mean of the authors' three sessions is 0.833.",
)
"""Where the text and the tables of the paper disagree."""
