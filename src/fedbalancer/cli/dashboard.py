"""`fedbalancer dashboard`: the report of a folder as a live page."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer


def dashboard(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or a comparison; it need not exist yet.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0: any that is free).")] = 8765,
    host: Annotated[
        str, typer.Option(help="Interface; other machines see the page only on another one than this.")
    ] = "127.0.0.1",
) -> None:
    """Show a run or a comparison as a page that moves while it goes on. Ctrl-C ends the page, not the run.

    Examples:

        fedbalancer dashboard runs/compare-watch

        fedbalancer dashboard runs/compare-watch --port 9000
    """
    from fedbalancer.dashboard.server import dashboard as served

    with served(folder, host, port) as server, suppress(KeyboardInterrupt):
        for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have started us with one of them ignored
            signal.signal(number, signal.default_int_handler)
        if not folder.exists():  # a run that begins later, or a slip of the pen
            typer.echo(f"there is no {folder} yet; the page waits for it", err=True)
        typer.echo(f"{folder} is shown at {server.address} (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.2)
