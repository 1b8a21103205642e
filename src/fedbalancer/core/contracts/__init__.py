"""One abstract base class per slot of a method.

A base class declares everything that the system may ask of a policy in its slot. Abstract methods are required; all
other methods and properties have a neutral default. A policy is a frozen dataclass that derives from the base of its
slot, changes none of its arguments and keeps no hidden state: a server policy stores what it remembers in its field of
`ServerState`.
"""

from __future__ import annotations

import inspect
from types import ModuleType

from fedbalancer.core.contracts.client import (
    Compressor,
    LocalRun,
    LocalTraining,
    PartPolicy,
    SampleSelector,
    Summarizer,
    WorkPolicy,
)
from fedbalancer.core.contracts.policy import EVERYTHING, LOSSES, NOTHING, Policy, Private
from fedbalancer.core.contracts.server import (
    Aggregator,
    ClientSelector,
    DeadlinePolicy,
    LatePolicy,
    ModelAverage,
    ObservingPolicy,
    PacePolicy,
    Ratios,
    ServerPolicy,
    SumAggregator,
    ThresholdPolicy,
)

__all__ = [
    "EVERYTHING",
    "LOSSES",
    "NOTHING",
    "SLOTS",
    "Aggregator",
    "ClientSelector",
    "Compressor",
    "DeadlinePolicy",
    "LatePolicy",
    "LocalRun",
    "LocalTraining",
    "ModelAverage",
    "ObservingPolicy",
    "PacePolicy",
    "PartPolicy",
    "Policy",
    "Private",
    "Ratios",
    "SampleSelector",
    "ServerPolicy",
    "SumAggregator",
    "Summarizer",
    "ThresholdPolicy",
    "WorkPolicy",
    "policies_in",
]

SLOTS: dict[str, type[Policy]] = {
    base.slot: base
    for base in (
        ClientSelector, SampleSelector, DeadlinePolicy, WorkPolicy, Aggregator, ModelAverage, LatePolicy,
        ThresholdPolicy, PacePolicy, Summarizer, Compressor, LocalTraining, PartPolicy,
    )
}  # fmt: skip
"""The base class of every slot."""


def policies_in(module: ModuleType, slot: str) -> dict[str, type[Policy]]:
    """Return the policies of a slot that a module or package exports, by name.

    Importing a policy in the package of its slot registers it: names in settings, `fedbalancer list policies` and the
    reference follow from this.

    Args:
        module: The module or package.
        slot: The slot.
    """
    exported = ((name, value) for name, value in sorted(vars(module).items()) if isinstance(value, type))
    return {
        name: kind
        for name, kind in exported
        if issubclass(kind, SLOTS[slot]) and kind is not SLOTS[slot] and not inspect.isabstract(kind) and name[0] != "_"
    }
