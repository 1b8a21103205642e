"""The fault table: a handful of federations of real processes, each with many faults."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from flower.faults.bed import Bed, lines, wait_for
from flower.faults.checks import DEADLINE_S, GONE, GOOD, Evidence, Verdict, verdict_of
from flower.faults.secure import SecureBed

HOUR_S = 3600.0
AGAIN_S = 8.0
"""Between two attempts to start a SuperNode whose key is refused."""
MANY_S = 10.0
"""What a round has in addition where five or more ClientApps start at once: all that can must be able to answer."""
LOCKED_S = 12.0
"""How long a database is locked: the SuperLink waits for 5 s."""
RETURN_ROUNDS = 6
"""Rounds after the last kill. A restarted client may need several on a busy machine before it finishes in time."""
PHONES = ("node-before", "node-during", "node-after")
"""Clients whose SuperNode is killed before, during and after their training."""


def answers(folder: Path, repeats: int) -> list[Verdict]:
    """Clients that answer, but wrongly; and clients whose clock is an hour off, which answer well."""
    scripts = {
        "bad0": ("nan", "shape", "key", "weight-1e12", "weight-85"),
        "bad1": ("twice", "empty", "ten-times", "raise", "old-round"),
    }
    with Bed(folder, 5 * repeats + 1, DEADLINE_S + MANY_S, 6) as bed:
        begin(bed, {client: ",".join(script * repeats) for client, script in scripts.items()},
              {"clock-fast": HOUR_S, "clock-slow": -HOUR_S}, repeats)  # fmt: skip
        bed.finish()
        return scripted(bed)


def deaths(folder: Path, repeats: int) -> list[Verdict]:
    """Clients that die or are silent. Flower needs a minute to find out that a ClientApp is gone; until then its node
    is deaf, and a round with it goes to its deadline."""
    silent = ("kill-before", "kill-during", "kill-after", "exit", "sleep", "late")
    with Bed(folder, lasting(90.0, DEADLINE_S + MANY_S) * repeats, DEADLINE_S + MANY_S, 8) as bed:
        begin(bed, {f"bad-{fault}": ",".join([fault] * repeats) for fault in silent})
        bed.finish()
        return scripted(bed)


def node_kills(folder: Path, repeats: int) -> list[Verdict]:
    """SuperNodes are killed before, during and after the training of their clients, and started again, without
    authentication: each comes back as another node, and must be the same client."""
    with Bed(folder, lasting(90.0, DEADLINE_S + MANY_S) * repeats + RETURN_ROUNDS, DEADLINE_S + MANY_S, 5) as bed:
        begin(bed, dict.fromkeys(PHONES, "slow," * 100))
        rounds = []
        while len(rounds) < repeats and not ending(bed):
            before = introductions(bed)
            rounds.append(kill_phones(bed))
            for phone in PHONES:
                bed.node(phone, "slow," * 100)
            wait_for("all are back", partial(all_back, bed, before))
        bed.finish()
        return [judged(bed, phone, phone, round) for round in rounds for phone in PHONES]


def node_restarts(folder: Path, repeats: int) -> list[Verdict]:
    """The SuperNode of an authenticated client is killed and started again with the same key. Flower refuses the key
    until it takes the old process for dead, about a minute; whatever keeps services alive has to try again."""
    with SecureBed(folder, lasting(120.0) * repeats + 2, DEADLINE_S, 3) as bed:
        begin(bed, {"phone": ""})
        rounds = []
        while len(rounds) < repeats and not ending(bed):
            rounds.append(opened(bed, ("phone",)))
            bed.kill("phone")
            until_accepted(bed, "phone")
        bed.finish()
        return [judged(bed, "node-key", "phone", round) for round in rounds]


def server_kills(folder: Path, repeats: int) -> list[Verdict]:
    """The ServerApp is killed, and the SuperLink, at moments of a round drawn at random; the run is submitted again
    under its key."""
    moments = random.Random(0)
    with Bed(folder, 4 * repeats + 3, DEADLINE_S, 2) as bed:
        begin(bed, {})
        hits: list[tuple[str, int]] = []
        for _ in range(repeats):
            for fault, kill in (("server-app", bed.kill_server_app), ("superlink", lambda: restart_link(bed))):
                hits.append((fault, resumed(bed, kill, moments.uniform(0.0, 6.0))))
        bed.finish()
        return [judged(bed, fault, "", round) for fault, round in hits]


def uploads(folder: Path, repeats: int) -> list[Verdict]:
    """Clients whose replies cannot be decoded, are too many objects or too large, or never end. The peak of
    the server's memory stays below the size of the large one. Each has to sit out before its next fault."""
    scripts = {"bad0": ("huge", "garbage"), "bad1": ("many-arrays",), "bad2": ("hang",)}
    with Bed(folder, 5 * repeats, DEADLINE_S + MANY_S, 5) as bed:
        begin(bed, {client: ",".join(script * repeats) for client, script in scripts.items()})
        bed.finish()
        peaks_mb = [line["peak_mb"] for line in lines(bed.runs / "models.jsonl")]
        grew = f"the server's memory grew by {peaks_mb[-1] - peaks_mb[0]:.0f} MB"
        found = scripted(bed)
        return [replace(one, wrong=(*one.wrong, grew)) for one in found] if peaks_mb[-1] - peaks_mb[0] > 100 else found


def locked(folder: Path, repeats: int) -> list[Verdict]:
    """Somebody else holds the lock of the SuperLink's database for longer than the SuperLink waits for it, so that it
    answers 500 to every request. A SuperNode that gets such an answer does nothing more, and is
    started again."""
    with Bed(folder, 2 * repeats + 2, DEADLINE_S + MANY_S, 2) as bed:
        begin(bed, {})
        rounds = []
        for _ in range(repeats):
            rounds.append(opened(bed, GOOD))
            bed.lock_database(LOCKED_S)
            for client in GOOD:
                bed.kill(client)
                bed.node(client)
        bed.finish()
        return [judged(bed, "locked", "", round) for round in rounds]


FEDERATIONS: dict[str, Callable[[Path, int], list[Verdict]]] = {
    "answers": answers,
    "deaths": deaths,
    "node_kills": node_kills,
    "node_restarts": node_restarts,
    "server_kills": server_kills,
    "uploads": uploads,
    "locked": locked,
}


def lasting(seconds: float, deadline_s: float = DEADLINE_S) -> int:
    """Return the number of rounds that last this long, plus one."""
    return 1 + math.ceil(seconds / deadline_s)


def ending(bed: Bed) -> bool:
    """Whether too few rounds are left for a fault and its aftermath."""
    return bool(bed.events("round", round=bed.rounds - 2))


def begin(bed: Bed, scripts: dict[str, str], clocks: dict[str, float] | None = None, repeats: int = 0) -> None:
    """Start all processes and submit the run."""
    bed.link()
    for client in GOOD:
        bed.node(client)
    for client, script in scripts.items():
        bed.node(client, script)
    for client, clock_s in (clocks or {}).items():
        bed.node(client, ",".join([client] * repeats), clock_s)
    bed.submit()


def scripted(bed: Bed) -> list[Verdict]:
    """One verdict for every fault that a client's journal says it has committed. A bad reply that never came has not
    been tried: so it goes with what a client sends that is behind with its work. Nor has what was done in a round
    that a killed server had to do again."""
    evidence = evidence_of(bed)
    began = [line for line in evidence.journal if line["what"] == "began" and line["fault"] not in ("good", "slow")]
    done = [
        line
        for line in began
        if line["run"] == evidence.run_of(line["round"])
        and (line["fault"] in GONE or evidence.arrived(line["client"], line["round"]))
    ]
    return [verdict_of(evidence, bed.rounds, line["fault"], line["client"], line["round"]) for line in done]


def judged(bed: Bed, fault: str, client: str, round: int) -> Verdict:
    """The verdict on something that was done to a client's node, or to the server."""
    evidence = evidence_of(bed)
    verdict = verdict_of(evidence, bed.rounds, fault, client, round)
    later = [number for (number, who), how in evidence.outcome.items() if who == client and how == "completed"]
    if client and not any(number > round for number in later):
        verdict = replace(verdict, wrong=(*verdict.wrong, f"{client} did not return"))
    return verdict


def evidence_of(bed: Bed) -> Evidence:
    return Evidence(bed.run_folder, bed.journal, bed.runs / "models.jsonl")


def opened(bed: Bed, clients: Sequence[str], least: int = 1) -> int:
    """Wait for a round that has only just begun, with all of these clients and at least this number; its number."""
    before = len(bed.events("round"))

    def found() -> int:
        last = bed.events("round")[before:][-1:]
        return next((line["round"] for line in last if {*clients} <= {*line["cohort"]} and line["round"] >= least), 0)

    return int(wait_for(f"a round with {', '.join(clients)}", found))


def kill_phones(bed: Bed) -> int:
    """Kill each in its moment of one round."""
    early, middle, late = PHONES
    round = opened(bed, PHONES)
    bed.kill(early)
    wait_for("training", lambda: any(line["round"] >= round for line in bed.did(middle, "began")))
    bed.kill(middle)
    wait_for("trained", lambda: any(line["round"] >= round for line in bed.did(late, "sent", "stopped")))
    bed.kill(late)
    return round


def introductions(bed: Bed) -> list[int]:
    """Return the number of greetings of each phone."""
    return [len(bed.events("client introduced", client=phone)) for phone in PHONES]


def all_back(bed: Bed, before: Sequence[int]) -> bool:
    return all(now > then for now, then in zip(introductions(bed), before, strict=True))


def until_accepted(bed: Bed, client: str) -> None:
    """Start a SuperNode again and again until the SuperLink lets it in, and its client is asked to train."""
    asked = len(bed.did(client, "began"))

    def trains() -> bool:
        if client not in bed.processes or bed.processes[client].poll() is not None:
            time.sleep(AGAIN_S)
            bed.node(client)
        return len(bed.did(client, "began")) > asked

    wait_for(f"{client} in a round", trains)


def restart_link(bed: Bed) -> None:
    bed.kill_only("superlink")
    time.sleep(1.0)
    bed.link()


def resumed(bed: Bed, kill: Callable[[], None], after_s: float) -> int:
    """Kill during a round, submit again and wait until the run resumes; returns that round."""
    last = max((line["round"] for line in bed.events("round")), default=1)
    opened(bed, (), least=last + 1)  # so that there is something to resume, and more of it every time
    time.sleep(after_s)
    round, times = int(bed.events("round")[-1]["round"]), len(evidence_of(bed).resumed())
    kill()
    bed.submit()
    wait_for("the run resumes", lambda: len(evidence_of(bed).resumed()) > times)
    return round
