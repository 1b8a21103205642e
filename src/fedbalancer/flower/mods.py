"""Flower's mods around a client: what goes together, and what is refused, by name and at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower.compat import Context, Message, mods_of, train_mods_of

CLIPPING = ("fixedclipping_mod", "adaptiveclipping_mod")
SECURE = ("secagg_mod", "secaggplus_mod")
"""Flower's SecAgg and SecAgg+."""
NO_SECURE_AGGREGATION = (
    "is refused: SecAgg and SecAgg+ sum a fixed group of clients in several exchanges, and a round here closes at its "
    "deadline with the reports that are in; LocalDpMod and our private methods protect updates "
    "(docs/explanation/privacy.md)"
)
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def check_app_mods(app: Any) -> None:
    """Refuse secure aggregation anywhere in a `ClientApp`, and mods on the whole app that fail on the greeting."""
    check_no_secure_aggregation([*mods_of(app), *train_mods_of(app)])
    for mod in mods_of(app):
        if (name := mod_name(mod)) in ("LocalDpMod", *CLIPPING):
            raise BadSetting(
                f"ClientApp(mods=[{name}]) also gets the server's first question, which has no arrays, and fails on "
                f"it; put it where it belongs: @app.train(mods=[...]), or client_app(mods=[...])"
            )


def check_mods(mods: Sequence[Mod]) -> None:
    """Refuse mods that need one of Flower's strategies or workflows on the server."""
    check_no_secure_aggregation(mods)
    for mod in mods:
        if (name := mod_name(mod)) in CLIPPING:
            raise BadSetting(
                f"mods: {name} clips to a norm that only Flower's DifferentialPrivacyClientSide strategies send, which "
                "do not go together with deadlines; LocalDpMod clips and adds noise by itself"
            )


def check_no_secure_aggregation(mods: Sequence[Mod]) -> None:
    """Refuse SecAgg and SecAgg+ by name."""
    for mod in mods:
        if (name := mod_name(mod)) in SECURE:
            raise BadSetting(f"mods: {name} {NO_SECURE_AGGREGATION}")


def skip_without_arrays(mod: Mod) -> Mod:
    """A mod that leaves replies without arrays alone: a client that stopped for its deadline sends none, and Flower's
    mods take that for a mistake."""

    def applied(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        replies: list[Message] = []

        def kept(message: Message, context: Context) -> Message:
            replies.append(call_next(message, context))
            return replies[-1]

        found = mod(message, context, kept)
        bare = replies and not replies[-1].has_error() and not replies[-1].content.array_records
        return replies[-1] if bare else found

    return applied


def mod_name(mod: Any) -> str:
    """The name of a mod: of a function its own, of an object that of its class."""
    return str(getattr(mod, "__name__", type(mod).__name__))
