"""What the server sends beside the weights: numbers and short texts under fixed names, with a version."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import Order
from fedbalancer.flower.compat import ConfigRecord, Message

VERSION = 2
"""Of the wire format; a client and a server of different versions refuse each other by name."""

OURS, ARRAYS, CONFIG, METRICS = "fedbalancer", "arrays", "config", "metrics"
"""The records of a message. All but the first are where a Flower app looks for them anyway."""

HELLO = "query.fedbalancer"
TRAIN, EVALUATE = "train", "evaluate"

POLICIES_CHARACTERS = 20_000
_NONE = -1


@dataclass(frozen=True)
class Instruction:
    """An order and what a client needs to carry it out. `budget_s` is the deadline less the transport, counted from the
    moment at which the client starts; `accepted_round` the last round in which the server took its report; `batch_s`
    what the server knows of its speed, for a client that has forgotten; `policies` what the client runs of the method
    (`ClientPolicies.to_json`), nothing where the server has policies of its own. If `late_counts`, a report counts
    that comes after the deadline, too."""

    client: str
    order: Order
    budget_s: float
    accepted_round: int
    batch_s: float
    run_key: str
    method: str
    policies: str
    late_counts: bool = False

    def record(self) -> ConfigRecord:
        order = self.order
        return ConfigRecord({
            "version": VERSION, "client": self.client, "round": order.round, "loss-threshold": order.loss_threshold,
            "deadline-s": float(order.deadline_s), "epochs": order.epochs, "batch-size": order.batch_size,
            "seed": order.seed, "sample-cap": _NONE if order.sample_cap is None else order.sample_cap,
            "epoch-batches": _NONE if order.epoch_batches is None else order.epoch_batches,
            "budget-s": float(self.budget_s), "learning-rate": order.learning_rate,
            "clip-norm": float(_NONE) if order.clip_norm is None else order.clip_norm,
            "accepted-round": self.accepted_round, "batch-s": self.batch_s, "run-key": self.run_key,
            "method": self.method, "policies": self.policies, "late-counts": self.late_counts,
        })  # fmt: skip

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Instruction:
        """The instruction of a record; a `BadSetting` that says what is wrong with it."""
        check_version(record)
        cap, cut, clip = (_number(record, name) for name in ("sample-cap", "epoch-batches", "clip-norm"))
        order = Order(
            round=_whole(record, "round", 1),
            loss_threshold=_number(record, "loss-threshold"),
            deadline_s=_number(record, "deadline-s", endless=True),
            epochs=_whole(record, "epochs", 1),
            batch_size=_whole(record, "batch-size", 1),
            seed=_whole(record, "seed", 0),
            sample_cap=None if cap < 0 else int(cap),
            epoch_batches=None if cut < 0 else int(cut),
            learning_rate=_number(record, "learning-rate"),
            clip_norm=None if clip < 0 else clip,
        )
        return cls(
            client=text(record, "client"),
            order=order,
            budget_s=_number(record, "budget-s", endless=True),
            accepted_round=_whole(record, "accepted-round", 0),
            batch_s=_number(record, "batch-s"),
            run_key=text(record, "run-key"),
            method=text(record, "method"),
            policies=text(record, "policies", POLICIES_CHARACTERS),
            late_counts=record.get("late-counts", False) is True,  # not known to servers of version 0.1
        )

    @property
    def learning_rate(self) -> float:
        """Where it was in an earlier version."""
        warnings.warn("take order.learning_rate in place of instruction.learning_rate", FutureWarning, stacklevel=2)
        return self.order.learning_rate

    def client_policies(self) -> ClientPolicies:
        """What the client runs of the server's method."""
        if not self.policies:
            raise BadSetting(
                f"method {self.method!r} has policies of the server's own; give the client the same method: method=..."
            )
        return ClientPolicies.from_json(self.policies)


def round_of(message: Message) -> int:
    """The round of a train message."""
    return int(str(message.content.config_records[OURS]["round"]))


def check_version(record: Mapping[str, Any]) -> None:
    """Refuse a record of another version."""
    if record.get("version") != VERSION:
        raise BadSetting(f"version {record.get('version')!r} of the wire format; this is version {VERSION}")


def text(record: Mapping[str, Any], name: str, most: int = 200) -> str:
    value = record.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise BadSetting(f"{name} must be a text of at most {most} characters")
    return value


def _number(record: Mapping[str, Any], name: str, endless: bool = False) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise BadSetting(f"{name} = {value!r} must be a number")
    if math.isinf(value) and not (endless and value > 0):
        raise BadSetting(f"{name} = {value} must be finite")
    return float(value)


def _whole(record: Mapping[str, Any], name: str, least: int) -> int:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadSetting(f"{name} = {value!r} must be a whole number, at least {least}")
    return value
