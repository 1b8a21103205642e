"""The text of docs/benchmarks/flower-faults.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from flower.faults.checks import OVERHEAD_S, Verdict

FAULTS = {
    "kill-before": "ClientApp killed (SIGKILL) before it trains",
    "kill-during": "ClientApp killed (SIGKILL) after its first batch",
    "kill-after": "ClientApp killed (SIGKILL) after it trained, before it answers",
    "node-before": "SuperNode and all its processes killed before training, then restarted",
    "node-during": "the same during training",
    "node-after": "the same when the report is ready",
    "sleep": "client sleeps in training until 8 s after the deadline",
    "late": "client trains in time, and answers 1 s after the deadline",
    "raise": "client raises an exception",
    "exit": "client calls `sys.exit`",
    "nan": "reply: a model of NaN",
    "shape": "reply: a wrong shape",
    "key": "reply: a wrong key",
    "weight-1e12": "reply: weight 1e12",
    "weight-85": "reply: weight -85",
    "empty": "reply: empty",
    "ten-times": "reply: ten times the size",
    "old-round": "reply: claims to be of the previous round",
    "twice": "a second reply with another model",
    "garbage": "reply: metrics that are not a protobuf message",
    "many-arrays": "reply: 300 arrays, where the model has one",
    "huge": "reply: 200 MB, where the model has 24 bytes",
    "hang": "reply: announced but never uploaded",
    "locked": "SuperLink's database locked for 12 s: it answers 500 to every request",
    "node-key": "SuperNode with a registered key killed and restarted (TLS, authentication)",
    "superlink": "SuperLink killed and restarted on its database; run submitted again with its key",
    "server-app": "ServerApp killed; run submitted again with its key",
    "clock-fast": "clock of a ClientApp an hour fast: it takes part normally",
    "clock-slow": "clock of a ClientApp an hour slow: it takes part normally",
}

ELSEWHERE = {
    "twice": "nothing; the SuperLink's log: Failed to store Message reply ...",
    "locked": "no client; the ServerApp's log: the SuperLink failed at ...; asking again in ... s",
    "clock-fast": "nothing; its reports count",
    "clock-slow": "nothing; its reports count",
}
"""Log texts for faults that the run does not notice."""

TOP = """# Faults on Flower

This page shows how runs on Flower survive faults. `python benchmarks/flower_faults.py` made it on {day} with flwr
{flwr}. `make soak` runs the same table as a test, and `make test` a short part of it. Real processes on loopback
cause every fault: a SuperLink with a database, SuperNodes that start one ClientApp process per message, and a
ServerApp with `fedbalancer.flower.Strategy`. The method is FedBalancer with a constant deadline of {least:.0f} to
{most:.0f} s. The model is a small regression in NumPy.
{note}
A fault is **survived** if all of this holds, checked against the clients' own journals:

- The round ended no later than {overhead:g} s after its deadline.
- The new model is the weighted mean of the reports that the run counted, each exactly once, recomputed from the
  journals.
- The faulty client's report is not among them, and no report is missing that a good client sent in the first two
  thirds of the round.
- The log names the faulty client and the round. For a second reply, the SuperLink's log names the message.
- The run finished all rounds, resumed if its server had died.
- Every model was finite.

| fault | tried | survived | seconds after the deadline, most | what the log says |
|---|---:|---:|---:|---|
"""

BOTTOM = """
**{tried} tried, {survived} survived.** Rounds with a fault that reached their deadline closed {median:.2f} s after it
in the median and {most:.2f} s at most. A negative number means that all clients had answered before the deadline.

What Flower does in these cases:

- **Second reply.** The SuperLink refuses a second reply to the same message and logs the message. A SuperNode that
  notices it late falls behind by one message: its client answers too late until the SuperNode restarts.
- **Killed ClientApp.** Its SuperNode notices after about a minute. Until then the node takes no new work. Rounds keep
  their deadlines.
- **SuperNode restart without authentication.** It becomes a new node. The client keeps its id (`client-id`), its loss
  list and its row of the ledger.
- **SuperNode restart with a key.** The SuperLink refuses it (exit code 305) until it considers the old process dead,
  about a minute. Let the service manager retry.
- **Dead ServerApp or SuperLink.** Flower does not resume the run. Submit it again: with the same `run_key` it
  continues from its last checkpoint.
- **Clocks.** Orders contain durations, and replies are dated by the server's clock. These tests shifted the clock of
  the ClientApp (`time.time` and `datetime.now`, with a `sitecustomize` module). The clock of a SuperNode must be
  right: the SuperLink refuses one that is more than 5 s fast or 5 min slow (status 401). Two SuperNodes whose clocks
  were an hour off never connected, so the table has ClientApps only.
- **Large replies.** The SuperLink stores every reply before the server can check it. The server downloads no reply
  with more arrays than the model, or with more than twice its bytes plus 1 MiB. To protect the SuperLink's disk and
  memory, put a proxy in front of it.
- **Replies of thousands of objects.** While the SuperLink stores one, its database is locked (1 to 3 s per thousand
  objects in these tests), and after 5 s it answers 500 to other requests. The server repeats its requests for two
  minutes. SuperNodes that get such an answer stop working although their processes run: restart them. A reply that
  the SuperLink was delivering at that moment can be lost. After 40 s the SuperLink considers the ServerApp dead and
  ends the run: submit it again.
"""


def page(found: Sequence[Verdict], note: str = "") -> str:
    """Build the page, with one row per fault that was tried. A `note` describes special circumstances."""
    day = datetime.now(UTC).strftime("%d %B %Y")
    deadlines_s = [verdict.deadline_s for verdict in found]
    top = TOP.format(
        day=day, flwr=version("flwr"), overhead=OVERHEAD_S, least=min(deadlines_s),
        most=max(deadlines_s), note=f"\n{note}\n" if note else "",
    )  # fmt: skip
    rows = [_row(fault, [verdict for verdict in found if verdict.fault == fault]) for fault in FAULTS]
    survived = sum(not verdict.wrong for verdict in found)
    beyond_s = [verdict.overhead_s for verdict in found if verdict.overhead_s > -0.5] or [0.0]
    bottom = BOTTOM.format(tried=len(found), survived=survived, median=statistics.median(beyond_s), most=max(beyond_s))
    return top + "".join(rows) + bottom


def _row(fault: str, found: Sequence[Verdict]) -> str:
    if not found:
        return ""
    survived, most_s = sum(not verdict.wrong for verdict in found), max(verdict.overhead_s for verdict in found)
    said = next((verdict.named for verdict in found if verdict.named), ELSEWHERE.get(fault, "")).replace("|", "/")
    return f"| {FAULTS[fault]} | {len(found)} | {survived} | {most_s:.2f} | {said[:160]} |\n"
