"""The space of a sweep: which settings and slots of the method are varied, and over what."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadSetting, RunFolderError, UnknownName
from fedbalancer.core.settings import merge, parse_value
from fedbalancer.methods.names import canonical_name, parse_method_name, split_outside, value_text
from fedbalancer.methods.table import check_method_name

DIGITS = 4
"""Of a number drawn from a range: more would make no difference but to the length of the method's name."""
Value = bool | int | float | str

PRESETS: Mapping[str, Sequence[str]] = {
    "paper": ("w=5,20", "lss=.01,.05,.10", "dss=.05,.10,.25", "p=.75,1"),
}
"""`paper` is the grid of the paper's Table 2."""
_RANGE = re.compile(r"(?P<low>[^.,:]*\.?[^.,:]+)\.\.(?P<high>[^:,]+?)(?P<log>:log)?")


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    key: str
    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.values

    def __str__(self) -> str:
        return f"{self.key}={','.join(map(value_text, self.values))}"

    def drawn(self, trial: Any) -> Value:
        value: Value = trial.suggest_categorical(self.key, self.values)
        return value


@dataclass(frozen=True)
class Range:
    """Any number from `low` to `high`; whole if both are, and by its logarithm if `log`."""

    key: str
    low: float
    high: float
    log: bool = False

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.key}={self.low:g}..{self.high:g}{':log' if self.log else ''}"

    def drawn(self, trial: Any) -> Value:
        if isinstance(self.low, int) and isinstance(self.high, int):
            return int(trial.suggest_int(self.key, self.low, self.high, log=self.log))
        return float(f"{trial.suggest_float(self.key, self.low, self.high, log=self.log):.{DIGITS}g}")


Parameter = Choice | Range


@dataclass(frozen=True)
class Space:
    """Everything that is varied, around a `method` that may have settings of its own."""

    method: str
    parameters: tuple[Parameter, ...]

    @classmethod
    def make(cls, method: str, texts: Iterable[str]) -> Space:
        """A space from the words of the command line: a preset, a TOML file, or key=values."""
        parameters = tuple(each for text in texts for each in _read(text))
        keys = [each.key for each in parameters]
        if not keys:
            raise BadSetting("a sweep needs a space: --space w=5,20, --space lss=.01..0.1, or --space paper")
        if len(set(keys)) < len(keys):
            raise BadSetting(f"the space has a key twice: {', '.join(keys)}")
        space = cls(canonical_name(method), parameters)
        for values in space.corners():
            check_method_name(space.name(values))
        return space

    @property
    def is_grid(self) -> bool:
        return all(isinstance(each, Choice) for each in self.parameters)

    def grid(self) -> list[dict[str, Value]]:
        """All combinations of a space of choices."""
        keys, values = [each.key for each in self.parameters], [each.ends for each in self.parameters]
        return [dict(zip(keys, each, strict=True)) for each in itertools.product(*values)]

    def drawn(self, trial: Any) -> dict[str, Value]:
        """The values of a trial, as optuna suggests them."""
        return {each.key: each.drawn(trial) for each in self.parameters}

    def name(self, values: Mapping[str, Value]) -> str:
        """The method with these values, ready to be run.

        >>> Space("fedbalancer[lss=.1]", (Choice("w", (5, 20)),)).name({"w": 5})
        'fedbalancer[w=5,lss=.1]'
        """
        inside = [self.method[len(parse_method_name(self.method).stem) + 1 : -1]] if self.method.endswith("]") else []
        inside += [f"{key}={value_text(value)}" for key, value in values.items()]
        return canonical_name(f"{parse_method_name(self.method).stem}[{','.join(inside)}]")

    def corners(self) -> Iterator[dict[str, Value]]:
        """Every value of a choice and every end of a range at least once."""
        first = {each.key: each.ends[0] for each in self.parameters}
        yield from ({**first, each.key: end} for each in self.parameters for end in each.ends)


def _read(text: str) -> list[Parameter]:
    text = text.strip()
    if text.endswith(".toml"):
        return [_from_toml(key, value) for key, value in merge(_table(Path(text))).items()]
    key, equals, values = text.partition("=")
    if not equals:
        if text not in PRESETS:
            raise UnknownName("space", text, [*PRESETS, "key=value,value", "key=low..high", "FILE.toml"])
        return [each for line in PRESETS[text] for each in _read(line)]
    return [parameter(key.strip(), values.strip())]


def parameter(key: str, text: str) -> Parameter:
    """What one key is varied over.

    >>> str(parameter("lss", "0.01..0.1")), str(parameter("clients.alpha", "0.1..10:log")), str(parameter("w", "5,20"))
    ('lss=0.01..0.1', 'clients.alpha=0.1..10:log', 'w=5,20')
    """
    if found := _RANGE.fullmatch(text):
        return _range(key, found["low"], found["high"], bool(found["log"]))
    values = tuple(_value(part.strip()) for part in split_outside(text))
    if "" in values or len(set(values)) < len(values):
        raise BadSetting(f"--space {key}={text}: give different values with commas, or a range as low..high")
    return Choice(key, values)


def _range(key: str, low: Any, high: Any, log: bool) -> Range:
    ends = [_value(end) if isinstance(end, str) else end for end in (low, high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends) or not ends[0] < ends[1]:
        raise BadSetting(f"--space {key}={low}..{high}: a range needs two numbers, the lower first")
    if log and ends[0] <= 0:
        raise BadSetting(f"--space {key}={low}..{high}:log: a logarithm needs numbers over 0")
    return Range(key, ends[0], ends[1], log)


def _value(text: str) -> Any:
    value = parse_value(text)
    return value if isinstance(value, bool | int | float) else text


def _table(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}") from error
    table = content.get("space", content)
    if not isinstance(table, dict) or not table:
        raise BadSetting(
            f"{path} must say what is varied: w = [5, 20], lss = '0.01..0.1', 'clients.alpha' = {{low=, high=, log=}}"
        )
    return table


def _from_toml(key: str, value: Any) -> Parameter:
    if isinstance(value, str):
        return parameter(key, value)
    if isinstance(value, list) and value and all(isinstance(each, bool | int | float | str) for each in value):
        return Choice(key, tuple(value))
    if isinstance(value, dict) and value.keys() <= {"low", "high", "log"} and {"low", "high"} <= value.keys():
        return _range(key, value["low"], value["high"], bool(value.get("log", False)))
    raise BadSetting(f"space {key} = {value!r} must be a list, a text as '0.01..0.1', or a table of low, high and log")
