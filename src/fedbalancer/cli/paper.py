"""`fedbalancer paper ITEM`: reproduce the paper's tables and figures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbalancer.cli import options
from fedbalancer.cli.errors import EXIT_USER_ERROR, Commands, with_clear_errors
from fedbalancer.cli.options import Json, Rounds
from fedbalancer.cli.output import show_item
from fedbalancer.cli.testbed import GentleStop, PhonesFile, Speed
from fedbalancer.core.processes import EXIT_INTERRUPTED, StopFlag
from fedbalancer.paper.items import ITEMS

paper = typer.Typer(
    cls=Commands,
    help="Reproduce the paper's tables and figures: our value, the paper's, and a verdict.",
    no_args_is_help=True,
)

POOL, RESULTS = Path("runs") / "paper", Path("runs") / "paper" / "results"

Tasks = Annotated[str | None, typer.Option(help="Comma-separated tasks. Default: the item's.")]
Seeds = Annotated[str, typer.Option(help="Number of seeds, a range such as 10..19, or a list such as 4,7.")]
ItemScale = Annotated[str | None, typer.Option(help="Scale: small, or paper as published. Default: the item's.")]
ResultsFolder = Annotated[Path, typer.Option("--out", help="Folder of results; the item gets a folder inside.")]
RunsFolder = Annotated[Path, typer.Option("--runs", help="Pool of runs; all items reuse the runs in it.")]
Rule = Annotated[
    str | None, typer.Option(help="Scoring rule: fair (grid of seconds) or paper (by rounds). Default: the item's.")
]
Grid = Annotated[
    bool | None,
    typer.Option(
        "--grid/--no-grid", help="Run the settings of Table 2, for FedBalancer-A and -S. Default: only at scale small."
    ),
]
Extend = Annotated[float, typer.Option(help="Maximum number of budgets that a method may take to reach the target.")]


def item_command(name: str) -> Callable[..., None]:
    """Create the command of an item."""

    def command(
        tasks: Tasks = None,
        scale: ItemScale = None,
        seeds: Seeds = "3",
        jobs: options.Jobs = None,
        out: ResultsFolder = RESULTS,
        runs: RunsFolder = POOL,
        rule: Rule = None,
        grid: Grid = None,
        extend: Extend = 2.0,
        rounds: Rounds = None,
        users: options.Users = None,
        variant: options.Variant = None,
        set_: options.Assignments = None,
        config: options.Config = None,
        as_json: Json = False,
    ) -> None:
        from fedbalancer.paper.item import Request
        from fedbalancer.paper.items import load_item
        from fedbalancer.reporting.rule import check_rule

        item = load_item(name)
        size = scale if scale is not None else item.scale
        request = Request(
            tasks=item.tasks if tasks is None else _names(tasks), scale=size, seeds=options.parse_seeds(seeds),
            users=users, variant=variant, settings=options.overrides(config, set_), rounds=rounds, extend=extend,
            rule=item.rule if rule is None else check_rule(rule), runs=runs, jobs=jobs,
            grid=grid if grid is not None else size == "small",
        )  # fmt: skip
        _make(item, request, out, as_json)

    command.__doc__ = (
        f"{ITEMS[name][0].upper()}{ITEMS[name][1:]}.\n\nRuns in the pool are reused. Ctrl-C stops; the same command "
        f"continues.\n\nExample:\n\n    fedbalancer paper {name} --tasks har --seeds 5"
    )
    return command


def _names(tasks: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in tasks.split(",") if name.strip())


def _make(item: Any, request: Any, out: Path, as_json: bool, flag: StopFlag | None = None) -> None:
    from fedbalancer.cli.paper_display import item_display
    from fedbalancer.paper.folder import make_item
    from fedbalancer.paper.item import Stopped

    command = shlex.join(["fedbalancer", *sys.argv[1:]])
    with flag or StopFlag() as stop, item_display(item.name, item.runs(request)) as listen:
        try:
            written, failed = make_item(item, request, out, command, listen, stop)
        except Stopped as stopped:
            typer.echo(f"stopped; to continue: {command}", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from stopped
    show_item(written, as_json=as_json)
    for failure in failed:
        typer.echo(f"error: {failure}", err=True)
    if failed:
        raise typer.Exit(EXIT_USER_ERROR)


def table5(
    seeds: Annotated[str, typer.Option(help="Number of sessions, a range such as 1..2, or a list such as 0,2.")] = "3",
    seed: Annotated[
        int | None,
        typer.Option(help="Run only this session. Three were recorded: seed modulo 3."),
    ] = None,
    speed: Speed = 20.0,
    scale: ItemScale = None,
    rounds: Rounds = None,
    phones: PhonesFile = None,
    out: ResultsFolder = RESULTS,
    runs: RunsFolder = POOL,
    rule: Rule = None,
    as_json: Json = False,
) -> None:
    """Table 5: all methods on a test bed of 21 emulated phones, in three sessions.

    A complete session is reused; an interrupted one starts again.

    Examples:

        fedbalancer paper table5 --rounds 50 --scale small

        fedbalancer paper table5 --seed 1
    """
    from fedbalancer.paper.item import Request
    from fedbalancer.paper.items.testbed import Table5
    from fedbalancer.reporting.rule import check_rule

    item = Table5(speed=speed, phones=phones)
    request = Request(
        tasks=item.tasks, scale=scale or item.scale, rounds=rounds, runs=runs,
        seeds=options.parse_seeds(seeds) if seed is None else (seed,),
        rule=item.rule if rule is None else check_rule(rule), grid=False,
    )  # fmt: skip
    _make(item, request, out, as_json, GentleStop())


for _name in ITEMS:
    paper.command(_name)(with_clear_errors(table5 if _name == "table5" else item_command(_name)))
