"""The file format of golden rounds: clients, random draws and logged results, and the precision of its decimals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.types import batches_per_epoch

Count = Annotated[int, Field(ge=1, le=10**6)]
Number = Annotated[int, Field(ge=0, le=10**6)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
PositiveSeconds = Annotated[float, Field(ge=1e-9, le=1e12)]
Speed = Annotated[float, Field(ge=1e-6, le=1e12)]

Draw = tuple[str, PositiveSeconds, Seconds, Seconds, Number]
"""Client, seconds per batch, download seconds, upload seconds, completed epochs."""

Speeds = tuple[Speed, float, Speed, float]
"""Mean and deviation of the download and of the upload, in kB/s."""

Pairs = tuple[tuple[Count, float], ...]
"""(round, value); the first round is 1."""

ARITHMETIC = 1e-9
"""Tolerance for sums in another order and for logged ratios that drift (0.8499999999999999)."""
EXACT_DECIMALS = 2
"""A column whose numbers have at most this many decimals was written by hand and is exact."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


class GoldenClient(_Part):
    """One client.

    Args:
        subject: Its name.
        n: Number of samples.
        net: Network profile.
        batch_s_10: Batch latencies sampled before training.
    """

    subject: str
    n: Count
    net: Number
    batch_s_10: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)]


class GoldenRound(_Part):
    """The draws of a round and its logged result.

    Args:
        draws: For every client: seconds per batch, download and upload seconds, and completed epochs.
        duration: Seconds of the round.
        ok: Number of successful clients.
    """

    draws: Annotated[tuple[Draw, ...], Field(min_length=1)]
    duration: Seconds
    ok: Number


class BaselineRun(_Part):
    """A run without control.

    Args:
        deadline: The deadline in seconds; None if there is none.
        rounds: The rounds.
        log_start_times: The logged start of every round.
        log_ok: The logged number of successful clients of every round.
    """

    deadline: PositiveSeconds | None
    rounds: Annotated[tuple[GoldenRound, ...], Field(min_length=1)]
    log_start_times: tuple[float, ...]
    log_ok: tuple[int, ...]


class SampleSelectionRun(_Part):
    """A run of SampleSelection.

    Args:
        deadline: Its deadline, before rounding down to whole seconds.
    """

    deadline: PositiveSeconds


class FedBalancerRun(_Part):
    """The control values of every round; `U` is null for a round without a successful client."""

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
    """One seed.

    Args:
        clients: Its clients.
        T: Mean completion time over the clients.
        fb_initial: FedBalancer's first deadline.
        runs: Its runs by name (see `parse_run`).
    """

    clients: Annotated[tuple[GoldenClient, ...], Field(min_length=1)]
    T: PositiveSeconds
    fb_initial: PositiveSeconds
    runs: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]


class GoldenFile(_Part):
    """A whole file.

    Args:
        K: Clients per round.
        E: Epochs.
        B: Samples per batch.
        model_bytes: Size of the model.
        speeds_kB_s: Mean and deviation of the download and upload speeds, by network profile.
        seeds: The seeds by name.
    """

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
"""Method by the name of a run, without its mu, which does not affect times."""

_Model = TypeVar("_Model", bound=BaseModel)


def read_golden(path: str | Path) -> GoldenFile:
    """Read and validate a file.

    Args:
        path: The file, as JSON.

    Raises:
        MissingData: If the file cannot be read.
        BadData: If a value is missing or wrong; the message names it in one line.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise MissingData(f"cannot read {path}: {error.strerror}") from error
    golden = _validate(lambda: GoldenFile.model_validate_json(text), f"{path}: ")
    for name, seed in golden.seeds.items():
        where = f"{path}: seeds.{name}."
        _check_clients(seed, len(golden.speeds_kB_s), where)
        for run in seed.runs:
            _check_run(parse_run(seed, run, where), {client.subject for client in seed.clients}, f"{where}runs.{run}.")
    return golden


def parse_method(run: str, where: str = "") -> str:
    """Return the method of a run.

    Example:
        >>> parse_method("fedprox_mu_0_0_1T")
        'prox+1t'

    Raises:
        BadData: If the method is unknown.
    """
    try:
        return METHODS[re.sub(r"^fedprox_mu_\d+_\d+_", "fedprox_", run)]
    except KeyError:
        raise BadData(f"{where}runs.{run} has an unknown method; known: {', '.join(METHODS)}") from None


def parse_run(seed: GoldenSeed, run: str, where: str = "") -> AnyRun:
    """Parse a run of a seed.

    Args:
        seed: The seed.
        run: Name of the run.
        where: Location in the file, for errors.

    Raises:
        BadData: If a value is missing or wrong.
    """
    kinds: dict[str, type[AnyRun]] = {"sampleselection": SampleSelectionRun, "fedbalancer": FedBalancerRun}
    kind = kinds.get(parse_method(run, where), BaselineRun)
    return _validate(lambda: kind.model_validate(seed.runs[run]), f"{where}runs.{run}.")


def _validate(parse: Callable[[], _Model], where: str) -> _Model:
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
    if twice := _find_repeated(client.subject for client in seed.clients):
        raise BadData(f"{where}clients has subject {twice[0]!r} twice")


def _check_run(run: AnyRun, subjects: set[str], where: str) -> None:
    """Check what cannot be checked field by field."""
    if isinstance(run, BaselineRun):
        for row, drawn in enumerate([draw[0] for draw in recorded.draws] for recorded in run.rounds):
            if wrong := sorted(set(drawn) - subjects) or _find_repeated(drawn):
                raise BadData(f"{where}rounds.{row}.draws has subject {wrong[0]!r}, unknown or drawn twice")
        _check_lengths(run, ("log_start_times", "log_ok"), len(run.rounds), where)
    elif isinstance(run, FedBalancerRun):
        _check_lengths(run, ("lt", "ltr", "ddlr", "U"), len(run.deadline), where)
        for low, high in (("dl", "dh"), ("loss_low", "loss_high")):
            if dict(getattr(run, low)).keys() != dict(getattr(run, high)).keys():
                raise BadData(f"{where}{low} and {high} must have the same rounds")


def _check_lengths(run: AnyRun, names: Iterable[str], rounds: int, where: str) -> None:
    for name in names:
        if (count := len(getattr(run, name))) < rounds:
            raise BadData(f"{where}{name} has {count} values; there are {rounds} rounds")


def _find_repeated(values: Iterable[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]


def half_unit(column: Iterable[float | None]) -> float:
    """Return the rounding error of a column: half a unit of the last decimal of its longest number.

    A shorter number is assumed to end in zeros.

    Example:
        >>> half_unit([0.25, 1.604859]), half_unit([1.0, 2.5])
        (5e-07, 0.0)
    """
    decimals = max((-int(Decimal(repr(x)).as_tuple().exponent) for x in column if x is not None), default=0)
    return float(f"5e-{decimals + 1}") if decimals > EXACT_DECIMALS else 0.0


def make_slowest(seed: GoldenSeed) -> GoldenSeed:
    """Return the seed with the longest batch latencies that round to its own.

    Expected times grow with the latencies, so the difference to the seed's own times bounds the rounding error.
    """
    more_s = half_unit(batch_s for client in seed.clients for batch_s in client.batch_s_10)
    longer = [tuple(batch_s + more_s for batch_s in client.batch_s_10) for client in seed.clients]
    clients = [c.model_copy(update={"batch_s_10": batch_s}) for c, batch_s in zip(seed.clients, longer, strict=True)]
    return seed.model_copy(update={"clients": tuple(clients)})


def round_tolerance_s(golden: GoldenFile, seed: GoldenSeed, run: BaselineRun) -> float:
    """Return the rounding error of a round: all batches of the largest client, a download and an upload.

    Args:
        golden: The file.
        seed: The seed.
        run: The run.
    """
    most = float(batches_per_epoch(np.array([client.n for client in seed.clients]), golden.B).max())
    drawn = half_unit(seconds for recorded in run.rounds for draw in recorded.draws for seconds in draw[1:4])
    return drawn * (golden.E * most + 2) + ARITHMETIC
