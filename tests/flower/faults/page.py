"""The page of the fault table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from flower.faults.checks import OVERHEAD_S, Verdict

FAULTS = {
    "kill-before": "ClientApp gets SIGKILL before it trains",
    "kill-during": "ClientApp gets SIGKILL after its first batch",
    "kill-after": "ClientApp gets SIGKILL after it trained, before it answers",
    "node-before": "SuperNode and all its processes get SIGKILL before training, then start again",
    "node-during": "the same in mid-training",
    "node-after": "the same when the report is ready",
    "sleep": "client sleeps in training until 8 s after the deadline",
    "late": "client trains in time, and answers 1 s after the deadline",
    "raise": "client raises an exception",
    "exit": "client leaves by `sys.exit`",
    "nan": "reply: a model of NaN",
    "shape": "reply: a wrong shape",
    "key": "reply: a wrong key",
    "weight-1e12": "reply: weight 1e12",
    "weight-85": "reply: weight -85",
    "empty": "reply: empty",
    "ten-times": "reply: ten times the size",
    "old-round": "reply: says that it is of the round before",
    "twice": "a second reply, with another model, follows the first",
    "garbage": "reply: metrics that are no protobuf message, under a valid head",
    "many-arrays": "reply: 300 arrays, where the model has one",
    "huge": "reply: 200 MB, where the model has 24 bytes",
    "hang": "reply: announced and never uploaded",
    "locked": "SuperLink's database locked for 12 s: it answers 500 to every request",
    "node-key": "SuperNode with a registered key gets SIGKILL and starts again with it (TLS, authentication)",
    "superlink": "SuperLink gets SIGKILL, starts again on its database; run submitted again under its key",
    "server-app": "ServerApp gets SIGKILL; run submitted again under its key",
    "clock-fast": "clock of a ClientApp an hour fast: it takes part as if nothing were wrong",
    "clock-slow": "clock of a ClientApp an hour slow: likewise",
}

ELSEWHERE = {
    "twice": "nothing; the SuperLink's log: Failed to store Message reply ...",
    "locked": "nobody to name; the ServerApp's log: the SuperLink failed at ...; asking again in ... s",
    "clock-fast": "nothing; its reports count",
    "clock-slow": "nothing; its reports count",
}
"""What there is to say of faults that the run does not notice."""

TOP = """# Faults on Flower

Made by `python benchmarks/flower_faults.py` on {day} with flwr {flwr}. `make soak` runs the same table as a
test, and `make test` a short set of it. Every fault is committed by real processes on loopback: a SuperLink with a
database, SuperNodes that start one ClientApp process a message, a ServerApp with `fedbalancer.flower.Strategy`. The
method is FedBalancer with a constant deadline, here of {least:.0f} to {most:.0f} s; the model is a small regression in
NumPy.
{note}
A fault is **survived** if all of this holds, checked afterwards against the clients' own journals:

- the round ended no later than its deadline plus {overhead:g} s;
- the new model is the weighted mean of the reports that the run says it counted, each counted exactly once, worked out
  anew from what the clients noted that they sent; the offender's is not among them, and no report of a good client is
  missing that left it a third of the deadline or more before the round closed;
- the log names the offender, by client and round (of a second reply: the SuperLink's log, by message);
- the run finished all its rounds, resumed where its server had died;
- every model was finite.

| fault | tried | survived | beyond the deadline, most (s) | what the log says |
|---|---:|---:|---:|---|
"""

BOTTOM = """
**{tried} tried, {survived} survived.** Over all rounds with a fault that went to their deadline, the round closed
{median:.2f} s after it in the median and {most:.2f} s at most; a negative number in the table means that everybody had
answered before.

What Flower does itself, and what that means:

- A second reply to the same message is refused by the SuperLink, which logs the message that it answers; the strategy
  would drop it, too. A SuperNode that finds a second reply too late gets out of step by one message, and its client
  answers too late from then on, until the SuperNode is started again.
- A ClientApp that is killed, or leaves, is noticed by its SuperNode after about a minute. Until then the node takes no
  new work: its client is asked again when the message has expired, and does not answer. Rounds keep their deadlines.
- A SuperNode that restarts without authentication is a new node. Its client is known by its own id (`client-id`), keeps
  its loss list on its disk, and is the same row of the ledger.
- A SuperNode that restarts with its key is refused (exit code 305) until the SuperLink takes the old one for dead,
  about a minute: let the service manager restart it.
- A run whose ServerApp or SuperLink died stays dead in Flower. Submit it again: with the same `run_key` it goes on from
  its last checkpoint. The rounds that were done are not done again.
- Clocks: orders carry durations, and replies are dated on the server's clock. The clocks here were shifted in the
  ClientApp (`time.time` and `datetime.now`, by a `sitecustomize` module). The clock of a SuperNode must be right: the
  SuperLink refuses one that is more than 5 s fast or 5 min slow (status 401), also without authentication. Two that
  were an hour off never got in; that they were not tried further is why only ClientApps are in the table.
- A reply is stored by the SuperLink before the server can look at it. The server asks how many objects it has, and
  downloads no reply with more arrays than the model has, nor more than twice the model's bytes and 1 MiB. What it
  costs the SuperLink's disk and memory is a matter for a proxy in front of it: the SuperLink accepts anything.
- While the SuperLink stores a reply of thousands of objects, its database is locked (here for 1 to 3 s per thousand),
  and after 5 s it answers 500 to others. The server repeats its requests for two minutes. SuperNodes that got such an
  answer do nothing more, though their processes go on: restart them. A reply that the SuperLink was about to hand out
  in that moment may be lost. If the lock lasts for 40 s or longer, the SuperLink takes the ServerApp for dead and ends
  the run: submit it again.
"""


def page(found: Sequence[Verdict], note: str = "") -> str:
    """The page, with a row for every fault that was tried. A `note` says what was special about this time."""
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
