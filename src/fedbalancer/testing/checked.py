"""A policy under test: every call of it is made several times, and everything around it is watched."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from fedbalancer.testing.same import same


class PolicyError(AssertionError):
    """A promise of a slot that a policy breaks."""


@dataclass(frozen=True, eq=False)
class Checked:
    """A policy, and its deep and pickled copies that must behave as it does."""

    policy: Any
    twins: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, policy: Any) -> Checked:
        """Copy the policy, which must survive it."""
        bare = cls(policy)
        try:
            copied = copy.deepcopy(policy)
        except Exception as error:
            bare.broken("cannot be deep-copied", error)
        bare.require(same(policy, copied), "is another after a deep copy")
        try:
            pickled = pickle.loads(pickle.dumps(policy))
        except Exception as error:
            bare.broken("cannot be pickled, so no other process can use it", error)
        return replace(bare, twins=(("deep", copied), ("pickled", pickled)))

    @property
    def name(self) -> str:
        return type(self.policy).__name__

    def broken(self, sentence: str, cause: Exception | None = None) -> NoReturn:
        """Raise what is wrong with the policy."""
        because = "" if cause is None else f": {type(cause).__name__}: {cause}"
        raise PolicyError(f"{self.name} {sentence}{because}") from cause

    def require(self, promise: bool, sentence: str) -> None:
        """Raise the sentence unless the promise is kept."""
        if not promise:
            self.broken(sentence)

    def call(self, method: str, *arguments: Any) -> Any:
        """What the policy's method returns, having watched that it is a function of its arguments and of no more."""
        given, itself, drawn = copy.deepcopy(arguments), copy.deepcopy(self.policy), _global_draws()
        result = self._run(self.policy, method, arguments)
        names = list(inspect.signature(getattr(self.policy, method)).parameters)
        for row, (now, before) in enumerate(zip(arguments, given, strict=True)):
            if not isinstance(now, np.random.Generator) and not same(now, before):
                argument = names[row] if row < len(names) else str(row)
                self.broken(f"changed its argument {argument} in {method}(); a policy changes nothing that it is given")
        if not same(self.policy, itself):
            self.broken(f"changed itself in {method}(); what it remembers must be in the state that observe() returns")
        if drawn != _global_draws():
            self.broken(f"draws from a global random generator in {method}(); use fedbalancer.core.randomness.stream")
        for kind, twin in (("", self.policy), *self.twins):
            if not same(result, self._run(twin, method, copy.deepcopy(given))):
                whose = f"its {kind} copy gives another result" if kind else "it gives another result the second time"
                self.broken(f"is not deterministic: {whose} for the same arguments of {method}()")
        return result

    def _run(self, policy: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return getattr(policy, method)(*arguments)
        except Exception as error:
            self.broken(f"raised an error in {method}()", error)


def _global_draws() -> tuple[Any, ...]:
    """Where the global generators stand, as values that can be compared at once."""
    name, words, *rest = np.random.get_state()  # noqa: NPY002 - to see whether somebody else uses it
    return random.getstate(), name, np.asarray(words).tobytes(), *rest
