"""Updates travel as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedbalancer.client.compress.wire import from_wire, require_bytes, wire
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.types import Layout, Weights


@dataclass(frozen=True)
class NoCompression(Compressor):
    """Four bytes per parameter, nothing lost."""

    is_identity: ClassVar[bool] = True

    def encoded_bytes(self, layout: Layout) -> int:
        return layout.wire_bytes

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(update), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        return from_wire(payload)
