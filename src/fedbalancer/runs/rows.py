"""The rows that a round leaves in the run folder's tables."""

from __future__ import annotations

from typing import Any

from fedbalancer.types import Evaluation, RoundResult, ServerState, Timings


def round_row(before: ServerState, after: ServerState, result: RoundResult) -> dict[str, Any]:
    """A row of rounds.parquet; the ratios are those that the round was planned with."""
    order, reports = result.plan.order, result.reports
    return {
        "round": order.round,
        "start_s": before.clock_s,
        "end_s": after.clock_s,
        "deadline_s": order.deadline_s,
        "loss_threshold": order.loss_threshold,
        "loss_threshold_ratio": before.pace.loss_threshold_ratio,
        "deadline_ratio": before.pace.deadline_ratio,
        "selected": len(result.plan.cohort),
        "completed": len(reports),
        "samples": sum(report.summary.trained for report in reports),
        "epochs": sum(report.epochs for report in reports) / len(reports) if reports else 0.0,
        "utility": after.pace.utility,
        "down_bytes": result.down_bytes,
        "up_bytes": result.up_bytes,
    }


def eval_row(round: int, start_s: float, clock_s: float, evaluation: Evaluation) -> dict[str, Any]:
    """A row of evals.parquet."""
    return {
        "round": round,
        "start_s": start_s,
        "clock_s": clock_s,
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
    }


def client_rows(result: RoundResult) -> list[dict[str, Any]]:
    """The rows of clients.parquet, in order of client id."""
    number = result.plan.order.round
    rows = [_row(number, r.client, r.timings, r.epochs, r.summary.trained, "completed") for r in result.reports]
    rows += [_row(number, m.client, m.timings, 0.0, m.samples, m.why) for m in result.missing]
    return sorted(rows, key=lambda row: str(row["client"]))


def _row(number: int, client: str, timings: Timings, epochs: float, samples: int, outcome: str) -> dict[str, Any]:
    return {
        "round": number,
        "client": client,
        "download_s": timings.download_s,
        "forward_s": timings.forward_s,
        "train_s": timings.train_s,
        "upload_s": timings.upload_s,
        "paused_s": timings.paused_s,
        "epochs": epochs,
        "samples": samples,
        "outcome": outcome,
    }
