"""Items that compare methods: their groups, tables and headlines, and Figures 2, 5b, 6 and 7."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from fedbalancer.paper.charts import comparison_charts
from fedbalancer.paper.item import Finding, Frames, Item, Measured, Presentation, Request, Table, Work, value_text
from fedbalancer.paper.pool import TaskPool
from fedbalancer.paper.printed import COLLABORATION, FIGURE2_ACCURACY, FIGURE2_FASTER, Printed
from fedbalancer.paper.scores import (
    Group,
    Row,
    full_target,
    list_rows,
    read_accuracy,
    read_speedup,
    score_groups,
)
from fedbalancer.reporting.plotting import accuracy_panels
from fedbalancer.reporting.style import accuracy_text, size_text

EXTRAS = ("Device hours", "Sample passes", "Sent up", "Client median", "Worst decile", "Jain")
SCORES_NOTE = (
    "Speed-up: time of the reference to a share of the target divided by the method's time, mean over seeds with its "
    "95% interval (< and >: a bound, because a run never reached the share). Reached: number of seeds that reached the "
    "whole target. Device hours, sample passes and bytes: all clients, until the target. Client median, worst decile "
    "and Jain's index: accuracy of the final model on each client's own data."
)


@dataclass(frozen=True, kw_only=True)
class ComparisonItem(Item):
    """An item that compares groups of methods.

    Args:
        groups: The groups of methods.
        find: Returns the values that the paper has as well.
        notes: Notes for the reader.
    """

    groups: tuple[Group, ...]
    find: Callable[[Frames], Sequence[Finding]]
    notes: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for group in self.groups for method in group.methods))

    def runs(self, request: Request) -> int:
        return len(request.tasks) * len(self.methods) * len(request.seeds)

    def check(self, request: Request) -> None:
        for task in request.tasks:
            TaskPool.make(request, task, self.methods)

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        return score_groups(work, self.groups).frames

    def present(self, frames: Frames) -> Presentation:
        methods, findings = frames["methods"], self.find(frames)
        points = write_points(methods, self.groups[-1])
        return Presentation(
            headline=join_points(points),
            points=points,
            charts=comparison_charts(methods, frames["scores"], frames["curves"], findings),
            tables=[*score_tables(methods)],
            findings=findings,
            notes=self.notes,
            figures={self.name: accuracy_panels(frames["curves"])},
            json=result_json(methods),
        )


def score_tables(methods: pl.DataFrame) -> Iterator[Table]:
    """Yield a table for every task and group: speed-ups to all targets, their cost, and fairness between clients."""
    several = methods["group"].n_unique() > 1
    for (task, group), rows in methods.group_by(["task", "group"], maintain_order=True):
        whole, shares = full_target(rows), sorted(rows["target_share"].unique().to_list(), reverse=True)
        name = f"{task}, {group}" if several else task
        title = f"{name}: target {whole['target'][0]:.3f}, {whole['budget_s'][0]:,.0f} s"
        header = ("Method", *(f"Speed-up to {share:.0%}" for share in shares), "Reached", "Final accuracy", *EXTRAS)
        lines = [
            (
                row["method"], *(_ratio_text(rows, row["method"], share) for share in shares),
                f"{row['reached']}/{row['seeds']}", value_text(read_accuracy(row), 3), *_extra_texts(row),
            )
            for row in whole.iter_rows(named=True)
        ]  # fmt: skip
        yield Table(title, header, lines, SCORES_NOTE)


def _ratio_text(methods: pl.DataFrame, method: str, share: float) -> str:
    """Format a speed-up; FedBalancer-A and -S have one for the whole target only."""
    rows = methods.filter((pl.col("method") == method) & (pl.col("target_share") == share)).to_dicts()
    if not rows:
        return "–"
    return value_text(read_speedup(rows[0]), 2) if rows[0]["reached"] else "never"


def _extra_texts(row: Row) -> tuple[str, ...]:
    """Format the cost until the target, a lower bound if some seeds never reach it, and the clients' accuracies."""
    least = "" if row["reached"] == row["seeds"] else "≥ "
    costs = [
        "–" if row["device_s"] is None else f"{least}{row['device_s'] / 3600:.1f}",
        "–" if row["sample_passes"] is None else f"{least}{row['sample_passes']:,.0f}",
        "–" if row["up_bytes"] is None else least + size_text(row["up_bytes"]),
    ]
    return (*costs, *(accuracy_text(row[name]) for name in ("client_median", "client_worst_decile", "client_jain")))


def write_points(methods: pl.DataFrame, group: Group) -> list[str]:
    """Write one sentence per task about the last method of a group and its reference.

    Args:
        methods: The table `methods`.
        group: The group.
    """
    last = group.methods[-1]
    points = []
    rows = full_target(methods).filter((pl.col("group") == group.name) & (pl.col("method") == last))
    for row in rows.iter_rows(named=True):
        ours = read_speedup(row)
        fast = f"{value_text(ours, 2)} times as fast as the reference" if ours.mean else "never reached the target"
        fast += f" ({resolution_text(ours)})" if ours.mean else ""
        points.append(f"{row['task']}: {last} {fast}, accuracy {value_text(read_accuracy(row), 3)}")
    return points


def join_points(points: Sequence[str]) -> str:
    """Join points into one sentence.

    Example:
        >>> join_points(["har: faster", "femnist: slower"]), join_points([])
        ('har: faster; femnist: slower.', 'Nothing is scored yet.')
    """
    return "; ".join(points) + "." if points else "Nothing is scored yet."


def resolution_text(ours: Measured) -> str:
    """Describe whether the interval of a speed-up excludes 1.

    Example:
        >>> resolution_text(Measured(1.5, 1.2, 1.9)), resolution_text(Measured(1.5, 0.9, 2.5))
        ('resolved: faster', 'not resolved by the seeds')
        >>> resolution_text(Measured(0.4, None, 0.6))
        'resolved: slower'
    """
    if ours.low is not None and ours.low > 1:
        return "resolved: faster"
    return "resolved: slower" if ours.high is not None and ours.high < 1 else "not resolved by the seeds"


def result_json(methods: pl.DataFrame) -> dict[str, Any]:
    """Return the values that `--json` prints, by task, group and method."""
    result: dict[str, Any] = {}
    for row in list_rows(methods):
        values = {
            "speedup": {"mean": row["ratio"], "std": row["ratio_std"], "low": row["ratio_low"],
                        "high": row["ratio_high"], "reached": row["reached"]},
            "accuracy": {"mean": row["accuracy"], "std": row["accuracy_std"]},
        }  # fmt: skip
        result.setdefault(row["task"], {}).setdefault(row["group"], {})[row["method"]] = values
    return result


def speedup_finding(row: Row, name: str, paper: Printed | None = None) -> Finding:
    """Return the finding of a row's speed-up.

    Args:
        row: A row of the table `methods`.
        name: Name of the method in the text.
        paper: The paper's value.
    """
    return Finding.of(row["task"], f"{name}: speed-up", read_speedup(row), paper)


def accuracy_finding(row: Row, name: str, paper: Printed | None = None) -> Finding:
    """Return the finding of a row's accuracy.

    Args:
        row: A row of the table `methods`.
        name: Name of the method in the text.
        paper: The paper's value.
    """
    return Finding.of(row["task"], f"{name}: accuracy", read_accuracy(row), paper, ratio=False, digits=3)


DEADLINES = ("fedavg[deadline=.5T]", "fedavg+1t", "fedavg[deadline=1.5T]", "fedavg+2t", "fedavg+spc")
BEST_DEADLINE = {"femnist": "fedavg+1t", "shakespeare": "fedavg+spc"}
"""The paper's best method of Figure 2 by task."""


def find_deadlines(frames: Frames) -> list[Finding]:
    """Return final accuracies, and how much faster the paper's best method is than each of the others."""
    rows = list(list_rows(frames["methods"]))
    accuracies = [
        accuracy_finding(row, row["method"], FIGURE2_ACCURACY.get((row["task"], row["method"]))) for row in rows
    ]
    return [*accuracies, *_find_quotients(rows)]


def _find_quotients(rows: list[Row]) -> Iterator[Finding]:
    by_name = {(row["task"], row["method"]): row for row in rows}
    for task in dict.fromkeys(row["task"] for row in rows):
        best = BEST_DEADLINE.get(task)
        if best is None:
            continue
        for method in DEADLINES:
            other, first = by_name[task, method], by_name[task, best]
            if method != best and (paper := FIGURE2_FASTER.get((task, method))) is not None:
                both = other["reached"] and first["reached"] and other["ratio"]
                ours = Measured(first["ratio"] / other["ratio"] if both else None)
                yield Finding.of(task, f"{best}: times as fast as {method}", ours, paper)


FIG2 = ComparisonItem(
    name="fig2",
    title="the effect of the deadline on FedAvg",
    place="Figure 2",
    groups=(Group("deadlines", DEADLINES),),
    find=find_deadlines,
    notes=(
        "The paper shows FEMNIST and Shakespeare without intervals. Its times are to fixed accuracies (0.750 and "
        "0.450); ours are to the final accuracy of the best FedAvg variant among these.",
    ),
)

FORWARD_PASS = ("fedbalancer", "fedbalancer+forwardpass")


def find_forward_pass(frames: Frames) -> list[Finding]:
    """Return speed-ups and accuracies; the paper prints no numbers."""
    rows = [row for row in list_rows(frames["methods"]) if row["method"] in FORWARD_PASS]
    return [
        *(speedup_finding(row, row["method"]) for row in rows),
        *(accuracy_finding(row, row["method"]) for row in rows),
    ]


FIG5B = ComparisonItem(
    name="fig5b",
    title="with and without a forward pass in every round",
    place="Figure 5b",
    groups=(Group("forward pass", ("fedavg+1t", "prox+1t", *FORWARD_PASS)),),
    find=find_forward_pass,
    notes=("The paper shows FEMNIST and reports slower training with the forward pass, without numbers.",),
)

STEPS = {
    "prox+1t": "Prox",
    "fedbalancer-deadline": "Prox + sample selection, with its client selection",
    "fedbalancer": "Prox + sample selection + deadline control",
}
WITHOUT = {
    "fedbalancer-samples": "FedBalancer without sample selection",
    "fedbalancer-clients": "FedBalancer without client selection",
    "fedbalancer-clients-deadline": "Prox + sample selection alone",
    "fedbalancer-samples-deadline": "Prox + client selection alone",
    "fedbalancer-samples-clients": "Prox + deadline control alone",
}


def find_parts(frames: Frames) -> list[Finding]:
    """Return speed-ups and accuracies; the paper shows curves and prints no numbers."""
    names = {**STEPS, **WITHOUT}
    rows = [row for row in list_rows(frames["methods"]) if row["method"] in names]
    return [
        *(speedup_finding(row, names[row["method"]]) for row in rows),
        *(accuracy_finding(row, names[row["method"]]) for row in rows),
    ]


FIG6 = ComparisonItem(
    name="fig6",
    title="the contribution of each part of FedBalancer",
    place="Figure 6",
    groups=(
        Group("parts", ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa", *WITHOUT, *STEPS)),
    ),
    find=find_parts,
    notes=(
        "The paper shows FEMNIST and Reddit without numbers. It reports that with sample selection alone FEMNIST gets "
        "slower and Reddit faster, and that with deadline control both get faster.",
        "The rows that remove one part, or have one part alone, are not in the paper.",
    ),
)  # fmt: skip

PAIRS = {
    "oort": ("oort", "oortbalancer"),
    "qffl": ("fedavg+1t+qffl", "fedbalancer+qffl"),
    "structured": ("fedavg+1t+structured", "fedbalancer+structured"),
}


def find_combinations(frames: Frames) -> list[Finding]:
    """Return the speed-up and the gain in accuracy of each pair of methods."""
    alone = {
        (row["task"], row["group"]): row
        for row in list_rows(frames["methods"])
        if row["method"] == PAIRS[row["group"]][0]
    }
    findings = []
    for row in list_rows(frames["methods"]):
        base, combined = PAIRS[row["group"]]
        if row["method"] == combined:
            speedup, gain = COLLABORATION.get((row["task"], row["group"]), (None, None))
            before = read_accuracy(alone[row["task"], row["group"]]).mean
            after = read_accuracy(row).mean
            more = Measured(after - before if after is not None and before is not None else None)
            what = f"{combined} over {base}"
            findings.append(speedup_finding(row, what, speedup))
            findings.append(Finding.of(row["task"], f"{what}: accuracy gained", more, gain, ratio=False, digits=3))
    return findings


FIG7 = ComparisonItem(
    name="fig7",
    title="FedBalancer combined with other methods",
    place="Figure 7",
    groups=tuple(Group(name, pair) for name, pair in PAIRS.items()),
    find=find_combinations,
    notes=(
        "The paper shows FEMNIST without intervals. The target of a pair is the final accuracy of its first method.",
    ),
)
