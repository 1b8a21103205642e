"""`fedbalancer merge`: join comparison folders of one task, for example of the jobs of a cluster."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli import options as shared
from fedbalancer.cli.output import print_warnings, show


def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders of comparisons with the same task and settings.")],
    out: Annotated[Path, typer.Option(help="Folder of the merged comparison.")],
    overwrite: shared.Overwrite = False,
    mixed: Annotated[
        bool,
        typer.Option(
            "--mixed", help="Accept runs of different package versions, processors or kernels. Default: refuse them."
        ),
    ] = False,
    as_json: shared.Json = False,
) -> None:
    """Merge comparisons of one task into a new folder, and write its table and report.

    Settings, budgets and rules must be equal. A run that several folders have must be the same in all of them. The
    message names each conflict, and nothing is written then. The sources do not change.

    Examples:

        fedbalancer merge runs/seed-0 runs/seed-1 runs/seed-2 --out runs/merged

        fedbalancer merge machine-a/compare-watch machine-b/compare-watch --out runs/both --mixed
    """
    from fedbalancer.experiments.merging import merge_folders

    merged = merge_folders(folders, out, overwrite=overwrite, mixed=mixed)
    print_warnings(merged.mixtures)
    if as_json:
        typer.echo(json.dumps(merged.comparison.to_json()))
    else:
        show(merged.comparison, out / "table.md")
        typer.echo(f"report: {out / 'report.html'}")
    if merged.missing:
        runs = ", ".join(f"{method} seed {seed}" for method, seed in merged.missing[:5])
        more = f" and {len(merged.missing) - 5} more" if len(merged.missing) > 5 else ""
        command = f"fedbalancer resume {shlex.quote(str(out))}"
        typer.echo(f"not done yet: {runs}{more}; to run what is missing: {command}", err=True)
