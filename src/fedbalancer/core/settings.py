"""Settings of a run: typed keys with ranges, and the addresses of policy fields.

Layers, the last one wins: defaults, task, `fedbalancer.toml`, `--set`, brackets of a method (`fedbalancer[w=5]`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_serializer

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.cost import ESTIMATED
from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.fields import BelowOne, Bounds, Count, NonzeroShare, Seconds, Step, Weight, read_type
from fedbalancer.core.optimizers import CUSTOM, OPTIMIZERS, SGD, optimizer_text
from fedbalancer.core.schedules import SCHEDULES, RateFunction, describe_rate, read_schedule
from fedbalancer.core.types import TrainOptions

SHORT_NAMES: Mapping[str, str] = {
    "w": "pace.w",
    "lss": "pace.lss",
    "dss": "pace.dss",
    "p": "samples.p",
    "noise_factor": "summary.noise_factor",
}
"""The paper's symbols for policy fields, and the addresses they stand for."""
METHOD_VALUES = ("mu", "forward_pass", "epoch_batches")
"""Values of a method that belong to no policy."""
_SHORTENED = {address: short for short, address in SHORT_NAMES.items()}
_LEADING_POINT = re.compile(r"^(?=\.\d)|(?<=^[+-])(?=\.\d)")
"""Where a number such as .75 or -.5 lacks the 0 that TOML requires."""


def _schedule_text(value: Any) -> str | None:
    schedule = read_schedule(value)
    return None if schedule is None else str(schedule)


class Settings(BaseModel):
    """Settings of a run, except for the fields of policies, which have their defaults in the policies.

    Args:
        batch_size: Samples in a mini-batch (B).
        epochs: Local epochs per round (E).
        learning_rate: Step size of the local optimizer.
        schedule: Multiplies the learning rate by a share that depends on the round.
        optimizer: Local optimizer.
        accumulate: Batches per step of the optimizer.
        dtype: Type of the numbers in the forward pass of a training (autocast).
        drop_last: Whether an epoch omits a short last batch.
        batch_norm: Running statistics of batch norms are averaged with the model, stay on the client, or are forbidden.
        optimizer_state: Whether clients reset or keep the state of the optimizer between rounds.
        clients_per_round: Clients selected per round (K).
        rounds: Number of rounds. In a comparison, FedAvg+1T's time for them is the budget of all methods.
        eval_every: Rounds between two evaluations on the test data.
        eval_every_s: Simulated seconds between additional evaluations (comparisons: budget / 50).
        eval_clients: Clients on whose data the final model is evaluated. If there are more, the seed selects them.
        clip_norm: Global norm at which the gradient of a step is clipped.
        prox_mu: Weight of Prox's proximal term.
        sample_selection_deadline: SampleSelection's deadline in multiples of T: that of the better Prox.
        latency: Row of batch latencies: femnist, celeba, reddit, shakespeare, har; custom (the task's own); flops
            (estimated from the model).
        latency_samples: Batch latencies sampled per client before training (k).
        window_s: Seconds that selecting clients takes.
        network_floor: Minimum network speed as a share of the mean speed.
        device_spread: Exponent of the speed ratios of phones: 0 all equal, 1 as measured.
        label_noise: Share of the clients' labels that are replaced by wrong ones.
        availability: File of availability traces. Off: all clients are always available.
        epsilon_budget: Maximum epsilon of a client's metadata. A client that would exceed it is not selected again.
        privacy_delta: Delta of all epsilons.
        save_exact_losses: Whether private runs save exact losses in checkpoints and rounds.parquet.
        attacks: Simulated attackers, each NAME:COUNT (`fedbalancer list attacks`).
        checkpoint_s: Minimum seconds between two checkpoints.
        policies: Changed policies by slot, and changed fields of policies by address.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    batch_size: Count = 10
    epochs: Annotated[int, Bounds(ge=1, le=1000)] = 5
    learning_rate: Step | RateFunction = 0.01
    schedule: Annotated[str | None, BeforeValidator(_schedule_text)] = None
    optimizer: Annotated[str, BeforeValidator(optimizer_text)] = SGD
    accumulate: Annotated[int, Bounds(ge=1, le=10**6)] = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    drop_last: bool = False
    batch_norm: Literal["average", "local", "forbid"] = "average"
    optimizer_state: Literal["reset", "keep"] = "reset"
    clients_per_round: Count = 10
    rounds: Count = 50
    eval_every: Count = 5
    eval_every_s: Annotated[float, Bounds(gt=0, le=10**9)] | None = None
    eval_clients: Annotated[int, Bounds(ge=0, le=10**9)] = 1000
    clip_norm: Annotated[float, Bounds(gt=0)] | None = None
    prox_mu: Weight = 0.0
    sample_selection_deadline: Literal[1, 2] = 1

    latency: str = ESTIMATED
    latency_samples: Annotated[int, Bounds(ge=1, le=10**4)] = 10
    window_s: Seconds = 20.0
    network_floor: NonzeroShare | None = None
    device_spread: Annotated[float, Bounds(ge=0, le=10)] = 1.0
    label_noise: BelowOne = 0.0
    availability: str | None = None

    epsilon_budget: Annotated[float, Bounds(gt=0)] | None = None
    privacy_delta: Annotated[float, Bounds(gt=0, lt=1)] = 1e-5
    save_exact_losses: bool = False

    attacks: tuple[str, ...] = ()
    checkpoint_s: Seconds = 1.0
    policies: dict[str, Any] = Field(default_factory=dict)

    @field_serializer("learning_rate", when_used="json")
    def _describe_rate(self, rate: float | RateFunction) -> float | str:
        return describe_rate(rate)

    def training(self) -> TrainOptions:
        """Return how clients turn batches into steps."""
        return TrainOptions(
            self.optimizer, self.accumulate, self.dtype, self.drop_last, self.batch_norm, self.optimizer_state
        )


RUN_KEYS = tuple(name for name in Settings.model_fields if name != "policies")
"""The keys of `Settings` that belong to no policy."""


def is_policy_key(key: str) -> bool:
    """Whether a key addresses a policy or a value of a method: `deadline`, `deadline.guard_s`, `w`, `mu`.

    Example:
        >>> is_policy_key("deadline.guard_s"), is_policy_key("w"), is_policy_key("epochs")
        (True, True, False)
    """
    return key.partition(".")[0] in SLOTS or key in SHORT_NAMES or key in METHOD_VALUES


def known_keys() -> tuple[str, ...]:
    """Return all keys that settings can have, except for the fields of policies."""
    return (*RUN_KEYS, *SHORT_NAMES, *METHOD_VALUES, *SLOTS)


def resolve(*layers: Mapping[str, Any]) -> Settings:
    """Merge layers of settings and check them.

    Args:
        *layers: Settings by key; the last layer wins.

    Returns:
        The settings. Fields of policies are checked later, by the policies of a method.

    Raises:
        UnknownName: If there is no such key.
        BadSetting: If a value is not allowed.
    """
    merged = merge(*layers)
    for key in merged:
        if key not in RUN_KEYS and not is_policy_key(key):
            raise UnknownName("setting", key, known_keys())
    policies = {key: value for key, value in merged.items() if is_policy_key(key)}
    try:
        return Settings(**{key: merged[key] for key in merged if key not in policies}, policies=policies)
    except ValidationError as error:
        problems = dict.fromkeys(_describe_problem(problem) for problem in error.errors())
        raise BadSetting("; ".join(problems)) from None


def as_text(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which optimizers and schedules are texts, so that a run folder can hold them.

    Args:
        settings: Settings by key, which may contain objects.

    Raises:
        BadSetting: If a function has no text.

    Example:
        >>> from fedbalancer.core.schedules import Cosine
        >>> as_text({"schedule": Cosine(rounds=9), "epochs": 2})
        {'schedule': 'cosine(rounds=9)', 'epochs': 2}
    """
    plain = dict(settings)
    if "schedule" in plain and not isinstance(plain["schedule"], str):
        plain["schedule"] = _schedule_text(plain["schedule"])
    if callable(plain.get("optimizer")):
        plain["optimizer"] = optimizer_text(plain["optimizer"])
    for key, value in settings.items():
        if callable(value) and (callable(plain[key]) or plain[key] == CUSTOM):
            raise BadSetting(f"setting {key} is a function, which only a task can have: Task({key}=...)")
    return plain


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge layers of settings; the last one wins. Tables of slots become addresses, and addresses short names.

    Example:
        >>> merge({"w": 5, "deadline": {"guard_s": 20}}, {"pace.w": 6, "work": "WholeBatches"})
        {'w': 6, 'deadline.guard_s': 20, 'work': 'WholeBatches'}
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and (key in SLOTS or key == "policies"):
                prefix = "" if key == "policies" else f"{key}."
                merged.update({short_key(f"{prefix}{field}"): each for field, each in value.items()})
            else:
                merged[short_key(key)] = value
    return merged


def short_key(key: str) -> str:
    """Return the short name of an address that has one, and any other key unchanged."""
    return _SHORTENED.get(key, key)


def _describe_problem(problem: Any) -> str:
    key = str(problem["loc"][0]) if problem["loc"] else "settings"
    return f"setting {key} = {problem['input']!r} must be {allowed(key)}"


def allowed(key: str) -> str:
    """Return the allowed values of a run-level setting in words.

    Example:
        >>> allowed("learning_rate"), allowed("clip_norm"), allowed("attacks")
        ('a number > 0 and <= 1000', 'a number > 0; off', 'a list of texts')
    """
    declared = read_type(get_type_hints(Settings, include_extras=True)[key])
    return _IN_WORDS.get(key) or declared.text


_IN_WORDS = {
    "attacks": "a list of texts",
    "optimizer": f"one of {', '.join(OPTIMIZERS)}, with options as in adamw(weight_decay=0.01)",
    "schedule": f"one of {', '.join(SCHEDULES)}, as in cosine(rounds=50); off",
}


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` pairs of the command line.

    Args:
        assignments: Texts such as `w=5`. Values are TOML; anything else is plain text.

    Returns:
        Values by key.

    Raises:
        BadSetting: If a text is no `key=value` pair.

    Example:
        >>> parse_assignments(["w=5", "latency=har", "deadline.guard_s=20"])
        {'w': 5, 'latency': 'har', 'deadline.guard_s': 20}
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise BadSetting(f"--set {assignment!r} must look like key=value")
        values = merge(values, {key.strip(): parse_value(text.strip())})
    return values


def parse_value(text: str) -> Any:
    """Parse a TOML value; `.75` is a number, `off` is None, and anything else is text.

    Example:
        >>> parse_value(".75"), parse_value("off"), parse_value("har"), parse_value("False")
        (0.75, None, 'har', False)
    """
    if text.lower() in ("none", "null", "off"):
        return None
    try:
        return tomllib.loads("value = " + _LEADING_POINT.sub("0", _as_toml_word(text)))["value"]
    except tomllib.TOMLDecodeError:
        return text


def _as_toml_word(text: str) -> str:
    return text.lower() if text in ("True", "False") else text


def read_config(path: Path | None) -> dict[str, Any]:
    """Read a TOML file of settings.

    Args:
        path: The file. Default: `fedbalancer.toml` in the working folder, if it exists.

    Returns:
        The content of the file; empty if there is no default file.

    Raises:
        RunFolderError: If the file cannot be read.
        BadSetting: If it is not valid TOML.
    """
    file = path if path is not None else Path("fedbalancer.toml")
    if path is None and not file.is_file():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{file} is not valid TOML: {error}") from error
