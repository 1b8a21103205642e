"""Bytes and seconds of methods that train a part of the model, or that send or compute more than plain training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.training import make_part, rank_speeds
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.interfaces import DeviceModel
from fedbalancer.core.types import FloatArray, Layout, Order, Part
from fedbalancer.core.types.layout import check_shapes, count_bytes
from fedbalancer.simulation.devices import DeviceDraws, draw_devices, estimate_network_s

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LocalCosts:
    """Costs of a client's transfers and batches under the policies in slots `train` and `part`.

    Args:
        policies: The method's client policies.
        layout: Names and shapes of the model's tensors.
        down_bytes: Bytes of a whole model that a client downloads.
        up_bytes: Bytes of a whole update that a client uploads.
        ranks: Share of slower clients, by client id. Empty if every client trains the whole model.
        flops: Share of a batch's FLOPs that each tensor causes. Empty if every client trains the whole model.
    """

    policies: ClientPolicies
    layout: Layout
    down_bytes: int
    up_bytes: int
    ranks: dict[str, float]
    flops: Mapping[str, float]

    @classmethod
    def of(
        cls, policies: ClientPolicies, layout: Layout, down_bytes: int, up_bytes: int, clients: Sequence[str],
        batch_s: FloatArray, flops: Callable[[], Mapping[str, float]],
    ) -> LocalCosts:  # fmt: skip
        """Return the costs of a method.

        Args:
            policies: The method's client policies.
            layout: Names and shapes of the model's tensors.
            down_bytes: Bytes of a whole model.
            up_bytes: Bytes of a whole update.
            clients: Ids of all clients.
            batch_s: Their seconds per batch of the whole model, as sampled before training.
            flops: Counts the share of a batch's FLOPs that each tensor causes.
        """
        ranks = {} if policies.part.is_whole else dict(zip(clients, rank_speeds(batch_s).tolist(), strict=True))
        counts = not policies.part.is_whole and policies.part.outside in ("absent", "frozen")
        costs = cls(policies, layout, down_bytes, up_bytes, ranks, flops() if counts else {})
        name, train = type(policies.train).__name__, policies.train
        for question in ("client_state", "down_arrays", "up_arrays"):
            check_shapes(f"{name}.{question}", getattr(train, question)(layout))
        if not 0 < train.passes < math.inf:
            raise BadSetting(f"{name}.passes is {train.passes!r}; it must be a finite number over 0")
        return costs

    def part(self, client: str, order: Order) -> Part | None:
        """Return the part of the model that a client trains; None for the whole model."""
        return make_part(self.policies.part, self.layout, client, self.ranks.get(client, 0.0), order, self.flops)

    def download_bytes(self, mask: Mask | None) -> int:
        """Return the bytes of a client's download, for the mask of its part. Arrays are scaled like the model."""
        share = 1.0 if mask is None or self.policies.part.outside in ("frozen", "dropped") else float(mask.mean())
        return round(self.down_bytes * share + self._scale * count_bytes(self.policies.train.down_arrays(self.layout)))

    def upload_bytes(self, mask: Mask | None) -> int:
        """Return the bytes of a client's upload."""
        share = 1.0 if mask is None else float(mask.mean())
        return round(self.up_bytes * share + self._scale * count_bytes(self.policies.train.up_arrays(self.layout)))

    @property
    def _scale(self) -> float:
        """Declared bytes per byte of the model that is trained here."""
        return self.down_bytes / max(self.layout.wire_bytes, 1)

    def batch_factor(self, part: Part | None) -> float:
        """Return the seconds of a client's batch as a multiple of a plain batch of the whole model."""
        return self.policies.train.passes * (1.0 if part is None else part.batch_share)

    def draw(
        self, devices: DeviceModel, clients: Sequence[str], round_number: int, parts: Sequence[Part | None]
    ) -> DeviceDraws:
        """Draw the times of every client in one round, each with its own bytes and batches.

        Args:
            devices: The device model.
            clients: Ids of the clients.
            round_number: The round.
            parts: The part of each client.
        """
        columns = np.zeros((3, len(clients)))
        for (down_bytes, up_bytes), places in self._group_by_bytes(parts).items():
            drawn = draw_devices(devices, [clients[place] for place in places], round_number, down_bytes, up_bytes)
            columns[:, places] = drawn.batch_s, drawn.download_s, drawn.upload_s
        columns[0] *= [self.batch_factor(part) for part in parts]
        return DeviceDraws(*columns)

    def estimate_network_s(self, devices: DeviceModel, clients: Sequence[str], order: Order) -> FloatArray:
        """Return the expected seconds of every client's transfers."""
        parts = [self.part(client, order) for client in clients]
        seconds = np.zeros(len(clients))
        for (down_bytes, up_bytes), places in self._group_by_bytes(parts).items():
            seconds[places] = estimate_network_s(devices, [clients[place] for place in places], down_bytes, up_bytes)
        return seconds

    def batch_factors(self, clients: Sequence[str], order: Order) -> FloatArray:
        """Return `batch_factor` of every client."""
        return np.array([self.batch_factor(self.part(client, order)) for client in clients])

    def _group_by_bytes(self, parts: Sequence[Part | None]) -> dict[tuple[int, int], list[int]]:
        groups: dict[tuple[int, int], list[int]] = {}
        for place, part in enumerate(parts):
            mask = None if part is None else part.mask
            groups.setdefault((self.download_bytes(mask), self.upload_bytes(mask)), []).append(place)
        return groups


def needs_costs(policies: ClientPolicies) -> bool:
    """Return whether a method's transfers or batches differ from those of plain training of the whole model.

    Args:
        policies: The method's client policies.
    """
    return not (policies.train.is_plain and policies.part.is_whole)
