"""`fedbalancer data`: list, download, import, check and show the data of tasks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli.errors import EXIT_USER_ERROR, Commands, with_clear_errors
from fedbalancer.cli.options import Json, Scale, Users, Variant

Name = Annotated[str, typer.Argument(metavar="TASK", help="Name of a task (`fedbalancer list tasks`).")]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace existing data.")]

data = typer.Typer(cls=Commands, help="List, download, import, check and show the data of tasks.", no_args_is_help=True)


def list_(as_json: Json = False) -> None:
    """List the data sets of every task: whether they are installed, their size and their licence.

    Numbers of users and samples are shown for data that was checked before (`fedbalancer data check`).

    Example:

        fedbalancer data list
    """
    from fedbalancer.cli.data_display import print_list
    from fedbalancer.data.catalogue.catalog import list_data

    rows = list_data()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
    else:
        print_list(rows)


def get(task: Name, variant: Variant = None, scale: Scale = "small", overwrite: Replace = False) -> None:
    """Download the official data of a task. Complete files are not downloaded again.

    Example:

        fedbalancer data get har
    """
    from fedbalancer.cli.data_display import download_display, print_installed
    from fedbalancer.data.catalogue.catalog import get_source
    from fedbalancer.data.catalogue.install import download_data

    source = get_source(task, variant)
    if source.is_present and not overwrite:
        typer.echo(f"{task} ({source.variant}) exists in {', '.join(map(str, source.paths))}")
        return
    with download_display() as progress:
        facts = download_data(task, source, progress, scale=scale, overwrite=overwrite)
    print_installed(task, source, facts)


def import_(
    task: Name,
    path: Annotated[Path, typer.Argument(help="File, folder or archive that contains the data.")],
    variant: Variant = None,
    link: Annotated[bool, typer.Option("--link", help="Link to the data instead of copying it.")] = False,
    scale: Scale = "small",
    overwrite: Replace = False,
) -> None:
    """Import data from this machine: check it by loading it, and copy it to the data folder.

    Examples:

        fedbalancer data import har "Downloads/UCI HAR Dataset.zip"

        fedbalancer data import celeba /big/disk/celeba --link
    """
    from fedbalancer.cli.data_display import print_installed
    from fedbalancer.data.catalogue.catalog import get_source
    from fedbalancer.data.catalogue.install import copy_path, import_data, link_path

    source = get_source(task, variant)
    facts = import_data(
        task, source, path.expanduser(), link_path if link else copy_path, scale=scale, overwrite=overwrite
    )
    print_installed(task, source, facts)


def check(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Task to check. Default: all.")] = None,
    scale: Scale = "small",
    as_json: Json = False,
) -> None:
    """Load every installed data set, check every sample, and print its contents or what is wrong.

    Example:

        fedbalancer data check har
    """
    from fedbalancer.cli.data_display import print_checks
    from fedbalancer.data.catalogue.catalog import check_all

    checks = check_all(task, scale)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in checks]))
    else:
        print_checks(checks)
    if any(row.error for row in checks):
        raise typer.Exit(EXIT_USER_ERROR)


def show(
    task: Annotated[str, typer.Argument(help="Name of a task, a task file (.toml) or package.module:function.")],
    variant: Variant = None,
    scale: Scale = "small",
    users: Users = None,
    out: Annotated[Path | None, typer.Option(help="PNG file for the picture. Default: data-TASK.png.")] = None,
    as_json: Json = False,
) -> None:
    """Show the clients of a task with their sizes and labels, as text and as a picture.

    Example:

        fedbalancer data show watch --out watch.png
    """
    from fedbalancer.cli.data_display import picture_path, print_label_counts, summary
    from fedbalancer.data import load_task
    from fedbalancer.data.catalogue.summary import count_labels
    from fedbalancer.reporting.plotting import plot_holdings, write_figure

    loaded = load_task(task, scale=scale, users=users, variant=variant)
    path = picture_path(task, loaded.variant, out)
    counts = count_labels(loaded)
    write_figure(plot_holdings(counts), path)
    if as_json:
        typer.echo(json.dumps({**summary(counts), "picture": str(path)}))
        return
    print_label_counts(counts)
    typer.echo(f"picture: {path}")


data.command("list")(with_clear_errors(list_))
data.command("get")(with_clear_errors(get))
data.command("import")(with_clear_errors(import_))
data.command("check")(with_clear_errors(check))
data.command("show")(with_clear_errors(show))
