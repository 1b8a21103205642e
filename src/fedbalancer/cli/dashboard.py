"""`fedbalancer dashboard`: the report of a folder as a live page."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer


def dashboard(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or a comparison; it need not exist yet.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 8765,
    host: Annotated[
        str,
        typer.Option(help="Interface. On the loopback interface only this machine can open the page."),
    ] = "127.0.0.1",
) -> None:
    """Show a run or a comparison as a page that updates while it runs. Ctrl-C stops the page, not the run.

    For a run on Flower, the page also shows how long its last rounds would have taken with other methods.

    Examples:

        fedbalancer dashboard runs/compare-watch

        fedbalancer dashboard runs/compare-watch --port 9000
    """
    from fedbalancer.experiments.shadow import shadow_lines
    from fedbalancer.reporting.dashboard import open_dashboard

    with open_dashboard(folder, host, port, shadow_lines) as server, suppress(KeyboardInterrupt):
        for number in (signal.SIGINT, signal.SIGTERM):  # the shell may have disabled one of them
            signal.signal(number, signal.default_int_handler)
        if not folder.exists():  # a run that starts later, or a typing error
            typer.echo(f"{folder} does not exist yet; the page waits for it", err=True)
        typer.echo(f"showing {folder} at {server.address} (stop with Ctrl-C)")
        server.serve_forever(poll_interval=0.2)
