"""The format of golden rounds: clients, random draws, and what somebody else's run made of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedbalancer.errors import BadData, MissingData

Count = Annotated[int, Field(ge=1, le=10**6)]
Number = Annotated[int, Field(ge=0, le=10**6)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
PositiveSeconds = Annotated[float, Field(ge=1e-9, le=1e12)]
Speed = Annotated[float, Field(ge=1e-6, le=1e12)]

Draw = tuple[str, PositiveSeconds, Seconds, Seconds, Number]
"""Client, seconds per batch, download seconds, upload seconds, epochs that it did."""

Speeds = tuple[Speed, float, Speed, float]
"""Download mean and deviation, upload mean and deviation, in kB/s."""

Pairs = tuple[tuple[Count, float], ...]
"""(round, value), rounds counted from 1."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


class GoldenClient(_Part):
    """One client: its samples, its network profile and the batch latencies sampled before training."""

    subject: str
    n: Count
    net: Number
    batch_s_10: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)]


class GoldenRound(_Part):
    """What was drawn in a round, and what came of it."""

    draws: Annotated[tuple[Draw, ...], Field(min_length=1)]
    duration: Seconds
    ok: Number


class BaselineRun(_Part):
    """A run without control: `deadline` is null where nobody is cut off."""

    deadline: PositiveSeconds | None
    rounds: Annotated[tuple[GoldenRound, ...], Field(min_length=1)]
    log_start_times: tuple[float, ...]
    log_ok: tuple[int, ...]


class SampleSelectionRun(_Part):
    """Only the deadline before it is cut to whole seconds."""

    deadline: PositiveSeconds


class FedBalancerRun(_Part):
    """The control values of every round; `U` is null for a round in which nobody succeeded."""

    deadline: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)]
    lt: tuple[float, ...]
    ltr: tuple[float, ...]
    ddlr: tuple[float, ...]
    U: tuple[float | None, ...]
    dl: Pairs
    dh: Pairs
    loss_low: Pairs
    loss_high: Pairs


AnyRun = BaselineRun | SampleSelectionRun | FedBalancerRun


class GoldenSeed(_Part):
    """One seed: its clients, the mean completion times over them, and its runs by name (read by `run_of`)."""

    clients: Annotated[tuple[GoldenClient, ...], Field(min_length=1)]
    T: PositiveSeconds
    fb_initial: PositiveSeconds
    runs: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]


class GoldenFile(_Part):
    """A whole file: K clients a round, E epochs, batches of B, and the seeds."""

    K: Count
    E: Count
    B: Count
    model_bytes: Annotated[int, Field(ge=1, le=10**15)]
    speeds_kB_s: Annotated[tuple[Speeds, ...], Field(min_length=1)]
    seeds: Annotated[dict[str, GoldenSeed], Field(min_length=1)]


METHODS = {
    "fedavg_1T": "fedavg+1t",
    "fedavg_2T": "fedavg+2t",
    "fedavg_SPC": "fedavg+spc",
    "fedavg_WFA": "fedavg+wfa",
    "fedprox_1T": "prox+1t",
    "fedprox_2T": "prox+2t",
    "sampleselection": "sampleselection",
    "fedbalancer": "fedbalancer",
}
"""The methods of the runs' names, the latter without their mu, which changes no time."""

_Model = TypeVar("_Model", bound=BaseModel)


def read_golden(path: str | Path) -> GoldenFile:
    """The file, or an error of one line that names what is missing or wrong."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise MissingData(f"cannot read {path}: {error.strerror}") from error
    golden = _valid(lambda: GoldenFile.model_validate_json(text), f"{path}: ")
    for name, seed in golden.seeds.items():
        where = f"{path}: seeds.{name}."
        _check_clients(seed, len(golden.speeds_kB_s), where)
        for run in seed.runs:
            _check_run(run_of(seed, run, where), {client.subject for client in seed.clients}, f"{where}runs.{run}.")
    return golden


def method_of(run: str, where: str = "") -> str:
    """The project's name of a run's method.

    >>> method_of("fedprox_mu_0_0_1T")
    'prox+1t'
    """
    try:
        return METHODS[re.sub(r"^fedprox_mu_\d+_\d+_", "fedprox_", run)]
    except KeyError:
        raise BadData(f"{where}runs.{run} is of no known method; known: {', '.join(METHODS)}") from None


def run_of(seed: GoldenSeed, run: str, where: str = "") -> AnyRun:
    """A run of a seed, by its name."""
    kinds: dict[str, type[AnyRun]] = {"sampleselection": SampleSelectionRun, "fedbalancer": FedBalancerRun}
    kind = kinds.get(method_of(run, where), BaselineRun)
    return _valid(lambda: kind.model_validate(seed.runs[run]), f"{where}runs.{run}.")


def _valid(parse: Callable[[], _Model], where: str) -> _Model:
    try:
        return parse()
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = (where + ".".join(str(part) for part in problem["loc"])).rstrip(".: ")
        what = "is missing" if problem["type"] == "missing" else f"is wrong: {problem['msg']}"
        raise BadData(f"{place} {what}") from None


def _check_clients(seed: GoldenSeed, profiles: int, where: str) -> None:
    for row, client in enumerate(seed.clients):
        if client.net >= profiles:
            raise BadData(f"{where}clients.{row}.net is {client.net}; there are {profiles} network profiles")
    if twice := _repeated(client.subject for client in seed.clients):
        raise BadData(f"{where}clients has subject {twice[0]!r} twice")


def _check_run(run: AnyRun, subjects: set[str], where: str) -> None:
    """What no single field can tell."""
    if isinstance(run, BaselineRun):
        for row, drawn in enumerate([draw[0] for draw in round.draws] for round in run.rounds):
            if strange := sorted(set(drawn) - subjects) or _repeated(drawn):
                raise BadData(f"{where}rounds.{row}.draws has subject {strange[0]!r}, unknown or drawn twice")
        _check_lengths(run, ("log_start_times", "log_ok"), len(run.rounds), where)
    elif isinstance(run, FedBalancerRun):
        _check_lengths(run, ("lt", "ltr", "ddlr", "U"), len(run.deadline), where)
        for low, high in (("dl", "dh"), ("loss_low", "loss_high")):
            if dict(getattr(run, low)).keys() != dict(getattr(run, high)).keys():
                raise BadData(f"{where}{low} and {high} must be of the same rounds")


def _check_lengths(run: AnyRun, names: Iterable[str], rounds: int, where: str) -> None:
    for name in names:
        if (found := len(getattr(run, name))) < rounds:
            raise BadData(f"{where}{name} has {found} values; there are {rounds} rounds")


def _repeated(values: Iterable[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]
