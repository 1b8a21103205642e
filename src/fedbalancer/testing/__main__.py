"""`python -m fedbalancer.testing golden FILE`: replay golden rounds.

The exit code is 0 if all values are as recorded, 1 if some differ, 2 if the file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.paper.golden import replay_golden


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fedbalancer.testing", description="Checks against the authors' logs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    golden = commands.add_parser("golden", help="replay recorded rounds; exit code 1 if any value differs")
    golden.add_argument("file", help="golden rounds, as JSON")
    try:
        report = replay_golden(parser.parse_args(arguments).file)
    except FedBalancerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
