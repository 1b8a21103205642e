"""Learning rates that change from round to round.

    import fedbalancer as fb
    task = fb.Task(..., learning_rate=0.1, schedule=fb.schedules.Cosine(rounds=50, warmup=5))
    task = fb.Task(..., learning_rate=lambda round_number: 0.1 / round_number**0.5)

A schedule multiplies the learning rate; a function of the round number returns it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar

from fedbalancer.core.calls import read_call, write_call
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.fields import Bounds, NonzeroShare, Rounds, Step, check_fields

RateFunction = Callable[[int], float]
"""A function of the round number, from 1, that returns a learning rate."""
Warmup = Annotated[int, Bounds(ge=0, le=10**6)]


@dataclass(frozen=True)
class Schedule(ABC):
    """A learning rate as a function of the round number, from 1.

    As `schedule` of a task or a setting it multiplies the learning rate. With `rate` it is a learning rate itself:
    `Task(learning_rate=Cosine(0.1, rounds=50))`.

    Args:
        rate: The largest learning rate.
    """

    name: ClassVar[str]

    rate: Step = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, round_number: int) -> float:
        """Return the learning rate of a round.

        Args:
            round_number: Number of the round, from 1.
        """
        return self.rate * self.share(round_number)

    @abstractmethod
    def share(self, round_number: int) -> float:
        """Return the rate of a round as a share of the largest one.

        Args:
            round_number: Number of the round, from 1.
        """

    def __str__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return write_call(self.name, {key: value for key, value in values.items() if value != _default(self, key)})


@dataclass(frozen=True)
class Cosine(Schedule):
    """Falls along half a cosine to `end` in round `rounds`, and stays there.

    Args:
        rate: The largest learning rate.
        rounds: Round in which the rate reaches its end.
        end: The last rate as a share of the largest one.
        warmup: Rounds before the largest rate, in which the rate rises linearly.

    Example:
        >>> [round(Cosine(0.1, rounds=5, end=0.1)(number), 3) for number in (1, 2, 3, 5, 9)]
        [0.1, 0.087, 0.055, 0.01, 0.01]
        >>> print(Cosine(rounds=50, warmup=2))
        cosine(rounds=50,warmup=2)
    """

    name: ClassVar[str] = "cosine"

    _: KW_ONLY
    rounds: Rounds
    end: NonzeroShare = 0.01
    warmup: Warmup = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup >= self.rounds:
            raise BadSetting(f"Cosine: warmup = {self.warmup} must be less than rounds = {self.rounds}")

    def share(self, round_number: int) -> float:
        if round_number <= self.warmup:
            return _rise(round_number, self.warmup)
        done = min((round_number - self.warmup - 1) / max(self.rounds - self.warmup - 1, 1), 1.0)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiplies the rate by `factor` after every `every` rounds.

    Args:
        rate: The largest learning rate.
        every: Rounds between two steps.
        factor: What the rate is multiplied by.
        warmup: Rounds before the largest rate, in which the rate rises linearly.

    Example:
        >>> [StepDecay(0.8, every=2, factor=0.5)(number) for number in (1, 2, 3, 4, 5)]
        [0.8, 0.8, 0.4, 0.4, 0.2]
    """

    name: ClassVar[str] = "step"

    _: KW_ONLY
    every: Rounds
    factor: NonzeroShare = 0.1
    warmup: Warmup = 0

    def share(self, round_number: int) -> float:
        if round_number <= self.warmup:
            return _rise(round_number, self.warmup)
        return float(self.factor ** ((round_number - self.warmup - 1) // self.every))


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """Rises linearly for `rounds` rounds, and then stays at the largest rate.

    Args:
        rate: The largest learning rate.
        rounds: Rounds before the largest rate.

    Example:
        >>> [LinearWarmup(rounds=3)(number) for number in (1, 2, 3, 4, 5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    name: ClassVar[str] = "warmup"

    _: KW_ONLY
    rounds: Rounds

    def share(self, round_number: int) -> float:
        return _rise(round_number, self.rounds) if round_number <= self.rounds else 1.0


def _rise(round_number: int, rounds: int) -> float:
    return round_number / (rounds + 1)


def _default(schedule: Schedule, name: str) -> Any:
    return next(each.default for each in fields(schedule) if each.name == name)


SCHEDULES: Mapping[str, type[Schedule]] = {kind.name: kind for kind in (Cosine, StepDecay, LinearWarmup)}
"""The schedules by the names that settings use."""


def read_schedule(value: Any) -> Schedule | None:
    """Return the schedule that a setting describes.

    Args:
        value: A `Schedule`; a text such as `cosine(rounds=50)`; a mapping of `name` and arguments; or None.

    Raises:
        UnknownName: If there is no such schedule.
        BadSetting: If an argument is missing or invalid.

    Example:
        >>> read_schedule("cosine(rounds=50)") == read_schedule({"name": "cosine", "rounds": 50}) == Cosine(rounds=50)
        True
    """
    if value is None or isinstance(value, Schedule):
        return value
    place, example = f"schedule = {value!r}", "cosine(rounds=50)"
    if callable(value):
        raise BadSetting(f"{place} must be one of fedbalancer.schedules; pass another function as learning_rate")
    if isinstance(value, str):
        name, arguments = read_call(place, value, example)
    elif isinstance(value, Mapping) and isinstance(value.get("name"), str):
        name, arguments = value["name"], {key: each for key, each in value.items() if key != "name"}
    else:
        raise BadSetting(f"{place} must be a text such as {example}, or a table with a name")
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    known = {each.name: each.default for each in fields(SCHEDULES[name])}
    for key in arguments:
        if key not in known:
            raise UnknownName(f"argument of schedule {name}:", str(key), known)
    missing = [key for key, default in known.items() if default is MISSING and key not in arguments]
    if missing:
        raise BadSetting(f"{place} needs {missing[0]}, as in {name}({missing[0]}=50)")
    try:
        return SCHEDULES[name](**arguments)
    except BadSetting as error:
        raise BadSetting(f"{place}: {error}") from error


def rate_of_round(rate: float | RateFunction, schedule: Schedule | None, round_number: int) -> float:
    """Return the learning rate of a round.

    Args:
        rate: The learning rate, or a function of the round.
        schedule: Multiplies the rate. None: it stays.
        round_number: Number of the round, from 1.

    Raises:
        BadSetting: If a function fails, or does not return a finite number above 0.

    Example:
        >>> rate_of_round(0.1, LinearWarmup(rounds=1), 1), rate_of_round(lambda number: 1 / number, None, 4)
        (0.05, 0.25)
    """
    value: Any = rate
    if callable(rate):
        try:
            value = rate(round_number)
        except Exception as error:  # the user's code may raise anything
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            right = "it gets the round number, from 1, and returns the rate"
            raise BadSetting(
                f"learning_rate is a function that fails in round {round_number}: {what}; {right}"
            ) from error
    try:
        result = float(value) * (1.0 if schedule is None else schedule(round_number))
    except (TypeError, ValueError):
        result = math.nan
    if not 0 < result < math.inf:
        raise BadSetting(f"learning_rate is {value!r} in round {round_number}; it must be a finite number > 0")
    return result


def describe_rate(rate: float | RateFunction) -> float | str:
    """Return a learning rate as a plain value, for manifests.

    Args:
        rate: The learning rate, or a function of the round.

    Example:
        >>> describe_rate(0.1), describe_rate(Cosine(0.1, rounds=50)), describe_rate(lambda number: 1 / number)
        (0.1, 'cosine(rate=0.1,rounds=50)', 'function <lambda>')
    """
    if isinstance(rate, Schedule):
        return str(rate)
    return f"function {getattr(rate, '__qualname__', type(rate).__qualname__)}" if callable(rate) else rate
