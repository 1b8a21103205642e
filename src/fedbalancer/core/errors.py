"""Every error that is the user's to fix, in one hierarchy.

    FedBalancerError
    ├── UnknownName      a task, method, key or policy that does not exist
    ├── BadSetting       a value out of its range
    ├── BadData          a task whose data cannot be trained on
    ├── MissingData      data or an optional package that is not installed
    ├── RunFolderError   a run folder that is in the way, absent or damaged
    ├── UntrustedCode    a run folder that names code which its user has not started here
    ├── NoUsableReports  several rounds in a row without a usable report
    └── TrainingDiverged a loss or an update that is not a finite number

The command line prints the message of any of these on one line and exits with code 2, without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedBalancerError(Exception):
    """Base of all errors that a user can fix."""


class UnknownName(FedBalancerError):
    """A name that is not known, with the nearest ones that are."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        self._parts = (kind, name, tuple(names))
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, tuple[str, ...]]]:
        return type(self), self._parts


class BadSetting(FedBalancerError):
    """A setting whose value is not allowed."""


class BadData(FedBalancerError):
    """Data that cannot be trained on."""


class MissingData(FedBalancerError):
    """Something to install or fetch first."""


class RunFolderError(FedBalancerError):
    """A run folder in the way, missing or damaged."""


class UntrustedCode(FedBalancerError):
    """Code that a run folder names, and that nobody has said to trust."""


class NoUsableReports(FedBalancerError):
    """Several rounds in a row in which no client sent a usable report."""


class TrainingDiverged(FedBalancerError):
    """A loss or update that is no longer a finite number."""
