"""The `fedbalancer` command and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbalancer import __version__
from fedbalancer.cli.bench import bench
from fedbalancer.cli.benchmark import benchmark
from fedbalancer.cli.compare import compare
from fedbalancer.cli.dashboard import dashboard
from fedbalancer.cli.data import data
from fedbalancer.cli.doctor import doctor
from fedbalancer.cli.errors import Commands, with_clear_errors
from fedbalancer.cli.export import export
from fedbalancer.cli.fleet import fleet
from fedbalancer.cli.flower import flower
from fedbalancer.cli.forecast import forecast
from fedbalancer.cli.leaderboard import leaderboard
from fedbalancer.cli.list import list_
from fedbalancer.cli.merge import merge
from fedbalancer.cli.paper import paper
from fedbalancer.cli.privacy import privacy
from fedbalancer.cli.report import report
from fedbalancer.cli.resume import resume
from fedbalancer.cli.run import run
from fedbalancer.cli.sweep import sweep
from fedbalancer.cli.testbed import bed

app = typer.Typer(
    cls=Commands,
    name="fedbalancer",
    help="Federated learning with sample selection and adaptive deadlines: compare methods under device heterogeneity.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedbalancer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version)] = False,
) -> None:
    """FedBalancer and its baselines on simulated phones."""


app.command("compare")(with_clear_errors(compare))
app.command("run")(with_clear_errors(run))
app.command("resume")(with_clear_errors(resume))
app.command("merge")(with_clear_errors(merge))
app.command("report")(with_clear_errors(report))
app.command("dashboard")(with_clear_errors(dashboard))
app.command("leaderboard")(with_clear_errors(leaderboard))
app.command("sweep")(with_clear_errors(sweep))
app.command("list")(with_clear_errors(list_))
app.add_typer(bench, name="bench")
app.command("doctor")(with_clear_errors(doctor))
app.add_typer(benchmark, name="benchmark")
app.add_typer(data, name="data")
app.add_typer(fleet, name="fleet")
app.command("forecast")(with_clear_errors(forecast))
app.command("export")(with_clear_errors(export))
app.command("testbed")(with_clear_errors(bed))
app.add_typer(paper, name="paper")
app.add_typer(flower, name="flower")
app.add_typer(privacy, name="privacy")
