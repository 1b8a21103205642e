"""The search space of a sweep: the settings and slots of the method to vary, with their values or ranges."""

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
"""Significant digits of a number drawn from a range."""
Value = bool | int | float | str

PRESETS: Mapping[str, Sequence[str]] = {
    "paper": ("w=5,20", "lss=.01,.05,.10", "dss=.05,.10,.25", "p=.75,1"),
}
"""Named spaces. `paper` is the grid of the paper's Table 2."""
_RANGE = re.compile(r"(?P<low>[^.,:]*\.?[^.,:]+)\.\.(?P<high>[^:,]+?)(?P<log>:log)?")


@dataclass(frozen=True)
class Choice:
    """A setting with a list of values.

    Args:
        key: The setting.
        values: The values.
    """

    key: str
    values: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """All values."""
        return self.values

    def __str__(self) -> str:
        return f"{self.key}={','.join(map(value_text, self.values))}"

    def draw(self, trial: Any) -> Value:
        """Return the value that optuna suggests for a trial."""
        value: Value = trial.suggest_categorical(self.key, self.values)
        return value

    def at(self, share: float) -> Value:
        """Return the value at a share of the list, from 0 to below 1."""
        return self.values[int(share * len(self.values))]


@dataclass(frozen=True)
class Range:
    """A setting with a range of numbers. They are integers if both ends are.

    Args:
        key: The setting.
        low: Lowest value.
        high: Highest value.
        log: Whether to draw from the logarithm.
    """

    key: str
    low: float
    high: float
    log: bool = False

    @property
    def ends(self) -> tuple[Value, ...]:
        """The lowest and the highest value."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.key}={self.low:g}..{self.high:g}{':log' if self.log else ''}"

    def draw(self, trial: Any) -> Value:
        """Return the value that optuna suggests for a trial."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return int(trial.suggest_int(self.key, self.low, self.high, log=self.log))
        return float(f"{trial.suggest_float(self.key, self.low, self.high, log=self.log):.{DIGITS}g}")

    def at(self, share: float) -> Value:
        """Return the value at a share of the range, from 0 to below 1."""
        if isinstance(self.low, int) and isinstance(self.high, int) and not self.log:
            return self.low + int(share * (self.high - self.low + 1))
        linear = self.low + share * (self.high - self.low)
        value = self.low * (self.high / self.low) ** share if self.log else linear
        return float(f"{value:.{DIGITS}g}")


Parameter = Choice | Range


@dataclass(frozen=True)
class Space:
    """The settings to vary.

    Args:
        method: The method, which may have settings in brackets.
        parameters: The settings, with their values.
    """

    method: str
    parameters: tuple[Parameter, ...]

    @classmethod
    def make(cls, method: str, texts: Iterable[str]) -> Space:
        """Parse a space.

        Args:
            method: The method to vary.
            texts: Presets, TOML files, or key=values, as on the command line.

        Raises:
            BadSetting: If there is no setting, or a value is invalid.
        """
        parameters = tuple(each for text in texts for each in _parse_text(text))
        keys = [each.key for each in parameters]
        if not keys:
            raise BadSetting("a sweep needs a space: --space w=5,20, --space lss=.01..0.1, or --space paper")
        if len(set(keys)) < len(keys):
            raise BadSetting(f"a setting appears twice in the space: {', '.join(keys)}")
        space = cls(canonical_name(method), parameters)
        for values in space.corners():
            check_method_name(space.name(values))
        return space

    @property
    def is_grid(self) -> bool:
        """Whether all settings have lists of values."""
        return all(isinstance(each, Choice) for each in self.parameters)

    def grid(self) -> list[dict[str, Value]]:
        """Return all combinations of a space of lists."""
        keys, values = [each.key for each in self.parameters], [each.ends for each in self.parameters]
        return [dict(zip(keys, each, strict=True)) for each in itertools.product(*values)]

    def draw(self, trial: Any) -> dict[str, Value]:
        """Return the values that optuna suggests for a trial."""
        return {each.key: each.draw(trial) for each in self.parameters}

    def spread(self, count: int) -> list[dict[str, Value]]:
        """Return points that fill the space evenly: Sobol's, from the centre on. More points extend the list.

        >>> Space("oort", (Range("clients.alpha", 0.0, 1.0),)).spread(3)
        [{'clients.alpha': 0.5}, {'clients.alpha': 0.75}, {'clients.alpha': 0.25}]
        """
        from scipy.stats import qmc

        if count < 1:
            return []
        points = qmc.Sobol(len(self.parameters), scramble=False).random_base2(count.bit_length())[1 : count + 1]
        return [
            {each.key: each.at(float(share)) for each, share in zip(self.parameters, point, strict=True)}
            for point in points
        ]

    def name(self, values: Mapping[str, Value]) -> str:
        """Return the name of the method with these values.

        >>> Space("fedbalancer[lss=.1]", (Choice("w", (5, 20)),)).name({"w": 5})
        'fedbalancer[w=5,lss=.1]'
        """
        inside = [self.method[len(parse_method_name(self.method).stem) + 1 : -1]] if self.method.endswith("]") else []
        inside += [f"{key}={value_text(value)}" for key, value in values.items()]
        return canonical_name(f"{parse_method_name(self.method).stem}[{','.join(inside)}]")

    def corners(self) -> Iterator[dict[str, Value]]:
        """Yield combinations that contain every listed value and every end of a range at least once."""
        first = {each.key: each.ends[0] for each in self.parameters}
        yield from ({**first, each.key: end} for each in self.parameters for end in each.ends)


def _parse_text(text: str) -> list[Parameter]:
    text = text.strip()
    if text.endswith(".toml"):
        return [_from_toml(key, value) for key, value in merge(_read_toml(Path(text))).items()]
    key, equals, values = text.partition("=")
    if not equals:
        if text not in PRESETS:
            raise UnknownName("space", text, [*PRESETS, "key=value,value", "key=low..high", "FILE.toml"])
        return [each for line in PRESETS[text] for each in _parse_text(line)]
    return [parse_parameter(key.strip(), values.strip())]


def parse_parameter(key: str, text: str) -> Parameter:
    """Parse the values of one setting.

    Args:
        key: The setting.
        text: Values separated by commas, or a range low..high, with :log for a logarithmic one.

    Raises:
        BadSetting: If the text is neither.

    >>> parse_parameter("lss", "0.01..0.1"), parse_parameter("w", "5,20")
    (Range(key='lss', low=0.01, high=0.1, log=False), Choice(key='w', values=(5, 20)))
    """
    if match := _RANGE.fullmatch(text):
        return _range(key, match["low"], match["high"], bool(match["log"]))
    values = tuple(_value(part.strip()) for part in split_outside(text))
    if "" in values or len(set(values)) < len(values):
        raise BadSetting(f"--space {key}={text}: use different values separated by commas, or a range low..high")
    return Choice(key, values)


def _range(key: str, low: Any, high: Any, log: bool) -> Range:
    ends = [_value(end) if isinstance(end, str) else end for end in (low, high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends) or not ends[0] < ends[1]:
        raise BadSetting(f"--space {key}={low}..{high}: a range needs two numbers, the lower one first")
    if log and ends[0] <= 0:
        raise BadSetting(f"--space {key}={low}..{high}:log: a logarithmic range needs numbers > 0")
    return Range(key, ends[0], ends[1], log)


def _value(text: str) -> Any:
    value = parse_value(text)
    return value if isinstance(value, bool | int | float) else text


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}") from error
    table = content.get("space", content)
    if not isinstance(table, dict) or not table:
        raise BadSetting(
            f"{path} must define settings to vary: w = [5, 20], lss = '0.01..0.1', mu = {{low=, high=, log=}}"
        )
    return table


def _from_toml(key: str, value: Any) -> Parameter:
    if isinstance(value, str):
        return parse_parameter(key, value)
    if isinstance(value, list) and value and all(isinstance(each, bool | int | float | str) for each in value):
        return Choice(key, tuple(value))
    if isinstance(value, dict) and value.keys() <= {"low", "high", "log"} and {"low", "high"} <= value.keys():
        return _range(key, value["low"], value["high"], bool(value.get("log", False)))
    raise BadSetting(
        f"space {key} = {value!r} must be a list, a text such as '0.01..0.1', or a table with low, high and log"
    )
