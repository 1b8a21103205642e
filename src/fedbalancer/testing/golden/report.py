"""What a replay found."""

from __future__ import annotations

from dataclasses import dataclass

DETAILS = 5
"""How many mismatches of a check are printed."""


@dataclass(frozen=True)
class GoldenCheck:
    """One thing that was compared: how many values or rounds, and a sentence for each difference."""

    name: str
    checked: int
    mismatches: list[str]


@dataclass(frozen=True)
class GoldenReport:
    """All checks of a file."""

    checks: list[GoldenCheck]

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing differed."""
        return any(check.checked for check in self.checks) and not any(check.mismatches for check in self.checks)

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [f"{'run':{width}}  checked  mismatches"]
        lines += [f"{check.name:{width}}  {check.checked:7}  {len(check.mismatches):10}" for check in self.checks]
        mismatches = sum(len(check.mismatches) for check in self.checks)
        lines.append(f"{'total':{width}}  {sum(check.checked for check in self.checks):7}  {mismatches:10}")
        for check in self.checks:
            lines += [f"{check.name}: {mismatch}" for mismatch in check.mismatches[:DETAILS]]
            if len(check.mismatches) > DETAILS:
                lines.append(f"{check.name}: and {len(check.mismatches) - DETAILS} more")
        return "\n".join(lines)


def differing(what: str, found: float, recorded: float, tolerance: float = 0.0) -> list[str]:
    """A sentence if the two differ by more than the tolerance, else none.

    >>> differing("round 3: duration", 190.0, 191.0, 1e-6)
    ['round 3: duration is 190.0, recorded 191.0']
    """
    equal = found == recorded or abs(found - recorded) <= tolerance
    return [] if equal else [f"{what} is {found!r}, recorded {recorded!r}"]
