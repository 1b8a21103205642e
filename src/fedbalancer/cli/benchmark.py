"""`fedbalancer benchmark`: the time-to-accuracy benchmark with equally tuned methods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbalancer.cli.errors import Commands, with_clear_errors
from fedbalancer.cli.options import Jobs, Json
from fedbalancer.core.processes import EXIT_INTERRUPTED, StopFlag

if TYPE_CHECKING:
    from fedbalancer.methods.search_spaces import SearchSpace

RESULTS = Path("docs") / "results" / "benchmark"
RUNS = Path("runs") / "benchmark"

benchmark = typer.Typer(
    cls=Commands,
    help="Run the time-to-accuracy benchmark: a frozen suite of tasks and scenarios, equal tuning for every method, "
    "and results that others can execute again.",
    no_args_is_help=True,
)

SuiteName = Annotated[str, typer.Option(help="Suite.")]
Cells = Annotated[str | None, typer.Option(help="Comma-separated cells. Default: all whose data are present.")]
Methods = Annotated[
    list[str] | None,
    typer.Option("--methods", "--method", "-m", help="Comma-separated methods; repeatable. Default: the main ones."),
]
Untuned = Annotated[
    list[str] | None,
    typer.Option(help="Comma-separated methods to score without tuning, for example parts of a method; repeatable."),
]
Trials = Annotated[int | None, typer.Option(min=1, help="Trials per method. Default: the suite's.")]
TuningSeeds = Annotated[int | None, typer.Option(min=1, help="Number of tuning seeds. Default: the suite's.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Number of seeds of the scores. Default: the suite's.")]
Out = Annotated[Path, typer.Option(help="Folder of the runs.")]
Results = Annotated[Path, typer.Option(help="Folder of the results.")]


def run(
    suite: SuiteName = "tta-1",
    cells: Cells = None,
    methods: Methods = None,
    trials: Trials = None,
    tuning_seeds: TuningSeeds = None,
    seeds: Seeds = None,
    gifts: Annotated[bool, typer.Option("--gifts", help="Also score methods with canter's parts.")] = False,
    untuned: Untuned = None,
    out: Out = RUNS,
    results: Results = RESULTS,
    jobs: Jobs = None,
) -> None:
    """Tune methods, score them on fresh seeds, and add them to the results.

    The same command continues a run that was stopped or killed, and runs only what is missing. Fewer trials or seeds
    than the suite's are stated on the page of the results.

    Examples:

        fedbalancer benchmark run

        fedbalancer benchmark run --cells har,femnist --methods canter,oort --trials 6 --seeds 3

        fedbalancer benchmark run --methods fedavg+1t --untuned "canter-samples,canter[p=.8,deadline=2T]"
    """
    _execute(
        suite, cells, methods, trials, tuning_seeds, seeds, out, results, jobs,
        gifts=gifts, untuned=untuned, score=True,
    )  # fmt: skip


def tune(
    suite: SuiteName = "tta-1",
    cells: Cells = None,
    methods: Methods = None,
    trials: Trials = None,
    tuning_seeds: TuningSeeds = None,
    out: Out = RUNS,
    results: Results = RESULTS,
    jobs: Jobs = None,
) -> None:
    """Tune methods without scoring them. `run` continues with the same trials.

    Example:

        fedbalancer benchmark tune --cells har --methods oort --trials 12
    """
    _execute(suite, cells, methods, trials, tuning_seeds, None, out, results, jobs, gifts=False, score=False)


def show(results: Results = RESULTS, as_json: Json = False) -> None:
    """Print the table of the results, and write their pages and figures again.

    Example:

        fedbalancer benchmark show
    """
    from rich.console import Console
    from rich.table import Table

    from fedbalancer.reporting.benchmark import load_board
    from fedbalancer.reporting.benchmark_page import TEXT, terminal_rows, write_pages

    if as_json:
        typer.echo(json.dumps(load_board(results).to_json()))
        return
    board = write_pages(results)
    table = Table("Cell", "Method", "Settings", "Over the best tuned FedAvg", "Reached", "Accuracy", "Worst decile")
    for row in terminal_rows(board):
        table.add_row(*row)
    Console(markup=False).print(table)
    typer.echo(f"page: {results / TEXT}")


def submit(
    manifest: Annotated[Path, typer.Argument(help="TOML file that describes the method.")],
    cells: Cells = None,
    trials: Trials = None,
    tuning_seeds: TuningSeeds = None,
    seeds: Seeds = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs. Default: runs/benchmark-MANIFEST.")] = None,
    results: Results = RESULTS,
    jobs: Jobs = None,
) -> None:
    """Tune and score a method of your own package, and add it to the results with your name.

    The manifest names owner, title, suite and method, and the search space in `[space]`. FedAvg's variants run on your
    data as well, because they set the target.

    Examples:

        fedbalancer benchmark submit mine.toml

        fedbalancer benchmark submit mine.toml --cells har --trials 6 --seeds 3
    """
    from fedbalancer.experiments.benchmark.submission import add_submission, allow, read_submission

    submission = read_submission(manifest)
    allow(submission)
    folder = out if out is not None else Path("runs") / f"benchmark-{manifest.stem}"
    _execute(
        submission.suite, cells, [submission.method], trials, tuning_seeds, seeds, folder, results, jobs,
        gifts=False, score=True, owner=submission.owner, spaces={submission.method: submission.space},
    )  # fmt: skip
    add_submission(results, submission)
    typer.echo(f"submission: {submission.method} of {submission.owner}")


def verify(
    sample: Annotated[int, typer.Option(min=1, help="Number of runs to execute again, from different cells.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed that chooses the runs.")] = 0,
    cells: Cells = None,
    results: Results = RESULTS,
    trust: Annotated[bool, typer.Option("--trust", help="Run code of submissions.")] = False,
    as_json: Json = False,
) -> None:
    """Execute a sample of the recorded runs again and compare the bytes of their files. Exit code 1 if any differ.

    The bytes depend on the data, the code and the processor; a note says which of them differs from the record.

    Examples:

        fedbalancer benchmark verify

        fedbalancer benchmark verify --sample 5 --seed 1 --cells har,femnist
    """
    import tempfile

    from fedbalancer.experiments.benchmark.verify import verify as execute_again
    from fedbalancer.methods.names import split_names

    with tempfile.TemporaryDirectory() as folder:
        verdicts = execute_again(
            results, Path(folder), sample=sample, seed=seed, cells=split_names(cells) if cells else (), trust=trust,
            say=lambda text: typer.echo(text, err=as_json),
        )  # fmt: skip
    same = sum(verdict.same for verdict in verdicts)
    if as_json:
        typer.echo(json.dumps([vars(verdict) for verdict in verdicts]))
    else:
        typer.echo(f"{same} of {len(verdicts)} runs have the recorded bytes")
    if same < len(verdicts):
        raise typer.Exit(1)


def _execute(
    suite: str,
    cells: str | None,
    methods: list[str] | None,
    trials: int | None,
    tuning_seeds: int | None,
    seeds: int | None,
    out: Path,
    results: Path,
    jobs: int | None,
    *,
    gifts: bool,
    score: bool,
    untuned: list[str] | None = None,
    owner: str = "",
    spaces: Mapping[str, SearchSpace] | None = None,
) -> None:
    """Run cells and write the pages."""
    from fedbalancer.experiments.benchmark.run import DEFAULT_METHODS, run_benchmark
    from fedbalancer.experiments.benchmark.suite import find_suite
    from fedbalancer.methods.names import split_names
    from fedbalancer.reporting.benchmark_page import write_pages

    chosen = find_suite(suite).reduced(trials, tuning_seeds, seeds)
    names = split_names(",".join(methods)) if methods else list(DEFAULT_METHODS)
    fixed = split_names(",".join(untuned or []))
    wanted = split_names(cells) if cells else []
    with StopFlag() as stop:
        complete = run_benchmark(
            chosen, out, cells=wanted, methods=names, gifts=gifts, untuned=fixed, score=score, jobs=jobs,
            results=results, owner=owner, spaces=spaces or {}, stopped=stop,
            say=lambda text: typer.echo(text, err=True),
        )  # fmt: skip
        stopped = bool(stop())
    if score and (results / "runs.parquet").is_file():
        write_pages(results)
        typer.echo(f"results: {results}")
    if not complete:
        reason = "stopped" if stopped else "some trials or runs could not finish"
        typer.echo(f"{reason}; the same command continues", err=True)
        raise typer.Exit(EXIT_INTERRUPTED if stopped else 1)


benchmark.command("run")(with_clear_errors(run))
benchmark.command("tune")(with_clear_errors(tune))
benchmark.command("show")(with_clear_errors(show))
benchmark.command("submit")(with_clear_errors(submit))
benchmark.command("verify")(with_clear_errors(verify))
