"""The rows of a run's tables: their columns, and how they are computed from a round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, get_args, get_type_hints

from fedbalancer.core.types import ClientReport, Evaluation, FailedClient, Order, RoundResult, ServerState, Timings
from fedbalancer.core.types.arrays import total

ROUNDS, SECONDS = "rounds", "seconds"
"""What decided that a model was evaluated: that so many rounds were over, or that the clock came to a grid time."""


class RoundRow(NamedTuple):
    """A row of rounds.parquet. The ratios are those that the round was planned with. `device_s` are the seconds that
    all devices of the cohort were busy, `sample_passes` the samples times epochs that they trained, both with what was
    in vain; None in rounds that an older version recorded. `deadline_low_s` and `deadline_high_s` are dl and dh, where
    the method has them; the losses are what clients released (see `Losses`). Those that were `seen` are of the samples
    that were trained on, and known to a simulator alone."""

    round: int
    start_s: float
    end_s: float
    deadline_s: float
    loss_threshold: float
    loss_threshold_ratio: float
    deadline_ratio: float
    selected: int
    completed: int
    samples: int
    epochs: float
    utility: float | None
    down_bytes: int
    up_bytes: int
    device_s: float | None = None
    sample_passes: float | None = None
    deadline_low_s: float | None = None
    deadline_high_s: float | None = None
    loss_low: float | None = None
    loss_mean: float | None = None
    loss_high: float | None = None
    seen_loss_p10: float | None = None
    seen_loss_p50: float | None = None
    seen_loss_p90: float | None = None

    @classmethod
    def from_round(
        cls, before: ServerState, after: ServerState, result: RoundResult,
        seen: tuple[float, float, float] | None = None,
    ) -> RoundRow:  # fmt: skip
        """The row of the round that led from one state to the next; `seen` are percentiles of the losses of the samples
        that were trained on, where somebody knows them."""
        order, reports, losses = result.plan.order, result.reports, released_losses(result)
        low_s, high_s = result.plan.deadline_bounds_s or (None, None)
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
            device_s=device_s(result),
            sample_passes=sample_passes(result),
            deadline_low_s=low_s,
            deadline_high_s=high_s,
            loss_low=losses.low,
            loss_mean=losses.mean,
            loss_high=losses.high,
            **dict(zip(("seen_loss_p10", "seen_loss_p50", "seen_loss_p90"), seen or (None,) * 3, strict=True)),
        )


class EvalRow(NamedTuple):
    """A row of evals.parquet: the model that existed at `clock_s`, made by a round that began at `start_s`. By the
    schedule "rounds" that is when the round ended, by "seconds" a time of the grid."""

    round: int
    start_s: float
    clock_s: float
    accuracy: float
    loss: float
    schedule: str = ROUNDS

    @classmethod
    def from_evaluation(
        cls, state: ServerState, start_s: float, evaluation: Evaluation, at_s: float | None = None
    ) -> EvalRow:
        """The row of an evaluation of the model in `state`; `at_s` is the time of the grid that asked for it."""
        found = (evaluation.accuracy, evaluation.loss)
        if at_s is None:
            return cls(state.round, start_s, state.clock_s, *found)
        return cls(state.round, start_s, at_s, *found, SECONDS)


JOINED = "joined"
"""What became of a client whose report was late and counts in this round."""


class ClientRow(NamedTuple):
    """A row of clients.parquet: how a round went for one of the clients that were selected for it. One whose report
    comes late has two where that counts: `under way` in its own round, without times, and `joined` in the round in
    which its report came, with all of them. `why` says of a report that was not believed which field has which value,
    and what the rule is; of others nothing."""

    round: int
    client: str
    download_s: float
    forward_s: float
    train_s: float
    upload_s: float
    paused_s: float
    epochs: float
    samples: int
    outcome: str
    why: str = ""

    @classmethod
    def from_round(cls, result: RoundResult) -> list[ClientRow]:
        """The rows of a round, in order of client id."""
        number = result.plan.order.round
        rows = [
            cls._of(number, r.client, r.timings, r.epochs, r.summary.trained, JOINED if r.staleness else "completed")
            for r in result.reports
        ]
        rows += [cls._of(number, m.client, m.timings, 0.0, m.samples, m.why, m.problem) for m in result.missing]
        return sorted(rows, key=lambda row: row.client)

    @classmethod
    def _of(
        cls, number: int, client: str, t: Timings, epochs: float, samples: int, outcome: str, why: str = ""
    ) -> ClientRow:
        times_s = (t.download_s, t.forward_s, t.train_s, t.upload_s, t.paused_s)
        return cls(number, client, *times_s, epochs, samples, outcome, why)


class PopulationRow(NamedTuple):
    """A row of population.parquet: one client, and how well the model that existed at `clock_s` does on its own data
    (None: not evaluated). `device` is its class, "" if that is not known."""

    client: str
    samples: int
    device: str
    clock_s: float
    accuracy: float | None


class ClassRow(NamedTuple):
    """A row of classes.parquet: of one class, over all rounds up to `clock_s`, how many samples the clients that
    trained held, and how many of them they trained on."""

    label: int
    held: int
    trained: int
    clock_s: float


class PrivacyRow(NamedTuple):
    """A row of privacy.parquet: the releases of a client, and their epsilon for one `unit` (sample, loss or client) at
    `delta`, of the metadata only. `model_epsilon` is that of the models for one client, and `whole_epsilon` of both
    together for one `unit`; infinite unless noise is added to the model and no policy steers other clients by the
    client's report. None where it could not be computed."""

    client: str
    releases: int
    epsilon: float | None
    delta: float
    unit: str
    mechanism: str
    model_epsilon: float | None = None
    whole_epsilon: float | None = None


Row: TypeAlias = RoundRow | EvalRow | ClientRow | PopulationRow | ClassRow | PrivacyRow


def schema_of(kind: type[Row]) -> dict[str, type]:
    """The columns of a table with their Python types, as polars takes them.

    >>> schema_of(EvalRow)["accuracy"], schema_of(RoundRow)["utility"]
    (<class 'float'>, <class 'float'>)
    """
    return {name: (get_args(hint) or (hint,))[0] for name, hint in get_type_hints(kind).items()}


def nullable_in(kind: type[Row]) -> frozenset[str]:
    """The columns in which a value may be missing.

    >>> sorted(nullable_in(RoundRow))[:3]
    ['deadline_high_s', 'deadline_low_s', 'device_s']
    """
    return frozenset(name for name, hint in get_type_hints(kind).items() if type(None) in get_args(hint))


Glossary = Mapping[str, tuple[str, str]]
"""By column: unit ("" where it has none) and meaning."""

RUN: Glossary = {
    "task": ("", "name of the task"),
    "method": ("", "name of the method"),
    "seed": ("", "seed of the run"),
}
"""The last columns of every file: which run a row is of."""

_ROUND = {"round": ("", "number of the round; the first is 1")}
_CLIENT = {"client": ("", "id of the client")}

TABLES: Mapping[str, Glossary] = {
    "rounds": {
        **_ROUND,
        "start_s": ("s", "simulated clock at the round's start"),
        "end_s": ("s", "simulated clock at its end"),
        "deadline_s": ("s", "deadline of the round (ddl), from its start; infinite if it waits"),
        "loss_threshold": ("loss", "samples over it are preferred (lt)"),
        "loss_threshold_ratio": ("0 to 1", "where lt lies between the lowest and the highest loss (ltr)"),
        "deadline_ratio": ("0 to 1", "where ddl lies between dl and dh (ddlr)"),
        "selected": ("clients", "clients of the cohort"),
        "completed": ("clients", "clients whose report came in time"),
        "samples": ("samples", "samples that the completed clients trained on"),
        "epochs": ("epochs", "mean epochs of the completed clients"),
        "utility": ("loss/s", "what the ratio control compares (U); null where there is none"),
        "down_bytes": ("bytes", "sent to the cohort"),
        "up_bytes": ("bytes", "received from it"),
        "device_s": ("s", "seconds that all devices of the cohort were busy, those in vain included"),
        "sample_passes": ("samples x epochs", "training of the whole cohort, that in vain included"),
        "deadline_low_s": ("s", "dl, where the method has it"),
        "deadline_high_s": ("s", "dh, where the method has it"),
        "loss_low": ("loss", "lowest loss that clients released"),
        "loss_mean": ("loss", "mean loss that clients released"),
        "loss_high": ("loss", "highest loss that clients released"),
        "seen_loss_p10": (
            "loss",
            "10th percentile of the losses of samples as they were trained on; simulator only, not of private runs",
        ),
        "seen_loss_p50": ("loss", "their median"),
        "seen_loss_p90": ("loss", "their 90th percentile"),
        **RUN,
    },
    "evals": {
        "round": ("", "rounds that the evaluated model has behind it; 0 is the first model"),
        "start_s": ("s", "simulated clock at the start of the round that made the model"),
        "clock_s": ("s", "simulated clock of the evaluation"),
        "accuracy": ("0 to 1", "share of the test samples that are classified rightly"),
        "loss": ("loss", "mean loss on the test samples"),
        "schedule": ("", "why it was evaluated: rounds (so many were over) or seconds (a time of the grid)"),
        **RUN,
    },
    "clients": {
        **_ROUND,
        **_CLIENT,
        "download_s": ("s", "seconds to receive the model"),
        "forward_s": ("s", "seconds of the pass that makes the loss list"),
        "train_s": ("s", "seconds of training"),
        "upload_s": ("s", "seconds to send the update"),
        "paused_s": ("s", "seconds in which the device was not available"),
        "epochs": ("epochs", "epochs trained, of which the last may be partial"),
        "samples": ("samples", "samples selected for training"),
        "outcome": ("", "completed, joined (late, in the round in which it came), or why there is no report"),
        "why": ("", "of a rejected report: the field, its value and the rule; of a client whose app failed: its error"),
        **RUN,
    },
    "population": {
        **_CLIENT,
        "samples": ("samples", "samples that the client holds"),
        "device": ("", "class of its device"),
        "clock_s": ("s", "simulated clock of the evaluated model"),
        "accuracy": ("0 to 1", "of that model on the client's own data; null: not evaluated"),
        **RUN,
    },
    "classes": {
        "label": ("", "the class, as the data number it"),
        "held": ("samples", "samples of it that clients held when they trained, summed over all their rounds"),
        "trained": ("samples", "of these, the samples that they trained on"),
        "clock_s": ("s", "simulated clock up to which was counted"),
        **RUN,
    },
    "privacy": {
        **_CLIENT,
        "releases": ("", "how often it told of its losses"),
        "epsilon": ("epsilon", "privacy loss of its metadata for one unit"),
        "delta": ("delta", "of all epsilons"),
        "unit": ("", "what is hidden: one sample, loss or client"),
        "mechanism": ("", "how noise is added"),
        "model_epsilon": (
            "epsilon",
            "privacy loss by the models for one client; infinite without noise, or where reports steer others",
        ),
        "whole_epsilon": ("epsilon", "of both together for one unit"),
        **RUN,
    },
}
"""By the name of the file, in the order of its columns."""


def markdown() -> str:
    """The text of docs/reference/columns.md."""
    parts = [
        "# Columns",
        "Every column of a run folder's tables with its unit. `fedbalancer list columns` prints the same, and each "
        "file has it in its own metadata:",
        '    json.loads(polars.read_parquet_metadata("rounds.parquet")["fedbalancer.columns"])["deadline_s"]',
        "All rows of all runs, with their task, method and seed:",
        '    polars.read_parquet("runs/compare-watch/**/rounds.parquet")',
    ]
    for table, columns in TABLES.items():
        rows = [f"| `{name}` | {unit} | {meaning} |" for name, (unit, meaning) in columns.items()]
        parts += [f"## {table}.parquet", "\n".join(["| column | unit | meaning |", "|:--|:--|:--|", *rows])]
    return "\n\n".join(parts) + "\n"


LATE = "late"
"""Why a client is missing that finished after the quorum was full."""


def device_s(result: RoundResult) -> float:
    """Seconds that all devices of the cohort were busy: download, forward pass, training and upload."""
    made_it = total(_busy_s(report) for report in result.reports)
    deadline_s = result.plan.order.deadline_s
    return made_it + total(
        _busy_s(each) if each.why == LATE else min(_busy_s(each), deadline_s) for each in result.missing
    )


def sample_passes(result: RoundResult) -> float:
    """Samples times epochs, trained by all of the cohort."""
    order = result.plan.order
    made_it = total(_an_epoch(report.summary.trained, order) * max(report.epochs, 1.0) for report in result.reports)
    return made_it + total(_wasted(missing, order) for missing in result.missing)


def _busy_s(client: ClientReport | FailedClient) -> float:
    """Without the time in which the device was not available."""
    spent = client.timings
    return spent.download_s + spent.forward_s + spent.train_s + spent.upload_s


def _an_epoch(samples: int, order: Order) -> int:
    """Samples that one epoch trains. Of a client that trained less than one epoch, `samples` are those it saw."""
    return samples if order.epoch_batches is None else min(samples, order.epoch_batches * order.batch_size)


def _wasted(missing: FailedClient, order: Order) -> float:
    """Sample passes of a client that did not make it: those that it had time for."""
    spent = missing.timings
    if spent.train_s <= 0:
        return 0.0
    left_s = order.deadline_s - spent.download_s - spent.forward_s
    share = 1.0 if missing.why == LATE else min(max(left_s / spent.train_s, 0.0), 1.0)
    return share * order.epochs * _an_epoch(missing.samples, order)


class Losses(NamedTuple):
    """The mean of the lowest losses that the clients released, the mean loss of their samples, and the mean of the
    highest; None where nobody released any."""

    low: float | None = None
    mean: float | None = None
    high: float | None = None


def released_losses(result: RoundResult) -> Losses:
    """Of the reports that arrived; noise that was added for privacy is in them."""
    told = [report.summary for report in result.reports if report.summary.loss_count > 0]
    if not told:
        return Losses()
    low = math.fsum(each.loss_low for each in told) / len(told)
    high = math.fsum(each.loss_high for each in told) / len(told)
    mean = math.fsum(each.loss_sum for each in told) / math.fsum(each.loss_count for each in told)
    return Losses(*(value if math.isfinite(value) else None for value in (low, mean, high)))
