"""All settings of a run, typed and with their ranges. Defaults < task < `fedbalancer.toml` < `--set` < brackets of a
method (`fedbalancer[w=5]`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
NonzeroShare = Annotated[float, Field(gt=0, le=1)]
BelowHalf = Annotated[float, Field(ge=0, lt=0.5)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Step = Annotated[float, Field(gt=0, le=1000)]
Weight = Annotated[float, Field(ge=0, le=1000)]
UpTo100 = Annotated[float, Field(ge=0, le=100)]
Seconds = Annotated[float, Field(ge=0, le=10**6)]
Rounds = Annotated[int, Field(ge=1, le=10**6)]
LEADING_POINT = re.compile(r"^(?=\.\d)|(?<=^[+-])(?=\.\d)")
"""Where a number such as .75 or -.5 lacks the 0 that TOML asks for."""
GridStep = Annotated[float, Field(gt=0, le=10**9)]


class Settings(BaseModel):
    """Every key that `--set key=value` and a TOML file may give."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    batch_size: Count = Field(10, description="samples in a mini-batch (B)")
    epochs: Annotated[int, Field(ge=1, le=1000)] = Field(5, description="local epochs a round (E)")
    learning_rate: Step = Field(0.01, description="step size of the local SGD")
    clients_per_round: Count = Field(10, description="clients selected for a round (K)")
    rounds: Count = Field(50, description="rounds; in a comparison, FedAvg+1T's clock after them is everybody's budget")
    eval_every: Count = Field(5, description="rounds between two evaluations on the test data")
    eval_every_s: GridStep | None = Field(
        None, description="simulated seconds between two evaluations, beside those by rounds (comparisons: budget / 50)"
    )
    eval_clients: Annotated[int, Field(ge=0, le=10**9)] = Field(
        1000, description="clients on whose own data the final model is evaluated, drawn by the seed if there are more"
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(None, description="clip gradients at this global norm")
    prox_mu: Weight = Field(0.0, description="weight of Prox's proximal term")
    sample_selection_deadline: Literal[1, 2] = Field(
        1, description="SampleSelection's deadline in T, as of the better Prox"
    )

    latency: str = Field("femnist", description="row of batch latencies: femnist, celeba, reddit, shakespeare, har")
    latency_samples: Annotated[int, Field(ge=1, le=10**4)] = Field(
        10, description="batch latencies sampled before training (k)"
    )
    window_s: Seconds = Field(20.0, description="seconds that selecting clients takes")
    network_floor: NonzeroShare | None = Field(None, description="lift network speeds to this share of their mean")
    device_spread: Annotated[float, Field(ge=0, le=10)] = Field(
        1.0, description="how unequal phones are: 0 all alike, 1 as measured, 2 with the squared ratios of their speeds"
    )
    label_noise: BelowOne = Field(0.0, description="share of the clients' labels that are wrong on purpose")
    availability: str | None = Field(None, description="file of availability traces; off: everybody is always there")

    w: Rounds = Field(20, description="window of the ratio control in rounds (Alg. 3)")
    lss: Share = Field(0.05, description="loss threshold step size (Alg. 3)")
    dss: Share = Field(0.05, description="deadline step size (Alg. 3)")
    p: Annotated[float, Field(ge=0.5, le=1)] = Field(1.0, description="share of samples over the threshold (Alg. 1)")
    noise_factor: Annotated[float, Field(ge=0, le=10**6)] = Field(0.0, description="deviation of the noise on losses")
    epsilon_budget: Annotated[float, Field(gt=0)] | None = Field(
        None, description="no client is asked again whose metadata would go beyond this epsilon"
    )
    privacy_delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-5, description="delta of all epsilons")
    save_exact_losses: bool = Field(
        False, description="keep exact losses of private runs: lists in checkpoints, percentiles in rounds.parquet"
    )
    loss_history: Literal["round", "cumulative"] = Field("round", description="rounds whose losses set the threshold")
    utility_samples: Literal["selected", "all"] = Field("selected", description="samples that the ratio control sums")
    forward_pass: Literal["first", "every"] = Field("first", description="when the loss list is made by a full pass")
    deadline_grid: Literal["integer", "continuous"] = Field("integer", description="deadlines that are tried")
    deadline_counts: Literal["recent", "over"] = Field("recent", description="samples expected of a client")
    deadline_gate: Share = Field(0.5, description="share of clients to hear from before the deadline adapts")
    deadline_gate_clients: Annotated[int, Field(ge=0)] = Field(200, description="or so many clients, if fewer")
    guard_s: Seconds = Field(10.0, description="seconds added after a failed round")
    fedbalancer_mu: Weight = Field(0.0, description="proximal term of FedBalancer")

    alpha: UpTo100 = Field(0.5, description="exponent of the duration penalty (Oort: 2)")
    exploration: Share = Field(0.9, description="share of a cohort that explores, at first")
    exploration_decay: Share = Field(0.98, description="factor of the exploration a round")
    exploration_min: Share = Field(0.2, description="exploration stops shrinking below this")
    utility_clip: Share = Field(0.95, description="quantile at which utilities are clipped")
    utility_cutoff: Share = Field(0.95, description="share of the last rank's score that still takes part")
    normalise_utility: bool = Field(True, description="scale utilities to [0, 1] before the temporal term")
    smartpc_share: NonzeroShare = Field(0.8, description="reports that SmartPC waits for")

    oort_alpha: UpTo100 = Field(2.0, description="Oort's exponent of the duration penalty")
    oort_overcommit: Annotated[float, Field(ge=1, le=100)] = Field(1.3, description="clients that Oort invites, in K")
    oort_pacer_window: Rounds = Field(20, description="rounds between looks of Oort's pacer")
    oort_pacer_start: UpTo100 = Field(10.0, description="percentile of durations that Oort prefers at first")
    oort_pacer_delta: UpTo100 = Field(5.0, description="percentiles that a look of the pacer may add")
    oort_blacklist: Count | None = Field(None, description="reports after which Oort exploits a client no longer")
    candidates: Annotated[float, Field(ge=1, le=10**6)] = Field(
        2.0, description="candidates of power-of-choice and FedCS, in K"
    )

    qffl_q: UpTo100 = Field(0.01, description="q-FFL's q: 0 treats all updates alike")
    server_eta: Step = Field(0.01, description="step of FedAdam, -Yogi and -Adagrad")
    server_beta_1: BelowOne = Field(0.9, description="decay of the first moment in FedAdam and its kin")
    server_beta_2: BelowOne = Field(0.99, description="decay of the second moment in FedAdam and its kin")
    server_tau: Step = Field(1e-3, description="how adaptive FedAdam and its kin are: less is more")
    server_momentum: BelowOne = Field(0.9, description="momentum on the server")
    server_momentum_eta: Step = Field(1.0, description="step of momentum on the server")
    trim_share: BelowHalf = Field(0.2, description="share of values that a trimmed mean cuts at each end")
    krum_malicious: BelowHalf = Field(0.2, description="share of liars that Krum expects")
    krum_keep: Count = Field(1, description="updates that Krum averages; more than 1 is Multi-Krum")

    structured_rank: Count = Field(100, description="rank of Structured Updates (k)")
    mask_share: NonzeroShare = Field(0.1, description="share of parameters in a random mask")
    subsample_share: NonzeroShare = Field(0.1, description="share of parameters that are sent")
    quantised_bits: Annotated[int, Field(ge=1, le=8)] = Field(8, description="bits per parameter of quantised updates")
    drop_keep: NonzeroShare = Field(0.01, description="share of parameters that gradient dropping sends")
    vote_step: Annotated[float, Field(gt=0)] | None = Field(
        None, description="step of sign-SGD's vote (off: learning_rate)"
    )

    attacks: tuple[str, ...] = Field(
        (), description="simulated attackers, each NAME:COUNT (`fedbalancer list attacks`); off: all are honest"
    )
    checkpoint_s: Seconds = Field(1.0, description="least seconds between checkpoints")
    slots: dict[str, str] = Field(default_factory=dict, description="own policies: slot -> package.module:Class")


def resolve(*layers: Mapping[str, Any]) -> Settings:
    """One `Settings` from layers, the last one winning; an unknown key or a value out of range is a clear error."""
    merged = merge(*layers)
    for key in merged:
        if key not in Settings.model_fields:
            raise UnknownName("setting", key, Settings.model_fields)
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise BadSetting("; ".join(_sentence(problem) for problem in error.errors())) from None


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping from layers, the last one winning; a table (the slots) is merged key by key, so that a layer can add
    to another's.

    >>> merge({"w": 5, "slots": {"deadline": "a:A"}}, {"slots": {"work": "b:B"}})
    {'w': 5, 'slots': {'deadline': 'a:A', 'work': 'b:B'}}
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if tables else value
    return merged


def _sentence(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "settings"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    bounds = _bounds(_schemas(str(problem["loc"][0]) if problem["loc"] else ""))
    allowed = f" (allowed: {' and '.join(bounds)})" if bounds else ""
    return f"setting {key} = {problem['input']!r}: {message}{allowed}"


def allowed(key: str) -> str:
    """The legal values of a setting, in words.

    >>> allowed("p"), allowed("clip_norm"), allowed("loss_history")
    ('a number >= 0.5 and <= 1', 'a number > 0; off', 'round or cumulative')
    """
    schemas = _schemas(key)
    choices = [str(choice) for schema in schemas for choice in schema.get("enum", ())]
    kinds = {"integer": "a whole number", "number": "a number", "string": "a text", "boolean": "true or false"}
    kind = next((kinds[schema["type"]] for schema in schemas if schema.get("type") in kinds), "slot = policy")
    words = " or ".join(choices) if choices else " ".join(filter(None, [kind, " and ".join(_bounds(schemas))]))
    return words + ("; off" if any(schema.get("type") == "null" for schema in schemas) else "")


def _schemas(key: str) -> list[dict[str, Any]]:
    """What the schema says of a key, and of each of its variants."""
    schema = Settings.model_json_schema()["properties"].get(key, {})
    return [schema, *schema.get("anyOf", ())]


def _bounds(schemas: list[dict[str, Any]]) -> list[str]:
    words = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return [f"{sign} {schema[name]:g}" for schema in schemas for name, sign in words.items() if name in schema]


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`key=value` pairs of the command line; values are TOML, or plain text where they are not.

    >>> parse_assignments(["w=5", "latency=har", "slots.deadline=my.module:Deadline"])
    {'w': 5, 'latency': 'har', 'slots': {'deadline': 'my.module:Deadline'}}
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key, value = key.strip(), parse_value(text.strip())
        if not equals or not key:
            raise BadSetting(f"--set {assignment!r} must look like key=value")
        table, dot, slot = key.partition(".")
        if key == "slots" and not isinstance(value, dict):
            raise BadSetting(f"--set {assignment!r} must name a slot: slots.deadline=package.module:Class")
        values = merge(values, {table: {slot: value}} if dot and table == "slots" else {key: value})
    return values


def parse_value(text: str) -> Any:
    """A value as TOML has it, `.75` too, or `off` for none; what is neither is a text."""
    if text.lower() in ("none", "null", "off"):
        return None
    try:
        return tomllib.loads("value = " + LEADING_POINT.sub("0", text))["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_config(path: Path | None) -> dict[str, Any]:
    """The settings of a TOML file: `--config`, or `fedbalancer.toml` in the working folder if there is one."""
    found = path if path is not None else Path("fedbalancer.toml")
    if path is None and not found.is_file():
        return {}
    try:
        return tomllib.loads(found.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"cannot read {found}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{found} is not valid TOML: {error}") from error
