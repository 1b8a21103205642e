"""The command line: one file per command."""

from fedbalancer.cli.app import main

__all__ = ["main"]
