"""Reports of clients whose training diverged.

Such a client sends a report without an update when its work is done. The server rejects it like any invalid report, so
the client costs the round one report and its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types import FOLDED, ClientReport, DivergedTraining, Summary, Timings
from fedbalancer.server.report_check import TRAINING_DIVERGED

NO_SUMMARY = Summary(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0)
_SEPARATOR = "\0"


def diverged_report(diverged: DivergedTraining, timings: Timings, part: NDArray[np.bool_] | None) -> ClientReport:
    """Return the report of a client whose training diverged.

    Args:
        diverged: The client and its problem.
        timings: Seconds in each phase.
        part: Which parameters the client trained. None: all.
    """
    problem = f"{TRAINING_DIVERGED}{diverged.problem}"
    return ClientReport(diverged.client, FOLDED, 0.0, 0.0, NO_SUMMARY, timings, part=part, problem=problem)


def reports_to_arrays(reports: Sequence[ClientReport]) -> dict[str, Any]:
    """Return what a checkpoint needs of reports of diverged trainings, as arrays.

    Args:
        reports: At least one report.
    """
    arrays: dict[str, Any] = {
        "timings": np.array([astuple(report.timings) for report in reports]),
        "problems": np.frombuffer(_SEPARATOR.join(report.problem for report in reports).encode(), dtype=np.uint8),
    }
    parts = [report.part for report in reports if report.part is not None]
    return arrays | {"part": np.stack(parts)} if parts else arrays


def restore_reports(clients: Sequence[str], arrays: Mapping[str, Any]) -> list[ClientReport]:
    """Return the reports from what `reports_to_arrays` returned.

    Args:
        clients: The id of the client of each report.
        arrays: The arrays.
    """
    problems = np.asarray(arrays["problems"], dtype=np.uint8).tobytes().decode().split(_SEPARATOR)
    parts = [np.array(part) for part in arrays["part"]] if "part" in arrays else [None] * len(clients)
    return [
        ClientReport(client, FOLDED, 0.0, 0.0, NO_SUMMARY, Timings(*timings), part=part, problem=problem)
        for client, timings, part, problem in zip(clients, arrays["timings"].tolist(), parts, problems, strict=True)
    ]
