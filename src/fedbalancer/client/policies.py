"""The client's policies of a method, and how a server names them to its clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from numpy.typing import ArrayLike

from fedbalancer.client import compress, parts, samples, summary, training, work
from fedbalancer.client.compress import NoCompression
from fedbalancer.client.samples import EverySample
from fedbalancer.client.summary import FractionTracker, Histogram, LossStatistics, SecAggHistogram
from fedbalancer.client.training import PlainTraining, WholeModel
from fedbalancer.client.work import AllOrNothing
from fedbalancer.core.contracts import (
    Compressor,
    LocalTraining,
    PartPolicy,
    Policy,
    SampleSelector,
    Summarizer,
    WorkPolicy,
    policies_in,
)
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.fields import Weight, check_fields
from fedbalancer.core.types import ClientReport, Release
from fedbalancer.core.wrapping import reactions

KNOWN: dict[str, Mapping[str, type[Policy]]] = {
    "samples": policies_in(samples, "samples"),
    "work": policies_in(work, "work"),
    "summary": {
        **policies_in(summary, "summary"),
        "gaussian": LossStatistics, "histogram": Histogram, "secagg-histogram": SecAggHistogram,
        "fraction-tracker": FractionTracker,
    },
    "compress": policies_in(compress, "compress"),
    "train": policies_in(training, "train"),
    "part": {**policies_in(training, "part"), **policies_in(parts, "part")},
}  # fmt: skip
"""The policies that a server may name, by slot. No other class is ever loaded."""


@dataclass(frozen=True)
class ClientPolicies:
    """One policy per client slot. The defaults are FedAvg.

    Args:
        samples: Selects the samples to train on.
        work: Decides how much to train before the deadline.
        summary: Summarises losses and speed for the server.
        compress: Compresses the update.
        train: Decides how the client trains, and what it keeps and sends besides the update.
        part: Decides which part of the model the client trains.
        mu: Weight of the proximal term.
        forward_pass: When a client computes the losses of all its samples: the `first` time that its policy needs them,
            or in `every` round.
    """

    samples: SampleSelector = field(default_factory=EverySample)
    work: WorkPolicy = field(default_factory=AllOrNothing)
    summary: Summarizer = field(default_factory=LossStatistics)
    compress: Compressor = field(default_factory=NoCompression)
    train: LocalTraining = field(default_factory=PlainTraining)
    part: PartPolicy = field(default_factory=WholeModel)
    mu: Weight = 0.0
    forward_pass: Literal["first", "every"] = "first"

    def __post_init__(self) -> None:
        """Check `mu` and `forward_pass`."""
        check_fields(self)

    @property
    def forward_pass_every_round(self) -> bool:
        """Whether the summary describes the received model, from a forward pass in every round.

        Each loss then depends only on its own sample and on what the server knows already.
        """
        return self.forward_pass == "every" and self.summary.of_received_model

    @property
    def undeclared_training(self) -> str:
        """Names of the policies in slots `train` and `part` that may reveal a client's data; "" for none."""
        return ", ".join(type(policy).__name__ for policy in (self.train, self.part) if reactions(policy))

    def release(self) -> Release:
        """Return what the summary releases.

        Its noise protects nothing if the client also sends arrays or reacts to its data in a way that the policies in
        slots `train` and `part` do not declare.
        """
        release = self.summary.release(self.forward_pass_every_round)
        return replace(release, noise_multiplier=0.0) if self.undeclared_training else release

    def to_json(self) -> str | None:
        """Return the policies as JSON for the clients; None if one of them is not in `KNOWN`."""
        values: dict[str, Any] = {"mu": self.mu, "forward_pass": self.forward_pass}
        for slot, known in KNOWN.items():
            policy = getattr(self, slot)
            if type(policy) not in known.values():
                return None
            values[slot] = {"policy": type(policy).__name__, **asdict(policy)}
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str, sums_only: bool = False) -> ClientPolicies:
        """Return the policies that `to_json` described.

        Args:
            text: The text.
            sums_only: Whether the server sees only sums, which some summaries require.

        Raises:
            BadSetting: If the text is invalid.
        """
        try:
            values = json.loads(text)
            chosen = {slot: _make_policy(slot, dict(values.pop(slot))) for slot in KNOWN}
            policies = cls(**chosen, mu=float(values.pop("mu")), forward_pass=values.pop("forward_pass"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadSetting(f"the client policies from the server cannot be read: {error!r}") from error
        if policies.summary.needs_secure_aggregation and not sums_only:
            name = type(policies.summary).__name__
            raise BadSetting(f"the server requests summary = {name!r}, but without secure aggregation")
        if values or policies.forward_pass not in ("first", "every") or not 0 <= policies.mu < float("inf"):
            raise BadSetting(f"the client policies from the server are invalid: {text[:300]}")
        return policies


def bind_labels(policies: ClientPolicies, labels: Callable[[], ArrayLike] | None) -> ClientPolicies:
    """Return the policies of one client, with its labels if the sample selector needs them.

    Args:
        policies: Policies of all clients.
        labels: Returns the client's labels. None if they are not available.

    Raises:
        BadSetting: If labels are needed but not available.
    """
    if not policies.samples.needs_labels:
        return policies
    if labels is None:
        raise BadSetting(f"{type(policies.samples).__name__} needs the client's labels, which are not available")
    return replace(policies, samples=policies.samples.of_labels(labels()))


def with_estimates(
    reports: Sequence[ClientReport], size_of: Callable[[str], int], policies: ClientPolicies
) -> tuple[ClientReport, ...]:
    """Return reports with the server's estimate of how many samples each client trained.

    The estimate uses released numbers only, so it costs no privacy: the enrolled samples, times the share over the
    threshold in all noisy summaries of the round if samples are selected by threshold.

    Args:
        reports: Reports of a round.
        size_of: Returns the enrolled number of samples of a client.
        policies: The client policies of the method.
    """
    summary = policies.summary
    over_share = summary.over_share([report.summary for report in reports]) if policies.samples.by_threshold else 1.0
    share = min(max(over_share, 0.0), 1.0)

    def estimate(report: ClientReport) -> ClientReport:
        size = size_of(report.client)
        summary_with_count = replace(report.summary, trained=max(round(share * size), 1), estimated=True)
        if summary.sums_all_losses:
            summary_with_count = replace(summary_with_count, loss_count=float(size))
        return replace(report, summary=summary_with_count)

    return tuple(map(estimate, reports))


CLIENT_SLOTS = tuple(field.name for field in fields(ClientPolicies))


def _make_policy(slot: str, values: dict[str, Any]) -> Any:
    """Return the policy that the server names."""
    name = values.pop("policy")
    if name not in KNOWN[slot]:
        raise BadSetting(f"the server requests {slot} = {name!r}, which this client does not have")
    return KNOWN[slot][name](**values)
