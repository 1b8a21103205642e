"""The state of the simulated engine between rounds, saved in checkpoints as arrays.

`Memories` holds what every client stores on its device, `PendingReports` the reports of clients that are still working
when their round closes, and `ClassCounts` how many samples of each class were trained. Only a simulator can compute
`ClassCounts` and `seen_losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.client.round import ClientMemory
from fedbalancer.core.types import Arrays, ClientReport, IndexArray, Ledger, Summary, Timings, TrainResult, Weights
from fedbalancer.simulation.divergence import reports_to_arrays, restore_reports

_NOT_SAVED = ("released", "read_by_server", "estimated")
_SUMMARY_NUMBERS = tuple(each.name for each in fields(Summary) if each.name not in _NOT_SAVED)
HELD, TRAINED = "classes.held", "classes.trained"
_STATE, _STATE_ROW, _PENDING, _SENT = "state.", "state_row.", "pending_", "arrays."
_DIVERGED = "diverged."

SeenLosses: TypeAlias = tuple[float, float, float]
"""The 10%, 50% and 90% quantiles of the losses of all samples, each the first time it is seen in a round."""
QUANTILES = (0.1, 0.5, 0.9)


class Memories(Mapping[str, ClientMemory]):
    """The memories of all clients, stored as arrays: 20 bytes per client plus the loss lists.

    The engine reads and writes them by ledger row; as a mapping they give the memory of one client id. A loss list is
    replaced, never modified, so clients may share one.

    Args:
        ledger: The server's ledger at the start, with the batch latencies measured before training.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._clients, self._position = ledger.clients, ledger.position
        self._batch_s_sum = ledger.batch_s_sum.copy()
        self._batch_s_count = ledger.batch_s_count.copy()
        self._losses: NDArray[Any] = np.full(len(ledger.clients), None, dtype=object)
        self._residuals: dict[int, Weights] = {}
        self._uploads_s: dict[int, tuple[float, ...]] = {}
        self._states: dict[int, Arrays] = {}

    def __getitem__(self, client: str) -> ClientMemory:
        return self.of(self._position[client])

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def of(self, row: int) -> ClientMemory:
        """Return the memory of the client in a ledger row."""
        total_s, count = float(self._batch_s_sum[row]), int(self._batch_s_count[row])
        return ClientMemory(
            self._losses[row], total_s, count, self._residuals.get(row), self._uploads_s.get(row, ()),
            self._states.get(row, {}),
        )  # fmt: skip

    def put(self, row: int, memory: ClientMemory) -> None:
        """Replace the memory of the client in a ledger row."""
        self._losses[row] = memory.losses
        self._batch_s_sum[row], self._batch_s_count[row] = memory.batch_s_sum, memory.batch_s_count
        if memory.residual is not None:
            self._residuals[row] = memory.residual
        else:
            self._residuals.pop(row, None)
        if memory.uploads_s:
            self._uploads_s[row] = memory.uploads_s
        else:
            self._uploads_s.pop(row, None)
        if memory.state:
            self._states[row] = memory.state
        else:
            self._states.pop(row, None)

    def to_arrays(self, with_losses: bool = True) -> dict[str, Any]:
        """Return all memories as arrays.

        Args:
            with_losses: Whether to include the loss lists.

        Returns:
            Six arrays by row, where `loss_length` is -1 for a client without a loss list. If any client remembers
            uploads, two more arrays hold the row and the seconds of each upload. Arrays of the method have one entry
            per client that keeps them, and `state_row.NAME` has their rows.
        """
        length = np.fromiter(
            (len(losses) if with_losses and losses is not None else -1 for losses in self._losses), np.int64, len(self)
        )
        rows = sorted(self._residuals)
        has_residual = np.zeros(len(self), dtype=bool)
        has_residual[rows] = True
        return {
            "batch_s_sum": self._batch_s_sum.copy(),
            "batch_s_count": self._batch_s_count.copy(),
            "loss_length": length,
            "losses": np.concatenate([np.zeros(0), *self._losses[length >= 0]]),
            "has_residual": has_residual,
            "residuals": np.concatenate([np.zeros(0, dtype=np.float32), *(self._residuals[row] for row in rows)]),
            **self._uploads_to_arrays(),
            **self._states_to_arrays(),
        }

    def _states_to_arrays(self) -> dict[str, Any]:
        saved: dict[str, Any] = {}
        for name in sorted({name for state in self._states.values() for name in state}):
            rows = [row for row, state in sorted(self._states.items()) if name in state]
            saved[f"{_STATE_ROW}{name}"] = np.array(rows, dtype=np.int64)
            saved[f"{_STATE}{name}"] = np.stack([self._states[row][name] for row in rows])
        return saved

    def _uploads_to_arrays(self) -> dict[str, Any]:
        pairs = [(row, seconds) for row, uploads in sorted(self._uploads_s.items()) for seconds in uploads]
        if not pairs:
            return {}
        rows, seconds = zip(*pairs, strict=True)
        return {"upload_row": np.array(rows, dtype=np.int64), "upload_s": np.array(seconds)}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Restore what `to_arrays` returned."""
        self._batch_s_sum[:] = arrays["batch_s_sum"]
        self._batch_s_count[:] = arrays["batch_s_count"]
        self._losses[:] = None
        ends = np.cumsum(np.maximum(arrays["loss_length"], 0))
        for row in np.flatnonzero(np.asarray(arrays["loss_length"]) >= 0):
            self._losses[row] = np.array(arrays["losses"][ends[row] - arrays["loss_length"][row] : ends[row]])
        rows = np.flatnonzero(arrays["has_residual"]).tolist()
        residuals = np.array(arrays["residuals"]).reshape(len(rows), -1) if rows else ()
        self._residuals = dict(zip(rows, residuals, strict=True))
        self._uploads_s = {}
        if "upload_row" in arrays:
            for row, seconds in zip(arrays["upload_row"].tolist(), arrays["upload_s"].tolist(), strict=True):
                self._uploads_s[row] = (*self._uploads_s.get(row, ()), seconds)
        self._states = {}
        for name in (key.removeprefix(_STATE) for key in arrays if key.startswith(_STATE)):
            for row, value in zip(arrays[f"{_STATE_ROW}{name}"].tolist(), arrays[f"{_STATE}{name}"], strict=True):
                self._states[row] = {**self._states.get(row, {}), name: np.array(value)}


@dataclass(frozen=True, eq=False)
class PendingReport:
    """A report that arrives after its round has closed.

    It is computed when the client starts, from the model that the client received, and kept until the simulated clock
    reaches its arrival. A checkpoint of the pending reports is therefore all that a resumed run needs.

    Args:
        report: The report.
        round: The round in which the client was selected.
        arrives_s: Second on the run's clock at which the report arrives.
    """

    report: ClientReport
    round: int
    arrives_s: float

    def join_round(self, round_number: int) -> ClientReport:
        """Return the report with its staleness in a later round."""
        return replace(self.report, staleness=round_number - self.round)


class PendingReports(tuple[PendingReport, ...]):
    """All pending reports, sorted by client id. A client with a pending report is not selected again."""

    @property
    def clients(self) -> tuple[str, ...]:
        """Ids of the clients."""
        return tuple(each.report.client for each in self)

    def remove(self, reports: Iterable[PendingReport]) -> PendingReports:
        """Return a copy without these reports."""
        clients = {each.report.client for each in reports}
        return PendingReports(each for each in self if each.report.client not in clients)

    def add(self, reports: Iterable[PendingReport]) -> PendingReports:
        """Return a copy with these reports added."""
        return PendingReports(sorted([*self, *reports], key=lambda each: each.report.client))

    def to_arrays(self, ledger: Ledger) -> dict[str, Any]:
        """Return arrays with one row per report; an empty dictionary if there is none."""
        sound = PendingReports(each for each in self if not each.report.problem)
        diverged = PendingReports(each for each in self if each.report.problem)
        return sound._sound_to_arrays(ledger) | diverged._diverged_to_arrays(ledger)

    def _diverged_to_arrays(self, ledger: Ledger) -> dict[str, Any]:
        """Return the arrays of reports of diverged trainings, which have no update."""
        if not self:
            return {}
        arrays = self._times_to_arrays(ledger) | reports_to_arrays([each.report for each in self])
        return {f"{_DIVERGED}{name}": array for name, array in arrays.items()}

    def _times_to_arrays(self, ledger: Ledger) -> dict[str, Any]:
        return {
            "row": ledger.rows(self.clients),
            "round": np.array([each.round for each in self], dtype=np.int64),
            "arrives_s": np.array([each.arrives_s for each in self]),
        }

    def _sound_to_arrays(self, ledger: Ledger) -> dict[str, Any]:
        """Return the arrays of reports with an update."""
        if not self:
            return {}
        reports = [each.report for each in self]
        return {
            **{f"{_PENDING}{name}": array for name, array in self._times_to_arrays(ledger).items()},
            "pending_update": np.stack([report.update for report in reports]),
            "pending_amount": np.array([(report.weight, report.epochs) for report in reports]),
            "pending_summary": np.array([[getattr(r.summary, name) for name in _SUMMARY_NUMBERS] for r in reports]),
            "pending_released": np.array([report.summary.released for report in reports], dtype=np.float64),
            "pending_timings": np.array([astuple(report.timings) for report in reports]),
            **_pending_arrays(reports),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], ledger: Ledger) -> PendingReports:
        """Restore what `to_arrays` returned."""
        columns = {name.removeprefix(_PENDING): arrays[name] for name in arrays if name.startswith(_PENDING)}
        rows = columns["row"].tolist() if columns else []
        sound = [
            _restore_report(ledger.clients[row], {name: values[place] for name, values in columns.items()})
            for place, row in enumerate(rows)
        ]
        return cls().add([*sound, *_restore_diverged(arrays, ledger)])


def _pending_arrays(reports: list[ClientReport]) -> dict[str, Any]:
    """Return the arrays of a method and the trained parts in pending reports. All reports have the same ones."""
    saved = {f"{_PENDING}{_SENT}{name}": np.stack([r.arrays[name] for r in reports]) for name in reports[0].arrays}
    parts = [report.part for report in reports if report.part is not None]
    if parts:
        saved |= {
            f"{_PENDING}part": np.stack(parts),
            f"{_PENDING}batch_share": np.array([r.batch_share for r in reports]),
        }
    return saved


def _restore_diverged(arrays: Mapping[str, Any], ledger: Ledger) -> list[PendingReport]:
    columns = {name.removeprefix(_DIVERGED): arrays[name] for name in arrays if name.startswith(_DIVERGED)}
    if not columns:
        return []
    reports = restore_reports([ledger.clients[row] for row in columns["row"].tolist()], columns)
    times = zip(columns["round"].tolist(), columns["arrives_s"].tolist(), strict=True)
    return [PendingReport(report, *when) for report, when in zip(reports, times, strict=True)]


def _restore_report(client: str, saved: Mapping[str, Any]) -> PendingReport:
    numbers = dict(zip(_SUMMARY_NUMBERS, saved["summary"].tolist(), strict=True))
    summary = Summary(**numbers | {"trained": int(numbers["trained"])}, released=tuple(saved["released"].tolist()))
    weight, epochs = saved["amount"].tolist()
    timings = Timings(*saved["timings"].tolist())
    sent = {name.removeprefix(_SENT): np.array(saved[name]) for name in saved if name.startswith(_SENT)}
    part = np.array(saved["part"]) if "part" in saved else None
    update = np.array(saved["update"])
    share = float(saved["batch_share"]) if "batch_share" in saved else 1.0
    report = ClientReport(
        client, update, weight, epochs, summary, timings, arrays=sent, part=part, batch_share=share
    )  # fmt: skip
    return PendingReport(report, int(saved["round"]), float(saved["arrives_s"]))


class ClassCounts:
    """Counts, over all rounds and clients that trained, the samples of each class that were held and trained.

    Only a simulator can count them, because it has the labels of all clients. Without sample selection both counts have
    the same proportions.

    Args:
        labels: Returns the labels of a client's samples, as integers from 0. Negative ones, which training ignores, are
            not counted.
    """

    def __init__(self, labels: Callable[[str], ArrayLike]) -> None:
        self._labels = cache(lambda client: np.asarray(labels(client)).astype(np.int32))
        self.held, self.trained = np.zeros((2, 0), dtype=np.int64)

    def note(self, client: str, seen: IndexArray) -> None:
        """Count one training of a client.

        Args:
            client: The client's id.
            seen: Indices of the samples that it trained.
        """
        labels = self._labels(client)
        trained = labels[seen]
        self.held = _add_counts(self.held, np.bincount(labels[labels >= 0]))
        self.trained = _add_counts(self.trained, np.bincount(trained[trained >= 0], minlength=len(self.held)))

    def to_arrays(self) -> dict[str, Any]:
        """Return the counts as arrays."""
        return {HELD: self.held, TRAINED: self.trained}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Restore what `to_arrays` returned."""
        self.held, self.trained = arrays[HELD].copy(), arrays[TRAINED].copy()


def _add_counts(counts: IndexArray, more: IndexArray) -> IndexArray:
    """Add two arrays of counts per class; the shorter one is padded with zeros."""
    total = np.zeros(max(len(counts), len(more)), dtype=np.int64)
    total[: len(counts)] += counts
    total[: len(more)] += more
    return total


def seen_losses(trained: Sequence[TrainResult]) -> SeenLosses | None:
    """Return quantiles of the losses of all samples of a round, each the first time it is seen.

    Only a simulator can compute them. They are recorded for reports; they never reach the server or change a run.

    Args:
        trained: The results of all trainings of the round.

    Returns:
        The 10%, 50% and 90% quantiles; None if there is no finite loss.

    >>> one = TrainResult("ann", np.zeros(2), np.arange(11), np.linspace(0.0, 1.0, 11))
    >>> [round(loss, 6) for loss in seen_losses([one])], seen_losses([])
    ([0.1, 0.5, 0.9], None)
    """
    losses = np.concatenate([each.losses for each in trained]) if trained else np.zeros(0)
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return None
    low, median, high = np.quantile(finite.astype(np.float64), QUANTILES).tolist()
    return low, median, high
