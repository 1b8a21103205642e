"""Experiment trackers: TensorBoard, MLflow, Weights & Biases, Prometheus or a custom sink receive a run's rounds.

A tracker is named `tensorboard[:DIR]`, `mlflow[:URI]`, `wandb[:PROJECT]`, `prometheus[:[HOST:]PORT]` or
`package.module:Class`. To write one, derive from `Sink`.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, MissingData, UnknownName
from fedbalancer.store.rows import ClientRow, PrivacyRow


class Stop(enum.Enum):
    """The type of `STOP`, which a callback of `fedbalancer.run` returns to stop the run."""

    STOP = "stop"


STOP = Stop.STOP
"""Return this from `on_round` or `on_eval` of `fedbalancer.run` to stop the run after the current round."""
Hook = Callable[[Mapping[str, Any]], Any]
"""Receives one row of a table, as a mapping from column to value. It may return `STOP`; other values are ignored."""
ReportFailure = Callable[[str, str], None]
"""Receives the name of a sink that failed, and the reason."""

MLFLOW_STATUS = {"done": "FINISHED", "stopped": "KILLED"}
MLFLOW_VALUE_LENGTH = 500
"""Longest parameter value that MLflow stores, in characters."""
REGISTERED = "fedbalancer"
"""Name of the registered model in MLflow: this and the name of the task."""


class Sink:
    """Receives the events of one run. All methods do nothing by default; override the ones you need.

    A class passed by name (`--track package.module:Class`) is created once per run, without arguments. An exception in
    a sink is written to the run's log and disables that sink; the run continues.

    >>> class LongestRound(Sink):
    ...     seconds = 0.0
    ...     def on_round(self, row):
    ...         self.seconds = max(self.seconds, row["end_s"] - row["start_s"])
    """

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        """Called before the first round, and when a run is resumed.

        Args:
            manifest: The content of manifest.json.
        """

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Called after every round.

        Args:
            row: The round's row of rounds.parquet.
        """

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Called after every evaluation.

        Args:
            row: The evaluation's row of evals.parquet.
        """

    def on_clients(self, rows: Sequence[ClientRow]) -> None:
        """Called after every round, before `on_round`.

        Args:
            rows: The round's rows of clients.parquet, one per selected client.
        """

    def on_privacy(self, rows: Sequence[PrivacyRow]) -> None:
        """Called when the privacy loss of the clients was computed.

        Args:
            rows: The rows of privacy.parquet, one per client.
        """

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        """Called for every line of log.jsonl. Only runs on Flower have such events.

        Args:
            event: Name of the event.
            fields: Its fields, such as `client`, `round` and `why`.
        """

    def on_model(self, model: Path) -> None:
        """Called when a run on Flower ends and has written its model.

        Args:
            model: The file model.safetensors in the run folder.
        """

    def on_end(self, status: str) -> None:
        """Called at the end of the run.

        Args:
            status: done, stopped or failed.
        """


@dataclass(eq=False)
class Callbacks(Sink):
    """The functions `on_round` and `on_eval` of `fedbalancer.run`. Their exceptions end the run.

    Args:
        round_hook: Called with every row of rounds.parquet.
        evaluation_hook: Called with every row of evals.parquet.

    Attributes:
        stop_reason: Why the run has to stop; empty unless a function returned `STOP`.
    """

    round_hook: Hook | None = None
    evaluation_hook: Hook | None = None
    stop_reason: str = field(default="", init=False)

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._call("on_round", self.round_hook, row)

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._call("on_eval", self.evaluation_hook, row)

    def _call(self, name: str, hook: Hook | None, row: Mapping[str, Any]) -> None:
        if hook is not None and hook(row) is STOP and not self.stop_reason:
            self.stop_reason = f"{name} returned fb.STOP"


class SinkGroup(Sink):
    """Forwards every event to all sinks of a run. A sink that raises is reported once and then left out.

    Args:
        sinks: The sinks, each with its name.
        report_failure: Called for a sink that raises.
    """

    def __init__(
        self, sinks: Sequence[tuple[str, Sink]] = (), report_failure: ReportFailure = lambda name, why: None
    ) -> None:
        self._sinks, self._report_failure = list(sinks), report_failure

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        self._forward(lambda sink: sink.on_start(manifest))

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._forward(lambda sink: sink.on_round(row))

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._forward(lambda sink: sink.on_evaluation(row))

    def on_clients(self, rows: Sequence[ClientRow]) -> None:
        self._forward(lambda sink: sink.on_clients(rows))

    def on_privacy(self, rows: Sequence[PrivacyRow]) -> None:
        self._forward(lambda sink: sink.on_privacy(rows))

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        self._forward(lambda sink: sink.on_event(event, fields))

    def on_model(self, model: Path) -> None:
        self._forward(lambda sink: sink.on_model(model))

    def on_end(self, status: str) -> None:
        self._forward(lambda sink: sink.on_end(status))

    def _forward(self, send: Callable[[Sink], None]) -> None:
        for name, sink in list(self._sinks):
            try:
                send(sink)
            except Exception as error:
                if isinstance(sink, Callbacks):
                    raise
                self._sinks.remove((name, sink))
                self._report_failure(name, f"{type(error).__name__}: {error}")


def check_sinks(sinks: Sequence[Any]) -> None:
    """Check that all sinks can be created, before a run starts.

    Args:
        sinks: Names of trackers, or `Sink` objects.

    Raises:
        BadSetting: If a class cannot be imported or does not derive from `Sink`.
        MissingData: If a tracker's package is not installed.
        UnknownName: If a name is not a tracker.
    """
    if isinstance(sinks, str):
        raise BadSetting(f"track = {sinks!r} must be a list of trackers, such as [{sinks!r}]")
    for sink in sinks:
        _sink_factory(sink)


def open_sinks(sinks: Sequence[Any], folder: Path | None, report_failure: ReportFailure) -> SinkGroup:
    """Create the sinks of one run.

    Args:
        sinks: Names of trackers, of which each run creates its own, or `Sink` objects.
        folder: The run folder; None for a run in memory.
        report_failure: Called for a sink that cannot be created or raises later.

    Returns:
        All sinks as one.
    """
    opened = []
    for sink in sinks:
        name = sink if isinstance(sink, str) else type(sink).__name__
        try:
            opened.append((name, _sink_factory(sink)(folder)))
        except Exception as error:
            report_failure(name, f"{type(error).__name__}: {error}")
    return SinkGroup(opened, report_failure)


def _sink_factory(sink: Any) -> Callable[[Path | None], Sink]:
    if isinstance(sink, Sink):
        return lambda folder: sink
    if not isinstance(sink, str):
        raise BadSetting(
            f"track: {sink!r} is not a tracker; derive its class from fedbalancer.experiments.tracking.Sink"
        )
    name, _, argument = sink.partition(":")
    if name in TRACKERS:
        tracker, package, extra = TRACKERS[name]
        if find_spec(package) is None:
            raise MissingData(f"--track {name} needs the package {package}: pip install 'fedbalancer[{extra}]'")
        if name == "prometheus":
            _telemetry(argument or None, None)  # a wrong port is an error before the run
        return lambda folder: tracker(argument or None, folder)
    if not argument:
        raise UnknownName("tracker", sink, [*TRACKERS, "package.module:Class"])
    sink_class = _import_sink(sink)
    return lambda folder: sink_class()


def _import_sink(path: str) -> Callable[[], Sink]:
    module, _, name = path.partition(":")
    try:
        sink_class = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadSetting(f"--track {path} cannot be imported: {error}; pass package.module:Class") from error
    if not isinstance(sink_class, type) or not issubclass(sink_class, Sink):
        raise BadSetting(f"--track {path} must be a class derived from fedbalancer.experiments.tracking.Sink")
    return sink_class


def scalars(row: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Return the finite numbers of a row, without the round, which is the step.

    Args:
        row: A row of a table.
        prefix: Prefix of the names.

    >>> scalars({"round": 3, "deadline_s": math.inf, "completed": 5, "schedule": "rounds"}, "round/")
    {'round/completed': 5.0}
    """
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "round"}
    return {prefix + name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as dotted names with text values.

    Args:
        value: A value, or a mapping of names to values.
        prefix: Prefix of the names.

    >>> dict(flatten({"pace": {"window": 20}}))
    {'pace.window': '20'}
    """
    if not isinstance(value, Mapping):
        yield prefix, str(value)
        return
    for key, item in value.items():
        yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))


def run_name(manifest: Mapping[str, Any]) -> str:
    """Return the name under which trackers list a run: task, method and seed."""
    task = manifest.get("task")
    name = task.get("name") if isinstance(task, Mapping) else task
    return f"{name} {manifest.get('method')} seed {manifest.get('seed')}"


def _evaluation_prefix(row: Mapping[str, Any]) -> str:
    return f"{row.get('schedule', 'rounds')}/"


class TensorBoard(Sink):
    """Writes TensorBoard event files.

    Args:
        where: Parent folder. Default: `tensorboard/` in the run folder, or `runs/tensorboard` for a run in memory.
        folder: The run folder; None for a run in memory.
    """

    def __init__(self, where: str | None, folder: Path | None) -> None:
        self._where, self._folder = where, folder
        self._writer: Any = None

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        from tensorboardX import SummaryWriter

        name = "".join(sign if sign.isalnum() or sign in "+-.=" else "-" for sign in run_name(manifest))
        target = Path(self._where or "runs/tensorboard") / name
        if self._where is None and self._folder is not None:
            target = self._folder / "tensorboard"
        self._writer = SummaryWriter(str(target))
        settings = [f"    {key}: {value}" for key, value in flatten(manifest.get("settings", {}))]
        self._writer.add_text("settings", "\n".join(settings))

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._log(row, "round/")

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._log(row, _evaluation_prefix(row))

    def on_end(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()

    def _log(self, row: Mapping[str, Any], prefix: str) -> None:
        for name, value in scalars(row, prefix).items():
            self._writer.add_scalar(name, value, row["round"])


class MLflow(Sink):
    """Logs to an MLflow tracking server. Uses its own client, so that parallel runs do not share MLflow's global state.

    Args:
        where: URI of the tracking server. Default: the one MLflow is configured to use.
        folder: The run folder; not used.
    """

    def __init__(self, where: str | None, folder: Path | None) -> None:
        self._where = where
        self._client: Any = None
        self._run = self._registered = ""

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._where)
        existing = self._client.get_experiment_by_name("fedbalancer")
        experiment = self._client.create_experiment("fedbalancer") if existing is None else existing.experiment_id
        self._run = self._client.create_run(experiment, run_name=run_name(manifest)).info.run_id
        for key, value in flatten({name: manifest.get(name) for name in ("method", "seed", "settings")}):
            self._client.log_param(self._run, key, value[:MLFLOW_VALUE_LENGTH])
        self._registered = f"{REGISTERED}-{run_name(manifest).partition(' ')[0]}"

    def on_model(self, model: Path) -> None:
        """Log the model with its checksum, and register it as the next version of `fedbalancer-TASK`."""
        from mlflow.exceptions import MlflowException

        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        self._client.log_artifact(self._run, str(model), "model")
        self._client.set_tag(self._run, "model_sha256", digest)
        with suppress(MlflowException):  # it exists
            self._client.create_registered_model(self._registered)
        source = f"{self._client.get_run(self._run).info.artifact_uri}/model"
        self._client.create_model_version(self._registered, source, self._run, tags={"sha256": digest})

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._log(row, "round/")

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._log(row, _evaluation_prefix(row))

    def on_end(self, status: str) -> None:
        self._client.set_terminated(self._run, MLFLOW_STATUS.get(status, "FAILED"))

    def _log(self, row: Mapping[str, Any], prefix: str) -> None:
        for name, value in scalars(row, prefix).items():
            self._client.log_metric(self._run, name, value, step=row["round"])


class WandB(Sink):
    """Logs to Weights & Biases, with the round as the step of every metric.

    Args:
        where: The project. Default: `fedbalancer`.
        folder: The run folder, where W&B keeps its files; None for a run in memory.
    """

    def __init__(self, where: str | None, folder: Path | None) -> None:
        self._project, self._folder = where or "fedbalancer", folder
        self._run: Any = None

    def on_start(self, manifest: Mapping[str, Any]) -> None:
        import wandb

        config = {"method": manifest.get("method"), "seed": manifest.get("seed"), **dict(flatten(manifest["settings"]))}
        self._run = wandb.init(
            project=self._project, name=run_name(manifest), config=config, reinit="create_new",
            dir=None if self._folder is None else str(self._folder),
        )  # fmt: skip
        self._run.define_metric("*", step_metric="round")

    def on_round(self, row: Mapping[str, Any]) -> None:
        self._run.log({"round": row["round"], **scalars(row, "round/")})

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        self._run.log({"round": row["round"], **scalars(row, _evaluation_prefix(row))})

    def on_end(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "done" else 1)


def _telemetry(where: str | None, folder: Path | None) -> Sink:
    from fedbalancer.store.telemetry import Telemetry

    return Telemetry(where, folder)


TRACKERS: Mapping[str, tuple[Callable[[str | None, Path | None], Sink], str, str]] = {
    "tensorboard": (TensorBoard, "tensorboardX", "track"),
    "mlflow": (MLflow, "mlflow", "track"),
    "wandb": (WandB, "wandb", "track"),
    "prometheus": (_telemetry, "prometheus_client", "telemetry"),
}
"""The built-in trackers, each with the package it needs and the extra that installs it."""
