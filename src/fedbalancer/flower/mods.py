"""Flower's mods: which of them work with these clients, and which are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.flower.compat import Context, Message, mods_of, train_mods_of

CLIPPING = ("fixedclipping_mod", "adaptiveclipping_mod")
SECURE = ("secagg_mod", "secaggplus_mod")
"""Flower's SecAgg and SecAgg+."""
NO_SECURE_AGGREGATION = (
    "is refused: Flower's SecAgg and SecAgg+ need a fixed group of clients, and a round here closes at its deadline "
    "with the reports that have arrived; Strategy(secure_aggregation=True) sums those "
    "(docs/explanation/privacy.md)"
)
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def check_app_mods(app: Any) -> None:
    """Refuse secure aggregation anywhere in a `ClientApp`, and app-wide mods that would fail on the greeting."""
    check_no_secure_aggregation([*mods_of(app), *train_mods_of(app)])
    for mod in mods_of(app):
        if (name := mod_name(mod)) in ("LocalDpMod", *CLIPPING):
            raise BadSetting(
                f"ClientApp(mods=[{name}]) also gets the server's first message, which has no arrays, and fails; "
                "use @app.train(mods=[...]) or client_app(mods=[...])"
            )


def check_mods(mods: Sequence[Mod]) -> None:
    """Refuse mods that need one of Flower's strategies or workflows on the server."""
    check_no_secure_aggregation(mods)
    for mod in mods:
        if (name := mod_name(mod)) in CLIPPING:
            raise BadSetting(
                f"mods: {name} clips to a norm that only Flower's DifferentialPrivacyClientSide strategies send, which "
                "do not work with deadlines; LocalDpMod clips and adds noise itself"
            )


def check_no_secure_aggregation(mods: Sequence[Mod]) -> None:
    """Refuse SecAgg and SecAgg+."""
    for mod in mods:
        if (name := mod_name(mod)) in SECURE:
            raise BadSetting(f"mods: {name} {NO_SECURE_AGGREGATION}")


def skip_without_arrays(mod: Mod) -> Mod:
    """Wrap a mod so that replies without arrays pass unchanged.

    A client that stopped at its deadline sends no arrays, which Flower's mods treat as an error.
    """

    def wrapped(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        replies: list[Message] = []

        def call_and_record(message: Message, context: Context) -> Message:
            replies.append(call_next(message, context))
            return replies[-1]

        result = mod(message, context, call_and_record)
        has_no_arrays = replies and not replies[-1].has_error() and not replies[-1].content.array_records
        return replies[-1] if has_no_arrays else result

    return wrapped


def mod_name(mod: Any) -> str:
    """Return the name of a mod: of the function, or of the class."""
    return str(getattr(mod, "__name__", type(mod).__name__))
