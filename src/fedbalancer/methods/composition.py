"""A method: one choice for every slot, of the server's and of the client's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedbalancer.client.policies import CLIENT_SLOTS, ClientPolicies
from fedbalancer.core.errors import UnknownName
from fedbalancer.core.settings import Settings
from fedbalancer.core.types import Ledger, Setup
from fedbalancer.server.policies import SERVER_SLOTS, ServerPolicies


@dataclass(frozen=True)
class Method:
    """What the server runs and what its clients run: one choice per slot. The defaults are FedAvg, waiting for all.
    `settings` are those in the brackets of its name, which go over those of a run."""

    name: str
    server: ServerPolicies = field(default_factory=ServerPolicies)
    client: ClientPolicies = field(default_factory=ClientPolicies)
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __getattr__(self, slot: str) -> Any:
        """The choice in a slot, whichever side runs it: `method.deadline` is `method.server.deadline`."""
        for side, slots in (("server", SERVER_SLOTS), ("client", CLIENT_SLOTS)):
            if slot in slots:
                return getattr(getattr(self, side), slot)
        raise AttributeError(f"a method has no {slot!r}")

    def with_policies(self, **slots: Any) -> Method:
        """The same method with other choices in some slots, whichever side runs them.

        >>> Method("mine").with_policies(forward_pass="every", mu=0.1).client.mu
        0.1
        """
        for slot in slots:
            if slot not in (*SERVER_SLOTS, *CLIENT_SLOTS):
                raise UnknownName("slot", slot, [*SERVER_SLOTS, *CLIENT_SLOTS])
        return replace(
            self,
            server=replace(self.server, **{slot: choice for slot, choice in slots.items() if slot in SERVER_SLOTS}),
            client=replace(self.client, **{slot: choice for slot, choice in slots.items() if slot in CLIENT_SLOTS}),
        )


def setup_of(method: Method, ledger: Ledger, settings: Settings, seed: int) -> Setup:
    """What the server of a method knows before the first round."""
    return Setup(
        ledger=ledger,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        clients_per_round=settings.clients_per_round,
        seed=seed,
        sample_cap=method.client.samples.cap(ledger.size),
        epoch_batches=method.server.epoch_batches,
        learning_rate=settings.learning_rate,
        clip_norm=settings.clip_norm,
        forward_pass_every_round=method.client.forward_pass == "every",
        loss_noise=getattr(method.client.summary, "loss_noise", None),
        stops_in_epoch=getattr(method.client.work, "stops_in_epoch", False),
    )
