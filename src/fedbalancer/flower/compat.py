"""Everything that this package uses of flwr, and every difference between versions of flwr.

Besides this module only `wire`, which works below Flower's grid, imports flwr. Versions 1.41.0 and 1.42.0 have the same
names. The argument of `Grid.pull_messages` has had other names, so it is passed by position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedbalancer.core.errors import MissingData

try:
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Error,
        Message,
        Metadata,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result
    from flwr.serverapp.strategy import Strategy as FlowerStrategy
except ImportError as error:
    raise MissingData(
        f"this needs flwr 1.41 or later ({error}); install it: pip install 'fedbalancer[flower]'"
    ) from error

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Error",
    "FlowerStrategy",
    "Grid",
    "Message",
    "MetricRecord",
    "RecordDict",
    "Result",
    "combine_shares",
    "config_from_text",
    "config_to_text",
    "create_shares",
    "make_reply",
    "mods_of",
    "node_ids",
    "pull",
    "push",
    "reply_to",
    "set_current_arrays",
    "train_mods_of",
]


def node_ids(grid: Grid) -> list[int]:
    """Return the ids of the connected nodes, sorted: the SuperLink lists them in any order."""
    return sorted(int(node) for node in grid.get_node_ids())


def push(grid: Grid, messages: Sequence[Message]) -> list[str | None]:
    """Send messages and return their ids; None for one that was not sent. A push that is too large sends none."""
    ids = list(grid.push_messages(list(messages)))
    return [identity or None for identity in ids] if len(ids) == len(messages) else [None] * len(messages)


def pull(grid: Grid, ids: Iterable[str]) -> list[Message]:
    """Return the available replies. The argument is passed by position: its name differs between versions."""
    wanted = list(ids)
    return list(grid.pull_messages(wanted)) if wanted else []


def reply_to(message: Message, content: RecordDict, elapsed_s: float) -> Message:
    """Build a reply that is dated on the sender's clock: `elapsed_s` after the message was created.

    Flower dates a reply by the client's clock and shortens its time to live by that clock's lead. A phone whose clock
    is an hour fast could never answer.
    """
    reply = Message(content, reply_to=message)
    left_s = message.metadata.ttl - elapsed_s
    if left_s > 0:
        reply.metadata.created_at = message.metadata.created_at + elapsed_s
        reply.metadata.ttl = left_s
    return reply


def make_reply(content: RecordDict, node: int) -> Message:
    """Build a reply as if a node had sent it, for strategies that aggregate messages."""
    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=node,
        dst_node_id=1,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=1.0,
        message_type="train",
    )
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload, no-any-return] # not in its stubs


def config_to_text(record: ConfigRecord) -> str:
    """Encode a configuration as text, for the checkpoint."""
    return str(record.deflate().hex())


def config_from_text(text: str) -> ConfigRecord:
    """Decode the text of `config_to_text`."""
    config: ConfigRecord = ConfigRecord.inflate(bytes.fromhex(text))
    return config


def create_shares(secret: bytes, needed: int, count: int) -> list[bytes]:
    """Return `count` shares of a secret, of which `needed` give it back (Shamir), as in Flower's SecAgg+."""
    from flwr.common.secure_aggregation.crypto import shamir

    return list(shamir.create_shares(secret, needed, count))


def combine_shares(shares: Sequence[bytes]) -> bytes:
    """Return the secret of some shares.

    Raises:
        ValueError: They do not fit together.
    """
    from flwr.common.secure_aggregation.crypto import shamir

    return bytes(shamir.combine_shares(list(shares)))


def mods_of(app: ClientApp) -> list[Any]:
    """Return the app-wide mods, as far as this version of flwr shows them."""
    return list(getattr(app, "_mods", []))


def train_mods_of(app: ClientApp) -> list[Any]:
    """Return the mods around an app's train functions.

    This version of flwr keeps them only in closures. If another version hides them, the list is empty.
    """
    functions = [f for name, f in getattr(app, "_registered_funcs", {}).items() if name.startswith("train")]
    return [mod for function in functions for mod in _mods_around(function)]


def _mods_around(function: Any) -> list[Any]:
    inside = _closure(function)
    return [inside["_mod"], *_mods_around(inside["_ffn"])] if inside.keys() >= {"_mod", "_ffn"} else []


def _closure(function: Any) -> dict[str, Any]:
    """Return the closure variables of a function."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return {
        name: cell.cell_contents for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True)
    }


def set_current_arrays(strategy: Any, arrays: ArrayRecord) -> None:
    """Set the model that a round started from on one of Flower's strategies, as its `configure_train` would.

    Strategies of the FedOpt family keep it as NumPy arrays, FedAvgM and QFedAvg as a record, others not at all.
    """
    if not hasattr(strategy, "current_arrays"):
        return
    from flwr.serverapp.strategy import FedAvgM, QFedAvg

    plain = isinstance(strategy, FedAvgM | QFedAvg)
    strategy.current_arrays = arrays if plain else {name: array.numpy() for name, array in arrays.items()}
