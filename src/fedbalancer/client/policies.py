"""What the client runs of a method, and how the server tells it: by names of known policies and their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from numpy.typing import ArrayLike

from fedbalancer.client import compress, samples, summary, work
from fedbalancer.client.compress import NoCompression
from fedbalancer.client.samples import EverySample
from fedbalancer.client.summary import FractionTracker, Histogram, LossStatistics, SecAggHistogram
from fedbalancer.client.work import AllOrNothing
from fedbalancer.core.contracts import Compressor, Policy, SampleSelector, Summarizer, WorkPolicy, policies_in
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.fields import Weight, check_fields

KNOWN: dict[str, Mapping[str, type[Policy]]] = {
    "samples": policies_in(samples, "samples"),
    "work": policies_in(work, "work"),
    "summary": {
        **policies_in(summary, "summary"),
        "gaussian": LossStatistics, "histogram": Histogram, "secagg-histogram": SecAggHistogram,
        "fraction-tracker": FractionTracker,
    },
    "compress": policies_in(compress, "compress"),
}  # fmt: skip
"""The policies that may be named over the network, by slot: a name of any other class would be code from the net."""


@dataclass(frozen=True)
class ClientPolicies:
    """One policy per client slot. The defaults are FedAvg.

    Args:
        samples: Selects the samples to train on.
        work: Decides how much to train before the deadline.
        summary: Summarises losses and speed for the server.
        compress: Compresses the update.
        mu: Weight of the proximal term.
        forward_pass: When a client computes the losses of all its samples: the `first` time that its policy needs them,
            or in `every` round.
    """

    samples: SampleSelector = field(default_factory=EverySample)
    work: WorkPolicy = field(default_factory=AllOrNothing)
    summary: Summarizer = field(default_factory=LossStatistics)
    compress: Compressor = field(default_factory=NoCompression)
    mu: Weight = 0.0
    forward_pass: Literal["first", "every"] = "first"

    def __post_init__(self) -> None:
        """Check `mu` and `forward_pass`."""
        check_fields(self)

    def to_json(self) -> str | None:
        """What the server sends to its clients; None if some policy is not one of `KNOWN`, or has been changed by more
        than its numbers and words."""
        told: dict[str, Any] = {"mu": self.mu, "forward_pass": self.forward_pass}
        for slot, known in KNOWN.items():
            policy = getattr(self, slot)
            if type(policy) not in known.values():
                return None
            told[slot] = {"policy": type(policy).__name__, **asdict(policy)}
        return json.dumps(told)

    @classmethod
    def from_json(cls, text: str) -> ClientPolicies:
        """The inverse of `to_json`; a `BadSetting` that says what is wrong with the text."""
        try:
            told = json.loads(text)
            made = {slot: _made(slot, dict(told.pop(slot))) for slot in KNOWN}
            policies = cls(**made, mu=float(told.pop("mu")), forward_pass=told.pop("forward_pass"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadSetting(f"what the server says of the client's policies cannot be read: {error!r}") from error
        if told or policies.forward_pass not in ("first", "every") or not 0 <= policies.mu < float("inf"):
            raise BadSetting(f"what the server says of the client's policies makes no sense: {text[:300]}")
        return policies


def of_client(policies: ClientPolicies, labels: Callable[[], ArrayLike] | None) -> ClientPolicies:
    """The policies of one client: a selector with a method `of_labels` is made one that knows the client's labels."""
    if not policies.samples.needs_labels:
        return policies
    if labels is None:
        raise BadSetting(f"{type(policies.samples).__name__} selects by the client's labels, which it was not given")
    return replace(policies, samples=policies.samples.of_labels(labels()))


CLIENT_SLOTS = tuple(field.name for field in fields(ClientPolicies))


def _made(slot: str, told: dict[str, Any]) -> Any:
    name = told.pop("policy")
    if name not in KNOWN[slot]:
        raise BadSetting(f"the server asks for {slot} = {name!r}, which this client does not know")
    policy = KNOWN[slot][name](**told)
    if isinstance(policy, Summarizer) and policy.needs_secure_aggregation:
        raise BadSetting(f"the server asks for {slot} = {name!r}, but there is nothing here that hides what is sent")
    return policy
