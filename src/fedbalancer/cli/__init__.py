"""The command line: one file per command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the `fedbalancer` script. Ctrl-C while the program is still being loaded ends it in a word."""
    try:
        from fedbalancer.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
