"""Every fault of the fault table, committed by real processes, several times; the page with the counts.

    python benchmarks/flower_faults.py [--repeats 3] [--only answers,deaths] [--folder DIR] [--page FILE]

Federations of a SuperLink, SuperNodes and a ServerApp run on loopback, one after the other; what each found is kept in
the folder, so that `--only` does some again and the page is made of all. `make soak` runs the same table once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from flower.faults.checks import OVERHEAD_S, Verdict  # noqa: E402
from flower.faults.page import page  # noqa: E402
from flower.faults.table import FEDERATIONS  # noqa: E402


def measured(name: str, folder: Path, repeats: int) -> list[Verdict]:
    """What one federation found, told and kept."""
    begun = time.monotonic()
    found = FEDERATIONS[name](Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder)), repeats)
    bad = [verdict for verdict in found if verdict.wrong]
    print(
        f"{name}: {len(found)} faults, {len(found) - len(bad)} survived, {time.monotonic() - begun:.0f} s", flush=True
    )
    for verdict in bad:
        print(f"    {verdict.fault} of {verdict.client} in round {verdict.round}: {'; '.join(verdict.wrong)}")
    (folder / f"{name}.json").write_text(json.dumps([asdict(verdict) for verdict in found], indent=1))
    return found


def kept(folder: Path) -> list[Verdict]:
    """What all federations found, the last time that each ran."""
    files = [folder / f"{name}.json" for name in FEDERATIONS]
    rows = [row for file in files if file.exists() for row in json.loads(file.read_text())]
    return [Verdict(**{**row, "wrong": tuple(row["wrong"])}) for row in rows]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--only", default=",".join(FEDERATIONS), help="federations, separated by commas; - for none")
    arguments.add_argument("--folder", type=Path, default=None, help="where logs and findings go")
    arguments.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks" / "flower-faults.md")
    arguments.add_argument("--note", default="", help="what was special about this time, for the page")
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="flower-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in given.only.split(","):
        if name != "-":
            measured(name, folder, given.repeats)
    found = kept(folder)
    if not found:
        return 1
    given.page.write_text(page(found, given.note))
    beyond_s = [verdict.overhead_s for verdict in found]
    print(f"{given.page}: {len(found)} faults; a round took at most {max(beyond_s):.2f} s (median "
          f"{statistics.median(beyond_s):.2f} s) more than its deadline, {OVERHEAD_S:g} s are allowed")  # fmt: skip
    return int(any(verdict.wrong for verdict in found))


if __name__ == "__main__":
    sys.exit(main())
