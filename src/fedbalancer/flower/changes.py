"""Whether a run that goes on is the one that was begun: what it is trained with, then and now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.settings import Settings
from fedbalancer.core.wrapping import Wrapping

FIXED = ("engine", "method", "seed", "aggregate")
"""Fields of the manifest that are the run: with another one it is another run."""
CHANGEABLE = ("settings", "train_config")
WITHOUT_EFFECT = ("rounds", "checkpoint_s", "save_exact_losses")
"""Settings that do not say how anything is trained."""


@dataclass(frozen=True)
class Change:
    """One setting that is not what it was."""

    setting: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.setting} {self.before!r}, now {self.now!r}"


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], accept: bool) -> list[Change]:
    """What has changed since the run was begun; an error that names it where it may not change."""
    for field in FIXED:
        if field in before and before[field] != now.get(field):
            raise RunFolderError(
                f"the run to go on with has {field} {before[field]!r}, this one {now.get(field)!r}; "
                "choose another run_key"
            )
    found = [change for field in CHANGEABLE if field in before for change in _differences(field, before, now)]
    if found and not accept:
        raise RunFolderError(
            f"the run to go on with has {'; '.join(map(str, found))}: take back the change, choose another run_key, or "
            "say Strategy(accept_changes=True) to go on with it, which is written down in manifest.json"
        )
    return found


def _differences(field: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    old, new = before[field], now.get(field) or {}
    # A setting that a newer version has added was at its default.
    default = Settings().model_dump(mode="json") if field == "settings" else {}
    names = [name for name in sorted({*old, *new}) if field != "settings" or name not in WITHOUT_EFFECT]
    pairs = {name: (old.get(name, default.get(name)), new.get(name, default.get(name))) for name in names}
    shown = "" if field == "settings" else f"{field}."
    return [Change(f"{shown}{name}", *pair) for name, pair in pairs.items() if pair[0] != pair[1]]


def spoken(policy: Any) -> str:
    """The name of what aggregates; of one of Flower's strategies its class and its numbers."""
    if isinstance(policy, Wrapping):
        return f"{type(policy).__name__} of {spoken(policy.inner)}"
    strategy = policy.flower_strategy
    if strategy is None:
        return type(policy).__name__
    numbers = {name: value for name, value in sorted(vars(strategy).items()) if isinstance(value, float)}
    return f"{type(strategy).__name__}({', '.join(f'{name}={value:g}' for name, value in numbers.items())})"
