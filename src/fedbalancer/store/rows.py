"""The rows of a run's tables: their columns, and how they are computed from a round.

Every column is declared once, as a field with its type, unit and meaning. The schema of the Parquet files, their
metadata, `fedbalancer list columns`, docs/reference/columns.md and the report read these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_type_hints

import numpy as np

from fedbalancer.core.metrics import Metric
from fedbalancer.core.types import (
    ClientReport,
    Evaluation,
    FailedClient,
    Order,
    RoundResult,
    ServerState,
    Summary,
    Timings,
)
from fedbalancer.core.types.round import total

ROUNDS, SECONDS = "rounds", "seconds"
"""Schedules of an evaluation: after a number of rounds, or at a time of the grid."""
JOINED = "joined"
"""Outcome of a client whose late report counts in this round."""
LATE = "late"
"""Outcome of a client that finished after the round had all the reports that it waits for."""
TRAIN_DATA, TEST_DATA = "train", "test"
"""Data on which a client's model is evaluated: its training data, or its own test data."""
METRICS = "metrics"
"""Field of a row with further metrics, which have a column each."""


class Column(NamedTuple):
    """The declaration of a column, besides its name and type.

    Args:
        unit: Unit of the values; "" if they have none.
        meaning: What the column holds, in one line.
    """

    unit: str
    meaning: str


_Round: TypeAlias = Annotated[int, Column("", "round number; the first round is 1")]
_Client: TypeAlias = Annotated[str, Column("", "id of the client")]


class RunColumns(NamedTuple):
    """The last columns of every file, which name the run of a row. They are null if the run does not have them."""

    task: Annotated[str | None, Column("", "name of the task")]
    method: Annotated[str | None, Column("", "name of the method")]
    seed: Annotated[int | None, Column("", "seed of the run")]


class RoundRow(NamedTuple):
    """A row of rounds.parquet: one round."""

    round: _Round
    start_s: Annotated[float, Column("s", "clock at the start of the round")]
    end_s: Annotated[float, Column("s", "clock at the end of the round")]
    deadline_s: Annotated[float, Column("s", "deadline (ddl), counted from the start of the round; infinite: none")]
    loss_threshold: Annotated[float, Column("loss", "loss threshold (lt): samples with a higher loss are preferred")]
    loss_threshold_ratio: Annotated[
        float, Column("0 to 1", "position of lt between the lowest and the highest loss (ltr) in the plan")
    ]
    deadline_ratio: Annotated[float, Column("0 to 1", "position of ddl between dl and dh (ddlr) in the plan")]
    selected: Annotated[int, Column("clients", "clients selected for the round")]
    completed: Annotated[int, Column("clients", "clients whose report counts in the round")]
    samples: Annotated[int, Column("samples", "samples that the completed clients trained on")]
    epochs: Annotated[float, Column("epochs", "mean number of epochs of the completed clients")]
    utility: Annotated[float | None, Column("loss/s", "utility (U) that the ratio control compares; null: not used")]
    down_bytes: Annotated[int, Column("bytes", "data sent to the selected clients")]
    up_bytes: Annotated[int, Column("bytes", "data received from the selected clients")]
    device_s: Annotated[
        float | None, Column("s", "time that the selected devices worked, in total, including discarded work")
    ] = None
    sample_passes: Annotated[
        float | None, Column("samples x epochs", "training of all selected clients, including discarded work")
    ] = None
    deadline_low_s: Annotated[float | None, Column("s", "shortest deadline (dl); null: the method has none")] = None
    deadline_high_s: Annotated[float | None, Column("s", "longest deadline (dh); null: the method has none")] = None
    loss_low: Annotated[float | None, Column("loss", "mean of the lowest losses that the clients reported")] = None
    loss_mean: Annotated[float | None, Column("loss", "mean loss per sample that the clients reported")] = None
    loss_high: Annotated[float | None, Column("loss", "mean of the highest losses that the clients reported")] = None
    seen_loss_p10: Annotated[
        float | None,
        Column("loss", "10th percentile of the losses of trained samples; simulator only, not in private runs"),
    ] = None
    seen_loss_p50: Annotated[float | None, Column("loss", "median of the same losses")] = None
    seen_loss_p90: Annotated[float | None, Column("loss", "90th percentile of the same losses")] = None

    @classmethod
    def from_round(
        cls, before: ServerState, after: ServerState, result: RoundResult,
        seen: tuple[float, float, float] | None = None,
    ) -> RoundRow:  # fmt: skip
        """Compute the row of a round.

        Args:
            before: The server's state before the round.
            after: The server's state after the round.
            result: What the engine reported.
            seen: 10th, 50th and 90th percentile of the losses of trained samples. None if they are unknown.
        """
        order, reports, losses = result.plan.order, result.reports, summarize_losses(result)
        low_s, high_s = result.plan.deadline_bounds_s or (None, None)
        p10, p50, p90 = seen or (None, None, None)
        return cls(
            round=order.round,
            start_s=before.clock_s,
            end_s=after.clock_s,
            deadline_s=order.deadline_s,
            loss_threshold=order.loss_threshold,
            loss_threshold_ratio=before.pace.loss_threshold_ratio,
            deadline_ratio=before.pace.deadline_ratio,
            selected=len(result.plan.cohort),
            completed=len(reports),
            samples=sum(report.summary.trained for report in reports),
            epochs=total(report.epochs for report in reports) / len(reports) if reports else 0.0,
            utility=after.pace.utility,
            down_bytes=result.down_bytes,
            up_bytes=result.up_bytes,
            device_s=sum_device_seconds(result),
            sample_passes=count_sample_passes(result),
            deadline_low_s=low_s,
            deadline_high_s=high_s,
            loss_low=losses.low,
            loss_mean=losses.mean,
            loss_high=losses.high,
            seen_loss_p10=p10,
            seen_loss_p50=p50,
            seen_loss_p90=p90,
        )


class EvalRow(NamedTuple):
    """A row of evals.parquet: one evaluation of the model that existed at `clock_s`."""

    round: Annotated[int, Column("", "rounds that the model has been trained for; 0: the initial model")]
    start_s: Annotated[float, Column("s", "clock at the start of the round that produced the model")]
    clock_s: Annotated[float, Column("s", "clock of the evaluation")]
    accuracy: Annotated[
        float, Column("0 to 1", "share of test samples that are classified correctly; NaN: the task has no accuracy")
    ]
    loss: Annotated[float, Column("loss", "mean loss on the test samples")]
    schedule: Annotated[
        str, Column("", "reason for the evaluation: rounds (after a number of rounds) or seconds (a time of the grid)")
    ] = ROUNDS
    tested_clients: Annotated[
        int | None, Column("clients", "clients whose own test data were evaluated; null: the task has none")
    ] = None
    client_mean: Annotated[
        float | None, Column("metric", "mean over these clients of the run's main metric; every client counts equally")
    ] = None
    client_std: Annotated[float | None, Column("metric", "standard deviation over the same clients")] = None
    client_worst_decile: Annotated[
        float | None, Column("metric", "value that nine in ten of the same clients reach")
    ] = None
    client_best_decile: Annotated[
        float | None, Column("metric", "value that one in ten of the same clients reaches")
    ] = None
    metrics: Mapping[str, float] = {}

    @classmethod
    def from_evaluation(
        cls, state: ServerState, start_s: float, evaluation: Evaluation, at_s: float | None = None,
        clients: ClientSpread | None = None,
    ) -> EvalRow:  # fmt: skip
        """Return the row of an evaluation.

        Args:
            state: The state with the evaluated model.
            start_s: Clock at the start of the round that produced the model.
            evaluation: The loss and the metrics.
            at_s: Time of the grid that asked for the evaluation. None: it follows a round.
            clients: The main metric on the clients' own test data. None: they have none.
        """
        clock_s, schedule = (state.clock_s, ROUNDS) if at_s is None else (at_s, SECONDS)
        spread = clients if clients is not None else ClientSpread()
        return cls(
            state.round, start_s, clock_s, evaluation.accuracy, evaluation.loss, schedule, *spread,
            metrics=evaluation.metrics,
        )  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EvalRow:
        """Return the row with these values by column; columns without a field are further metrics."""
        fields = {name: value for name, value in values.items() if name in cls._fields}
        return cls(**fields, metrics={name: value for name, value in values.items() if name not in fields})

    def to_dict(self) -> dict[str, Any]:
        """Return the values by column."""
        return flatten(self)

    def value(self, metric: str) -> float:
        """Return the value of a metric by its name; NaN if it was not computed."""
        value = self.to_dict().get(metric)
        return math.nan if value is None else float(value)


class ClientSpread(NamedTuple):
    """A metric over the clients that have test data of their own; None without such clients.

    Args:
        clients: Number of clients.
        mean: Mean; every client counts equally.
        std: Standard deviation.
        worst_decile: Value that nine in ten clients reach.
        best_decile: Value that one in ten clients reaches.
    """

    clients: int | None = None
    mean: float | None = None
    std: float | None = None
    worst_decile: float | None = None
    best_decile: float | None = None

    @classmethod
    def of(cls, values: Iterable[float], metric: Metric) -> ClientSpread:
        """Summarize the values of clients; a value that is not finite is left out.

        Args:
            values: Value of every client.
            metric: The metric, whose direction decides which decile is the worst.

        Example:
            >>> ClientSpread.of([0.0, 1.0], Metric("mae"))
            ClientSpread(clients=2, mean=0.5, std=0.5, worst_decile=0.9, best_decile=0.1)
        """
        known = np.array([value for value in values if math.isfinite(value)], dtype=np.float64)
        if not len(known):
            return cls(0)
        low, high = np.quantile(known, [0.1, 0.9]).tolist()
        worst, best = (low, high) if metric.higher_is_better else (high, low)
        return cls(len(known), float(known.mean()), float(known.std()), worst, best)


def flatten(row: Row) -> dict[str, Any]:
    """Return the values of a row by column; further metrics become columns."""
    values = row._asdict()
    metrics = values.pop(METRICS, {})
    return {**values, **metrics}


class ClientRow(NamedTuple):
    """A row of clients.parquet: one selected client in one round.

    A client whose late report counts has two rows: "under way", without times, in the round that selected it, and
    "joined", with all times, in the round in which its report arrived.
    """

    round: _Round
    client: _Client
    download_s: Annotated[float, Column("s", "time to receive the model")]
    forward_s: Annotated[float, Column("s", "time of the forward pass that measures the losses")]
    train_s: Annotated[float, Column("s", "time of training")]
    upload_s: Annotated[float, Column("s", "time to send the update")]
    paused_s: Annotated[float, Column("s", "time that the device was not available")]
    epochs: Annotated[float, Column("epochs", "trained epochs; the last may be partial")]
    samples: Annotated[int, Column("samples", "samples selected for training")]
    outcome: Annotated[
        str, Column("", "completed, joined (a late report that counts in this round), or the reason for no report")
    ]
    why: Annotated[
        str, Column("", "details: field, value and rule of a rejected report, or the error of a failed client app")
    ] = ""

    @classmethod
    def from_round(cls, result: RoundResult) -> list[ClientRow]:
        """Return the rows of a round, sorted by client id."""
        number = result.plan.order.round
        rows = [
            cls._build(number, r.client, r.timings, r.epochs, r.summary.trained, JOINED if r.staleness else "completed")
            for r in result.reports
        ]
        rows += [cls._build(number, m.client, m.timings, 0.0, m.samples, m.why, m.problem) for m in result.missing]
        return sorted(rows, key=lambda row: row.client)

    @classmethod
    def _build(
        cls, number: int, client: str, t: Timings, epochs: float, samples: int, outcome: str, why: str = ""
    ) -> ClientRow:
        times_s = (t.download_s, t.forward_s, t.train_s, t.upload_s, t.paused_s)
        return cls(number, client, *times_s, epochs, samples, outcome, why)


class PopulationRow(NamedTuple):
    """A row of population.parquet: one client, and the quality of the model on its data."""

    client: _Client
    samples: Annotated[int, Column("samples", "samples of the client")]
    device: Annotated[str, Column("", "device class; empty: unknown")]
    clock_s: Annotated[float, Column("s", "clock of the evaluated model")]
    accuracy: Annotated[
        float | None, Column("0 to 1", "accuracy of that model on the client's data; null: not evaluated")
    ]
    loss: Annotated[float | None, Column("loss", "mean loss of that model on the same data")] = None
    tested_on: Annotated[
        str, Column("", "these data: test (the client's own test data) or train (its training data, if it has no test)")
    ] = TRAIN_DATA
    metrics: Mapping[str, float] = {}

    @classmethod
    def from_evaluation(
        cls, client: str, samples: int, device: str, clock_s: float, evaluation: Evaluation | None, has_test: bool
    ) -> PopulationRow:
        """Return the row of a client.

        Args:
            client: The client's id.
            samples: Its number of samples.
            device: Its device class; empty if unknown.
            clock_s: Clock of the evaluated model.
            evaluation: The loss and the metrics on its data. None: it was not evaluated.
            has_test: Whether the client has test data of its own.
        """
        values = {} if evaluation is None else {**evaluation.metrics, "accuracy": evaluation.accuracy}
        known = {name: value for name, value in values.items() if not math.isnan(value)}
        return cls(
            client, samples, device, clock_s, known.pop("accuracy", None),
            None if evaluation is None else evaluation.loss, TEST_DATA if has_test else TRAIN_DATA, known,
        )  # fmt: skip


class ClassRow(NamedTuple):
    """A row of classes.parquet: one class, counted over all rounds up to `clock_s`."""

    label: Annotated[int, Column("", "number of the class in the data")]
    held: Annotated[int, Column("samples", "samples of the class on the clients that trained, summed over rounds")]
    trained: Annotated[int, Column("samples", "number of these that were trained on")]
    clock_s: Annotated[float, Column("s", "clock at the end of the count")]


class PrivacyRow(NamedTuple):
    """A row of privacy.parquet: the privacy loss of one client. An epsilon is None if it could not be computed."""

    client: _Client
    releases: Annotated[int, Column("", "number of times that the client reported losses")]
    epsilon: Annotated[float | None, Column("epsilon", "privacy loss for one unit through the client's metadata")]
    delta: Annotated[float, Column("delta", "delta of all epsilons")]
    unit: Annotated[str, Column("", "what the noise hides: one sample, one loss or one client")]
    mechanism: Annotated[str, Column("", "mechanism that adds the noise")]
    model_epsilon: Annotated[
        float | None,
        Column(
            "epsilon",
            "privacy loss for one client through the models; infinite without noise, or if reports influence others",
        ),
    ] = None
    whole_epsilon: Annotated[
        float | None, Column("epsilon", "privacy loss for one unit through metadata and models together")
    ] = None


Row: TypeAlias = RoundRow | EvalRow | ClientRow | PopulationRow | ClassRow | PrivacyRow

TABLES: Mapping[str, type[Row]] = {
    "rounds": RoundRow,
    "evals": EvalRow,
    "clients": ClientRow,
    "population": PopulationRow,
    "classes": ClassRow,
    "privacy": PrivacyRow,
}
"""The rows of every table, by the name of its file without `.parquet`."""


def schema_of(kind: type[Row | RunColumns]) -> dict[str, type]:
    """Return the columns of a table with their Python types, for polars.

    >>> schema_of(EvalRow)["accuracy"], schema_of(RoundRow)["utility"]
    (<class 'float'>, <class 'float'>)
    """
    hints = get_type_hints(kind)
    hints.pop(METRICS, None)
    return {name: (get_args(hint) or (hint,))[0] for name, hint in hints.items()}


def nullable_in(kind: type[Row]) -> frozenset[str]:
    """Return the columns in which a value may be missing.

    >>> sorted(nullable_in(RoundRow))[:3]
    ['deadline_high_s', 'deadline_low_s', 'device_s']
    """
    return frozenset(name for name, hint in get_type_hints(kind).items() if type(None) in get_args(hint))


def columns_of(kind: type[Row]) -> dict[str, Column]:
    """Return unit and meaning of the columns of a file, in their order.

    >>> columns_of(EvalRow)["clock_s"]
    Column(unit='s', meaning='clock of the evaluation')
    """
    hints = get_type_hints(kind, include_extras=True) | get_type_hints(RunColumns, include_extras=True)
    hints.pop(METRICS, None)
    return {name: next(part for part in get_args(hint) if isinstance(part, Column)) for name, hint in hints.items()}


def columns_page() -> str:
    """Return the text of docs/reference/columns.md."""
    parts = [
        "# Columns",
        "The columns of a run folder's tables. The clock counts seconds since the start of the run: simulated seconds "
        "in the simulator, real seconds with Flower.",
        "`fedbalancer list columns` prints the same tables, and every file explains its columns in its metadata:",
        '    json.loads(polars.read_parquet_metadata("rounds.parquet")["fedbalancer.columns"])["deadline_s"]',
        "Every row names its task, method and seed, so the rows of many runs can be read at once:",
        '    polars.read_parquet("runs/compare-watch/**/rounds.parquet")',
        "evals.parquet and population.parquet also have a column for every further metric of the task, such as `f1` or "
        "`mae`. The main metric of a run is in its manifest.json.",
    ]
    for table, kind in TABLES.items():
        rows = [f"| `{name}` | {unit} | {meaning} |" for name, (unit, meaning) in columns_of(kind).items()]
        parts += [f"## {table}.parquet", "\n".join(["| column | unit | meaning |", "|:--|:--|:--|", *rows])]
    return "\n\n".join(parts) + "\n"


class Losses(NamedTuple):
    """The losses that the clients of a round reported; None if no client reported any.

    Args:
        low: Mean of the clients' lowest losses.
        mean: Mean loss per sample.
        high: Mean of the clients' highest losses.
    """

    low: float | None = None
    mean: float | None = None
    high: float | None = None


def summarize_losses(result: RoundResult) -> Losses:
    """Summarize the losses in the reports of a round, including any noise that was added for privacy."""
    summaries: list[Summary] = [report.summary for report in result.reports if report.summary.loss_count > 0]
    if not summaries:
        return Losses()
    low = math.fsum(each.loss_low for each in summaries) / len(summaries)
    high = math.fsum(each.loss_high for each in summaries) / len(summaries)
    mean = math.fsum(each.loss_sum for each in summaries) / math.fsum(each.loss_count for each in summaries)
    return Losses(*(value if math.isfinite(value) else None for value in (low, mean, high)))


def sum_device_seconds(result: RoundResult) -> float:
    """Return the time that all selected devices spent on download, forward pass, training and upload.

    A client that misses the deadline works until the deadline. A client that is late for the quorum still sends its
    update.
    """
    completed = total(_busy_s(report) for report in result.reports)
    deadline_s = result.plan.order.deadline_s
    return completed + total(
        _busy_s(each) if each.why == LATE else min(_busy_s(each), deadline_s) for each in result.missing
    )


def count_sample_passes(result: RoundResult) -> float:
    """Return samples times epochs, trained by all selected clients."""
    order = result.plan.order
    completed = total(
        _samples_per_epoch(report.summary.trained, order) * max(report.epochs, 1.0) for report in result.reports
    )
    return completed + total(_discarded_passes(missing, order) for missing in result.missing)


def _busy_s(client: ClientReport | FailedClient) -> float:
    """Return the working time, without the time that the device was not available."""
    spent = client.timings
    return spent.download_s + spent.forward_s + spent.train_s + spent.upload_s


def _samples_per_epoch(samples: int, order: Order) -> int:
    return min(samples, order.per_epoch(samples) * order.batch_size)


def _discarded_passes(missing: FailedClient, order: Order) -> float:
    """Return the sample passes that a client without a report had time for."""
    spent = missing.timings
    if spent.train_s <= 0:
        return 0.0
    left_s = order.deadline_s - spent.download_s - spent.forward_s
    share = 1.0 if missing.why == LATE else min(max(left_s / spent.train_s, 0.0), 1.0)
    return share * order.epochs * _samples_per_epoch(missing.samples, order)
