"""Unit and meaning of every column of a run's tables.

`fedbalancer list columns`, docs/reference/columns.md and the metadata of each Parquet file are made from this.
"""

from __future__ import annotations

from collections.abc import Mapping

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
