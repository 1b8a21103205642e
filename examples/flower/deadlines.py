"""Check the deadlines of a run: `python deadlines.py runs/gestures`. Exits with 1 if a round closed over 1 s late."""

import json
import sys
from pathlib import Path

SLACK_S = 1.0


def rounds(folder: Path) -> list[tuple[int, float, float, int]]:
    """Return (round, deadline, seconds until it closed, reports in time) of every round in a run's log."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    deadline_s = {event["round"]: event["deadline_s"] for event in events if event["event"] == "round"}
    closed = [event for event in events if event["event"] == "round closed"]
    return [(e["round"], deadline_s[e["round"]], e["seconds"], e["completed"]) for e in closed]


if __name__ == "__main__":
    table = rounds(Path(sys.argv[1]))
    print("round  deadline   closed  reports")
    for number, deadline_s, seconds, completed in table:
        late = "" if seconds <= deadline_s + SLACK_S else "  late!"
        print(f"{number:5} {deadline_s:7.1f} s {seconds:6.1f} s {completed:8}{late}")
    held = sum(seconds <= deadline_s + SLACK_S for _, deadline_s, seconds, _ in table)
    print(f"{held} of {len(table)} deadlines held, {len({row[1] for row in table})} different ones")
    sys.exit(not table or held < len(table))
