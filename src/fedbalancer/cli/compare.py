"""`fedbalancer compare`: methods on one task over seeds, then the table and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fedbalancer.cli import options as shared
from fedbalancer.cli.output import folder_name
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.processes import StopFlag


class Defaults(NamedTuple):
    """The options of a comparison that the user does not set.

    Args:
        task: The task.
        rounds: Number of rounds.
        seeds: Number of seeds.
        extend: Maximum number of budgets to reach the target.
        methods: The methods.
    """

    task: str
    rounds: int | None
    seeds: int
    extend: float
    methods: tuple[str, ...]


DEMO = Defaults(
    task="watch",
    rounds=100,
    seeds=8,
    extend=1.0,
    methods=("fedavg+1t", "fedavg+wfa", "prox+1t", "fedbalancer", "canter", "canter+auto"),
)
"""The comparison without a task: the smartwatches of eight people, and two others to test on.

How it was chosen: the task `watch` and its settings were tuned on FedAvg (`fedbalancer.data.tasks.watch`). Its 50
rounds showed little: FedBalancer was 1.06 times as fast as the best FedAvg (95% CI 0.97-1.21, eight seeds), because
FedAvg was still improving at the end of the budget and the loss threshold moves only after 40 rounds. So the demo has
100 rounds. Before that, 100 users of `synthetic` were tried, where FedBalancer loses: docs/benchmarks/limits.md.
"""


@shared.with_options(shared.RUN_OPTIONS, shared.EXECUTION_OPTIONS)
def compare(
    context: typer.Context,
    task: Annotated[
        str | None,
        typer.Argument(
            help="Name of a task, or TOML file. Default: a demo on included data.",
            autocompletion=shared.complete_task,
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            "--method",
            "-m",
            help="Comma-separated methods; repeatable. Default: FedBalancer and the paper's baselines.",
            autocompletion=shared.complete_methods,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Number of seeds, a range such as 10..19, or a list such as 4,7. Default: 3; the demo: 8."),
    ] = None,
    extend: Annotated[
        float | None,
        typer.Option(help="Maximum number of budgets to reach the target. Default: 2; the demo: 1."),
    ] = None,
    rule: shared.Rule = "fair",
    target: shared.Targets = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/compare-TASK.")] = None,
    overwrite: shared.Overwrite = False,
    add: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a comparison to which these methods and seeds are added. Its runs are kept, and all other "
            "options are its own. Default: a new comparison."
        ),
    ] = None,
    jobs: shared.Jobs = None,
    as_json: shared.Json = False,
    **options: Any,
) -> None:
    """Compare methods by time-to-accuracy and final accuracy, over seeds.

    The budget is FedAvg+1T's simulated time for the task's rounds. The target is the final accuracy of the best FedAvg
    variant. By the rule fair, all methods are evaluated on one grid of simulated seconds and must hold the target.

    Examples:

        fedbalancer compare

        fedbalancer compare watch --methods fedavg+1t,prox+1t,fedbalancer --seeds 5

        fedbalancer compare watch --methods 'fedavg+1t,fedavg[deadline=.5T],fedbalancer[w=5,p=.75]'

        fedbalancer compare my_task.toml

        fedbalancer compare --add runs/compare-watch --seeds 10..12 --methods canter
    """
    import fedbalancer as fb
    from fedbalancer.cli.observer import CommandLine
    from fedbalancer.experiments.comparison import DEFAULT_METHODS
    from fedbalancer.store.comparison import TARGETS

    if add is not None:
        if out is not None or overwrite:
            raise BadSetting("--add names the folder that grows; it does not allow --out or --overwrite")
        rules = {
            "jobs": jobs, "extend": extend, "rule": rule if _is_typed(context, "rule") else None,
            "targets": shared.parse_targets(target),
        }  # fmt: skip
        _add(context, add, task, methods, seeds, rules, options, as_json)
        return
    folder = out if out is not None else Path("runs") / f"compare-{folder_name(task or 'demo')}"
    default = DEMO if task is None else Defaults(task, None, seeds=3, extend=2.0, methods=DEFAULT_METHODS)
    chosen = shared.run_options(options)
    if chosen["rounds"] is None:
        chosen["rounds"] = default.rounds
    with StopFlag() as stop:
        fb.compare(
            default.task,
            shared.select_methods(options["config"], methods, "methods", default.methods),
            shared.parse_seeds(seeds if seeds is not None else str(default.seeds)),
            extend=extend if extend is not None else default.extend, rule=rule,
            targets=shared.parse_targets(target) or TARGETS, out=folder, overwrite=overwrite, jobs=jobs, progress=True,
            observer=CommandLine(default.task, chosen, folder=folder, as_json=as_json), stopped=stop, **chosen,
        )  # fmt: skip


def _is_typed(context: typer.Context, name: str) -> bool:
    """Return whether the user typed an option, instead of leaving its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _add(
    context: typer.Context,
    folder: Path,
    task: str | None,
    methods: list[str] | None,
    seeds: str | None,
    rules: dict[str, Any],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Add to the comparison in a folder. Only options that the user typed are compared with the folder's."""
    import fedbalancer as fb
    from fedbalancer.cli.observer import CommandLine
    from fedbalancer.methods.names import split_names
    from fedbalancer.store import ComparisonFile

    described = shared.run_options(options)
    unchanged = {name for name in shared.RUN_OPTIONS if not _is_typed(context, name)}
    chosen = {name: value for name, value in described.items() if name not in unchanged}
    shown = task or str(ComparisonFile.read(folder).spec.get("task") or "")
    with StopFlag() as stop:
        fb.compare(
            task, split_names(",".join(methods)) if methods else None,
            shared.parse_seeds(seeds) if seeds is not None else None, add=folder, progress=True,
            observer=CommandLine(shown, described, folder=folder, as_json=as_json), stopped=stop, **rules, **chosen,
        )  # fmt: skip
