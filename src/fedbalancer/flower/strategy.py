"""The server side: `Strategy`, which runs any method as one of Flower's strategies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.files import cache_folder
from fedbalancer.core.metrics import ACCURACY, Metric
from fedbalancer.core.schedules import RateFunction
from fedbalancer.core.settings import resolve
from fedbalancer.flower.aggregation import with_aggregator
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Grid, Result
from fedbalancer.flower.evaluation import CombineMetrics, Evaluators, Target
from fedbalancer.flower.failures import check_max_failed_rounds
from fedbalancer.flower.grid_engine import WAITING, Waiting
from fedbalancer.flower.hooks import RoundHooks, overrides
from fedbalancer.flower.reading import MOST_SAMPLES
from fedbalancer.flower.recorder import RunRecorder, ending_status, run_folder_path
from fedbalancer.flower.release import Gate
from fedbalancer.flower.run import EvaluateFn, Run
from fedbalancer.flower.secure import SecureAggregation
from fedbalancer.flower.secure_rounds import check_secure_method
from fedbalancer.methods.composition import check_composition, with_local_statistics
from fedbalancer.methods.modifiers import LAST
from fedbalancer.methods.modifiers import robust as robust_of
from fedbalancer.methods.names import parse_method_name
from fedbalancer.methods.table import Method
from fedbalancer.methods.table import method as method_of
from fedbalancer.server.report_check import MOST_WEIGHT
from fedbalancer.store.checkpoint import KEPT
from fedbalancer.store.privacy import model_claim
from fedbalancer.store.tracking import check_sinks

REPLACED = {
    "fraction_train": "use clients_per_round; methods plan with a fixed number of clients per round",
    "min_train_nodes": "use clients_per_round; methods plan with a fixed number of clients per round",
}
"""Arguments of Flower's strategies that have another name here."""
FIXED = {
    "weighted_by_key": ("num-examples", "updates are weighted by the samples trained, which the server checks"),
    "arrayrecord_key": ("arrays", "clients of fedbalancer expect the model there"),
    "configrecord_key": ("config", "clients of fedbalancer expect the configuration there"),
}
"""Arguments of Flower's strategies that have one valid value here, and why."""
DEFAULT_CLIENTS = 2
_log = logging.getLogger("flwr.fedbalancer")


class Strategy(RoundHooks):
    """Runs a method on real devices, as one of Flower's strategies.

    Call `start` inside a `ServerApp`. A subclass may override `configure_train`, `aggregate_train`,
    `configure_evaluate`, `aggregate_evaluate` and `summary`.

    With `run_key`, a run that is started again continues after its last checkpoint, also if the `ServerApp` or the
    SuperLink died. Without `run_key` and `checkpoint_dir`, nothing is kept on disk.

    Example:
        >>> strategy = Strategy("fedbalancer", clients_per_round=5, epochs=2, settings={"w": 5})
        >>> strategy.method.name, strategy.settings.clients_per_round
        ('fedbalancer', 5)

        In a `ServerApp`:

        >>> result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=50)  # doctest: +SKIP

    Args:
        method: Name of a method (`fedbalancer list methods`) or a `Method`.
        clients_per_round: Clients that are selected in each round.
        epochs: Local epochs.
        batch_size: Samples per local batch.
        learning_rate: Local learning rate, or a function of the round that returns it.
        settings: Other settings by name (`fedbalancer list settings`), such as `optimizer` and `schedule`.
        aggregate: Another aggregation policy, or one of Flower's strategies.
        robust: Whether to use the method's `+robust` form, which limits the influence of malicious clients.
        seed: Seed of all random choices.
        min_clients: Clients that the first round waits for. Default: 2.
        min_available_nodes: Flower's name for `min_clients`.
        eval_every: Rounds between two evaluations.
        target: Value of `target_metric` at which the run ends before its last round. One evaluation is enough.
        target_metric: Metric of the target: the name of a built-in metric, or an `fb.Metric` with its direction. The
            evaluation on the server counts if there is one, otherwise that on clients. Default: accuracy.
        federated_evaluate: Whether clients evaluate the model.
        fraction_evaluate: Fraction of the idle clients that evaluate. Default: all with `federated_evaluate`.
        min_evaluate_nodes: Smallest number of clients that evaluate.
        train_metrics_aggr_fn: Combines the custom metrics of reports. Default: mean weighted by samples.
        evaluate_metrics_aggr_fn: Combines the metrics of evaluations. Default: mean weighted by samples.
        checkpoint_dir: Folder of the run folders. Default: the user's cache folder.
        run_key: Name of the run and of its folder.
        accept_changes: Whether a run may continue with changed settings. They are recorded in `manifest.json`.
        keep: Checkpoints to keep besides the one with the best evaluation; at least 2.
        gate: Condition that a model must meet before it is exported or registered, such as `accuracy >= 0.8`.
        task: Name of the task in reports.
        max_failed_rounds: Consecutive rounds without a usable report that end the run; None for no limit.
        most_samples: Largest number of samples that a client may report.
        most_weight: Largest weight of an update, in multiples of the round's median.
        authenticated_nodes: Whether a client id belongs to the first node that used it. Requires a SuperLink with
            `--enable-supernode-auth`.
        secure_aggregation: Whether the server sees only the sum of a round's updates, or a `SecureAggregation` with its
            settings. Methods that need more are refused.
        measure_network: Whether deadlines follow measured transport times, and slow clients are paused.
        waiting: How the server waits for clients.
        track: Experiment trackers: `tensorboard[:DIR]`, `mlflow[:URI]`, `wandb[:PROJECT]`, `prometheus[:[HOST:]PORT]`,
            `package.module:Class`, or objects of classes derived from `fedbalancer.experiments.tracking.Sink`.
        log: Called with the name and the fields of every event.
        others: Other arguments of Flower's strategies. They are refused unless they have Flower's default value.

    Raises:
        BadSetting: A setting is invalid, or would have no effect.
    """

    def __init__(
        self,
        method: str | Method = "fedbalancer",
        *,
        clients_per_round: int = 10,
        epochs: int = 5,
        batch_size: int = 10,
        learning_rate: float | RateFunction = 0.01,
        settings: Mapping[str, Any] | None = None,
        aggregate: Any = None,
        robust: bool = False,
        seed: int = 0,
        min_clients: int | None = None,
        min_available_nodes: int | None = None,
        eval_every: int = 1,
        target: float | None = None,
        target_metric: str | Metric = ACCURACY,
        federated_evaluate: bool = False,
        fraction_evaluate: float | None = None,
        min_evaluate_nodes: int | None = None,
        train_metrics_aggr_fn: CombineMetrics | None = None,
        evaluate_metrics_aggr_fn: CombineMetrics | None = None,
        checkpoint_dir: Path | str | None = None,
        run_key: str | None = None,
        accept_changes: bool = False,
        keep: int = KEPT,
        gate: str | None = None,
        task: str = "flower",
        max_failed_rounds: int | None = 5,
        most_samples: int = MOST_SAMPLES,
        most_weight: float = MOST_WEIGHT,
        authenticated_nodes: bool = False,
        secure_aggregation: bool | SecureAggregation = False,
        measure_network: bool = True,
        waiting: Waiting = WAITING,
        track: Sequence[Any] = (),
        log: Callable[..., None] | None = None,
        **others: Any,
    ) -> None:
        _check_others(others)
        arguments = {
            "clients_per_round": clients_per_round, "epochs": epochs, "batch_size": batch_size,
            "learning_rate": learning_rate, "eval_every": eval_every,
        }  # fmt: skip
        method = _make_robust(method) if robust else method
        in_brackets = parse_method_name(method).settings if isinstance(method, str) else method.settings
        self.settings = resolve(arguments, settings or {}, in_brackets)
        composed = method_of(method, self.settings) if isinstance(method, str) else method
        composed = with_local_statistics(composed, self.settings)
        self.method = composed if aggregate is None else with_aggregator(composed, aggregate)
        check_composition(self.method)
        if self.method.train.tuning_epochs:
            raise BadSetting(
                f"train {type(self.method.train).__name__} fine-tunes before evaluations, which clients on Flower do "
                "not; use it in the simulator (fedbalancer run)"
            )
        self.secure = SecureAggregation() if secure_aggregation is True else secure_aggregation or None
        if self.secure is not None:
            check_secure_method(self.method, self.secure, self.settings.clients_per_round)
            if overrides(self, "aggregate_train"):
                raise BadSetting("secure_aggregation: aggregate_train would get replies without updates; leave it out")
        elif self.method.summary.needs_secure_aggregation:
            raise BadSetting(
                f"summary {type(self.method.summary).__name__} needs secure aggregation: set secure_aggregation=True, "
                "or use Histogram"
            )
        if self.method.aggregate.noise_is_known:
            raise BadSetting(
                f"aggregate {type(self.method.aggregate).__name__} draws its noise from the seed, which every client "
                "knows; set draws='system'"
            )
        if self.method.train.cache_rounds is not None:
            raise BadSetting(
                f"method {self.method.name!r} runs in the simulator only: a Flower client that misses its deadline "
                "does not keep its training, and every order contains the model"
            )
        if self.settings.attacks:
            raise BadSetting(f"attacks = {self.settings.attacks}: only `fedbalancer run` can simulate attackers")
        self.seed, self.min_clients = seed, _min_clients(min_clients, min_available_nodes)
        needs_evaluation = [] if evaluate_metrics_aggr_fn is None else ["evaluate_metrics_aggr_fn"]
        needs_evaluation += [name for name in ("configure_evaluate", "aggregate_evaluate") if overrides(self, name)]
        self.evaluators = Evaluators.of(federated_evaluate, fraction_evaluate, min_evaluate_nodes, needs_evaluation)
        if self.evaluators.fraction and self.method.part.outside == "local":
            raise BadSetting(
                f"part {type(self.method.part).__name__} keeps layers on the clients, and evaluations on Flower's "
                "clients use the server's layers; leave federated_evaluate out, or evaluate in the simulator"
            )
        self.checkpoint_dir, self.run_key, self.task = checkpoint_dir, run_key, task
        self.train_metrics_aggr_fn, self.evaluate_metrics_aggr_fn = train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        self.accept_changes, self.max_failed_rounds = accept_changes, check_max_failed_rounds(max_failed_rounds)
        if not most_weight >= 1:
            raise BadSetting(f"most_weight = {most_weight} must be at least 1")
        self.authenticated_nodes, self.most_weight = authenticated_nodes, most_weight
        self.target = None if target is None else Target(target_metric, target)
        if target is None and target_metric != ACCURACY:
            raise BadSetting(f"target_metric = {target_metric!r} would have no effect without target")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < KEPT:
            raise BadSetting(f"keep = {keep!r} must be a whole number, at least {KEPT}")
        self.keep, self.gate = keep, None if gate is None else str(Gate.parse(gate))
        check_sinks(track)
        self.track = tuple(track)
        if run_key is not None:
            run_folder_path("", run_key)  # a wrong key is an error before the app runs
        self.most_samples, self.measure_network, self.waiting, self.log = most_samples, measure_network, waiting, log

    def summary(self) -> None:
        """Log the method and its policies."""
        _log.info("FedBalancer on Flower: method %s, seed %d", self.method.name, self.seed)
        for slot in SLOTS:
            _log.info("    %-9s %s", slot, getattr(self.method, slot))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run all rounds. The arguments are those of Flower's strategies.

        Args:
            grid: The grid that Flower passes to the `ServerApp`.
            initial_arrays: The initial model.
            num_rounds: Number of rounds, including those before a resume.
            timeout: Longest duration of a round without a deadline, and longest wait for clients, in seconds.
            train_config: Values that are sent with every order.
            evaluate_config: Values that are sent with every evaluation.
            evaluate_fn: Evaluates a model on the server: (round, model) -> metrics.

        Returns:
            Flower's `Result`: the final model and the metrics of all rounds.

        Raises:
            NoUsableReports: `max_failed_rounds` consecutive rounds had no usable report.
            MissingData: Too few clients connect.
            RunFolderError: The run cannot be resumed with these settings.
        """
        _log.info("Starting %s strategy:", type(self).__name__)
        self.summary()
        if self.target is not None and evaluate_fn is None and not self.evaluators.fraction:
            raise BadSetting(
                f"target = {self.target.value:g} needs evaluations: evaluate_fn or federated_evaluate=True"
            )
        started = time.monotonic()
        with ExitStack() as stack:
            run = Run(self, grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
            if (claim := model_claim(run.method)) is not None and claim.why:
                _log.warning(
                    "The epsilon of the model is infinite, because %s (docs/explanation/privacy.md)", claim.why
                )
            folder, is_kept = self._folder(stack, run)
            record = RunRecorder(folder, run.manifest(), self.accept_changes, self.track, is_kept, self.keep)
            try:
                run.run_rounds(record)
            except BaseException as error:
                record.close(*ending_status(error), run.saved, run.layout.layout)
                raise
            finally:
                self.active_run = None
            record.close("done", run.why_ended, run.model(run.state), run.layout.layout)
        _log.info("Strategy execution finished in %.2fs", time.monotonic() - started)
        _log.info("Final results:")
        for line in str(run.result).splitlines():
            _log.info("\t%s", line)
        return run.result

    def _folder(self, stack: ExitStack, run: Run) -> tuple[Path, bool]:
        """Return the run folder, and whether it is kept."""
        if self.run_key is None and self.checkpoint_dir is None:
            return Path(stack.enter_context(TemporaryDirectory(prefix="fedbalancer-"))) / "run", False
        base = self.checkpoint_dir if self.checkpoint_dir is not None else cache_folder() / "flower-runs"
        return run_folder_path(base, run.key), True


def _make_robust(method: str | Method) -> str | Method:
    """Return the `+robust` form of a method."""
    if not isinstance(method, str):
        return replace(robust_of(method), name=f"{method.name}{LAST}")
    parsed = parse_method_name(method)
    return method if LAST in parsed.stem else str(replace(parsed, stem=parsed.stem + LAST))


def _check_others(others: Mapping[str, Any]) -> None:
    """Refuse arguments that would have no effect."""
    for name, value in others.items():
        if name in REPLACED:
            raise BadSetting(f"{name} = {value!r} would have no effect: {REPLACED[name]}")
        if name not in FIXED:
            raise TypeError(f"Strategy got an unexpected keyword argument {name!r}")
        valid, why = FIXED[name]
        if value != valid:
            raise BadSetting(f"{name} = {value!r} must be {valid!r}: {why}")


def _min_clients(min_clients: int | None, min_available_nodes: int | None) -> int:
    """Return the number of clients that the first round waits for."""
    values = {number for number in (min_clients, min_available_nodes) if number is not None}
    if len(values) > 1:
        raise BadSetting(
            f"min_clients = {min_clients} and min_available_nodes = {min_available_nodes} are the same setting"
        )
    least = values.pop() if values else DEFAULT_CLIENTS
    if least < 1:
        raise BadSetting(f"min_clients = {least} must be at least 1")
    return least
