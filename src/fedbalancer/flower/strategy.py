"""The server's side: a strategy in Flower's habit, with `loop.py` and the policies of the simulator inside."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.files import cache_folder
from fedbalancer.core.settings import resolve
from fedbalancer.flower.aggregation import with_aggregator
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Grid, Result
from fedbalancer.flower.evaluation import CombineMetrics, Evaluators
from fedbalancer.flower.failures import check_max_failed_rounds
from fedbalancer.flower.grid_engine import WAITING, Waiting
from fedbalancer.flower.hooks import RoundHooks, overrides
from fedbalancer.flower.reading import MOST_SAMPLES
from fedbalancer.flower.recorder import RunRecorder, ending_status, run_folder_path
from fedbalancer.flower.run import EvaluateFn, Run
from fedbalancer.methods.modifiers import LAST
from fedbalancer.methods.names import parse_method_name
from fedbalancer.methods.robust import robust as robust_of
from fedbalancer.methods.table import Method
from fedbalancer.methods.table import method as method_of
from fedbalancer.server.report_check import MOST_WEIGHT
from fedbalancer.store.privacy import model_claim

ELSEWHERE = {
    "fraction_train": "a method plans with a fixed number of clients a round, clients_per_round",
    "min_train_nodes": "a method plans with a fixed number of clients a round, clients_per_round",
}
"""Arguments of Flower's strategies that are said in another way here."""
FIXED = {
    "weighted_by_key": ("num-examples", "updates weigh by the samples trained, which the server checks"),
    "arrayrecord_key": ("arrays", "clients of fedbalancer look for the model there"),
    "configrecord_key": ("config", "clients of fedbalancer look for the configuration there"),
}
"""Arguments with one value that is true here, and why."""
DEFAULT_CLIENTS = 2


def check_others(given: Mapping[str, Any]) -> None:
    """Refuse what would have no effect, by name."""
    for name, value in given.items():
        if name in ELSEWHERE:
            raise BadSetting(f"{name} = {value!r} would have no effect: {ELSEWHERE[name]}")
        if name not in FIXED:
            raise TypeError(f"Strategy got an unexpected keyword argument {name!r}")
        only, why = FIXED[name]
        if value != only:
            raise BadSetting(f"{name} = {value!r} must be {only!r}: {why}")


def least_clients(min_clients: int | None, min_available_nodes: int | None) -> int:
    """How many clients the first round waits for, by our name for it or by Flower's."""
    said = {number for number in (min_clients, min_available_nodes) if number is not None}
    if len(said) > 1:
        raise BadSetting(f"min_clients = {min_clients} and min_available_nodes = {min_available_nodes} say the same")
    least = said.pop() if said else DEFAULT_CLIENTS
    if least < 1:
        raise BadSetting(f"min_clients = {least} must be at least 1")
    return least


_log = logging.getLogger("flwr.fedbalancer")


def _robust(method: str | Method) -> str | Method:
    """The liar-proof form of a method."""
    if not isinstance(method, str):
        return replace(robust_of(method), name=f"{method.name}{LAST}")
    found = parse_method_name(method)
    return method if LAST in found.stem else str(replace(found, stem=found.stem + LAST))


class Strategy(RoundHooks):
    """Any method of this project on real devices, as one of Flower's strategies: `start` it inside a `ServerApp`.

    `method` is a name or a `Method`. `clients_per_round`, `epochs`, `batch_size` and `learning_rate` are what clients
    train with; other `settings` are those of `--set` (an unknown key is an error). With `robust` it is the method's
    `+robust` form, which a few liars cannot steer, and so says the manifest: for clients that are not all known and
    trusted. `aggregate` puts another policy, or one of Flower's own strategies, into the aggregation slot. The first
    round waits for `min_clients` (`min_available_nodes` is Flower's word for it). The model is evaluated every
    `eval_every` rounds, by `evaluate_fn` of `start` and, with `federated_evaluate`, by the clients, or by
    `fraction_evaluate` of those that are there and at least `min_evaluate_nodes`; `evaluate_metrics_aggr_fn` makes
    their metrics one (default: means, weighted by samples), `train_metrics_aggr_fn` those that clients of your own send
    with their reports. `others` are arguments of Flower's strategies that would have no effect here: refused by name.

    A subclass may have methods of its own for `configure_train`, `aggregate_train`, `configure_evaluate` and
    `aggregate_evaluate`, which `start` calls in every round (`hooks.py` says what each may do), and for `summary`.

    The run goes into the folder `run_key` under `checkpoint_dir` (default: the user's cache folder); started again with
    the same key, also after the SuperLink or the ServerApp died, it goes on from its last checkpoint. With other
    settings than before it is refused, unless `accept_changes`; then they are written down. Without a key nothing stays
    on disk. `task` is what reports call the problem.

    After `max_failed_rounds` rounds in a row without a usable report the run ends with an error (None: never).

    `seed` decides which clients and samples are drawn. A client may claim at most `most_samples`, and its update weighs
    at most `most_weight` times the median one of its round. With `authenticated_nodes` (SuperLink option
    `--enable-supernode-auth`) a client's id belongs to the node that used it first, for the whole run. If
    `measure_network`, deadlines follow what transport really takes, and a client that misses one after the other is
    asked less often. `waiting` says how often replies are asked for, and whose clock counts; `log` is called with the
    name and the fields of every event.
    """

    def __init__(
        self,
        method: str | Method = "fedbalancer",
        *,
        clients_per_round: int = 10,
        epochs: int = 5,
        batch_size: int = 10,
        learning_rate: float = 0.01,
        settings: Mapping[str, Any] | None = None,
        aggregate: Any = None,
        robust: bool = False,
        seed: int = 0,
        min_clients: int | None = None,
        min_available_nodes: int | None = None,
        eval_every: int = 1,
        federated_evaluate: bool = False,
        fraction_evaluate: float | None = None,
        min_evaluate_nodes: int | None = None,
        train_metrics_aggr_fn: CombineMetrics | None = None,
        evaluate_metrics_aggr_fn: CombineMetrics | None = None,
        checkpoint_dir: Path | str | None = None,
        run_key: str | None = None,
        accept_changes: bool = False,
        task: str = "flower",
        max_failed_rounds: int | None = 5,
        most_samples: int = MOST_SAMPLES,
        most_weight: float = MOST_WEIGHT,
        authenticated_nodes: bool = False,
        measure_network: bool = True,
        waiting: Waiting = WAITING,
        log: Callable[..., None] | None = None,
        **others: Any,
    ) -> None:
        check_others(others)
        given = {
            "clients_per_round": clients_per_round, "epochs": epochs, "batch_size": batch_size,
            "learning_rate": learning_rate, "eval_every": eval_every,
        }  # fmt: skip
        method = _robust(method) if robust else method
        in_brackets = parse_method_name(method).settings if isinstance(method, str) else method.settings
        self.settings = resolve(given, settings or {}, in_brackets)
        composed = method_of(method, self.settings) if isinstance(method, str) else method
        self.method = composed if aggregate is None else with_aggregator(composed, aggregate)
        if self.method.summary.needs_secure_aggregation:
            raise BadSetting(
                f"summary {type(self.method.summary).__name__} needs secure aggregation of what clients say of their "
                "losses, and Flower has it for model updates only; take Histogram"
            )
        if self.method.aggregate.noise_is_known:
            raise BadSetting(
                f"aggregate {type(self.method.aggregate).__name__} draws its noise from the seed, which every client "
                "is told; say draws='system'"
            )
        if self.settings.attacks:
            raise BadSetting(f"attacks = {self.settings.attacks}: attackers are simulated; `fedbalancer run` has them")
        self.seed, self.min_clients = seed, least_clients(min_clients, min_available_nodes)
        asked = [] if evaluate_metrics_aggr_fn is None else ["evaluate_metrics_aggr_fn"]
        asked += [name for name in ("configure_evaluate", "aggregate_evaluate") if overrides(self, name)]
        self.evaluators = Evaluators.of(federated_evaluate, fraction_evaluate, min_evaluate_nodes, asked)
        self.checkpoint_dir, self.run_key, self.task = checkpoint_dir, run_key, task
        self.train_metrics_aggr_fn, self.evaluate_metrics_aggr_fn = train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        self.accept_changes, self.max_failed_rounds = accept_changes, check_max_failed_rounds(max_failed_rounds)
        if not most_weight >= 1:
            raise BadSetting(f"most_weight = {most_weight} must be at least 1")
        self.authenticated_nodes, self.most_weight = authenticated_nodes, most_weight
        self.most_samples, self.measure_network, self.waiting, self.log = most_samples, measure_network, waiting, log

    def summary(self) -> None:
        """Log what this strategy does."""
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
        """Run so many rounds and return Flower's `Result`. The arguments are those of Flower's strategies; `timeout` is
        how long a round without a deadline may take, and how long the server waits for the first clients."""
        _log.info("Starting %s strategy:", type(self).__name__)
        self.summary()
        began = time.monotonic()
        with ExitStack() as stack:
            run = Run(self, grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
            if (claim := model_claim(run.method)) is not None and claim.why:
                _log.warning(
                    "The epsilon of the model is infinite, because %s (docs/explanation/privacy.md)", claim.why
                )
            record = RunRecorder(self._folder(stack, run), run.manifest(), self.accept_changes)
            try:
                run.run_rounds(record)
            except BaseException as error:
                record.close(*ending_status(error), run.saved, run.layout.layout)
                raise
            finally:
                self.active_run = None
            record.close("done", None, run.model(run.state), run.layout.layout)
        _log.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        _log.info("Final results:")
        for line in str(run.result).splitlines():
            _log.info("\t%s", line)
        return run.result

    def _folder(self, stack: ExitStack, run: Run) -> Path:
        if self.run_key is None and self.checkpoint_dir is None:
            return Path(stack.enter_context(TemporaryDirectory(prefix="fedbalancer-"))) / "run"
        base = self.checkpoint_dir if self.checkpoint_dir is not None else cache_folder() / "flower-runs"
        return run_folder_path(base, run.key)
