"""The command line: one module per command, which parses options, calls the library and prints the result."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `fedbalancer` script. Ctrl-C during start-up ends it without a traceback."""
    try:
        from fedbalancer.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
