"""All errors that a user can fix.

    FedBalancerError
    ├── UnknownName      a task, method, key or policy that does not exist
    ├── BadSetting       a value that is not allowed
    ├── BadData          data that cannot be trained on
    ├── MissingData      data or an optional package that is not installed
    ├── RunFolderError   a run folder that exists already, is missing or is damaged
    ├── UntrustedCode    a run folder that names code which the user has not approved
    ├── NoUsableReports  several consecutive rounds without a usable report
    └── TrainingDiverged a loss or an update that is not a finite number

The command line prints the message on one line and exits with code 2, without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedBalancerError(Exception):
    """Base of all errors that a user can fix."""


class UnknownName(FedBalancerError):
    """A name that does not exist. The message suggests similar names.

    Args:
        kind: What the name stands for, for example "method".
        name: The unknown name.
        known: All known names.
    """

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
    """Data or a package that must be installed first."""


class RunFolderError(FedBalancerError):
    """A run folder that exists already, is missing or is damaged."""


class UntrustedCode(FedBalancerError):
    """A run folder names code that the user has not approved."""


class NoUsableReports(FedBalancerError):
    """Several consecutive rounds without a usable report."""


class TrainingDiverged(FedBalancerError):
    """A loss or update is not a finite number."""
