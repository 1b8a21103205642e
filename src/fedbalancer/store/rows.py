"""The rows of a run's tables. The fields of each kind of row are the columns of its table: nothing else lists
them, whether rows are made, written or read."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, get_args, get_type_hints

from fedbalancer.core.sums import total
from fedbalancer.core.types import Evaluation, RoundResult, ServerState, Timings
from fedbalancer.store.effort import device_s, sample_passes
from fedbalancer.store.losses import released_losses

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
    def of(
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
    def of(cls, state: ServerState, start_s: float, evaluation: Evaluation, at_s: float | None = None) -> EvalRow:
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
    def all_of(cls, result: RoundResult) -> list[ClientRow]:
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
