"""The slots of a method: what each takes, how an own policy is found by name, and what does not go together."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from fedbalancer.core.contracts import SLOTS
from fedbalancer.core.errors import BadSetting, UnknownName


def check_composition(method: Any) -> None:
    """Refuse a `Method` whose choices do not go together, before anything runs.

    A policy that steers by the clients' losses says so with `needs_losses = True`, a summary that has none with
    `releases_losses = False`, and a policy that needs exact counts of what was trained with `needs_counts = True`. Any
    policy may have a method `refuses(method) -> str | None` that says in a sentence why it cannot work beside the other
    choices.
    """
    for slot in SLOTS:
        if why := _refusal(method, slot):
            raise BadSetting(f"method {method.name!r} cannot run: {why}")


def _refusal(method: Any, slot: str) -> str | None:
    policy, summary = getattr(method, slot), method.summary
    if policy.needs_losses and not summary.releases_losses:
        return f"{type(policy).__name__} steers by the clients' losses, which {type(summary).__name__} does not release"
    if policy.needs_counts and summary.is_private:
        return f"{type(policy).__name__} needs the local steps of clients, which {type(summary).__name__} withholds"
    return str(why) if (why := policy.refuses(method)) else None


def load_policy(slot: str, text: str) -> Any:
    """An own policy named as `package.module:Class`, or `package.module:Class(first=60)` with keyword arguments,
    checked for its slot's methods."""
    if slot not in SLOTS:
        raise UnknownName("slot", slot, SLOTS)
    path, arguments = read_call(f"{slot} = {text!r}", text)
    return check_policy_type(slot, text, build_policy(slot, text, load_class(f"{slot} = {text!r}", path), arguments))


def load_class(place: str, path: str) -> Any:
    """What `package.module:Class` names; `place` is where that stands, for errors."""
    module_name, colon, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute) if colon else None
    except Exception as error:  # a module of the user's may raise anything while it is loaded
        advice = " (install its package, or put its folder on PYTHONPATH)" if _is_absent(error, module_name) else ""
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise BadSetting(f"{place}: {kind}{error}{advice}") from error
    if found is None:
        raise BadSetting(f"{place} must look like package.module:Class")
    return found


def build_policy(slot: str, text: str, found: Any, arguments: Mapping[str, Any]) -> Any:
    """A policy from its class; what is no class is one already, and takes no arguments."""
    return make(f"{slot} = {text!r}", found, arguments)


def make(place: str, found: Any, arguments: Mapping[str, Any]) -> Any:
    """An object of a class; what is no class is one already, and takes no arguments."""
    if not inspect.isclass(found) and not arguments:
        return found
    try:
        return found(**arguments)
    except (TypeError, ValueError) as error:
        how = "with these arguments" if arguments else "without arguments"
        raise BadSetting(f"{place} cannot be made {how}: {error}") from error


def check_policy_type(slot: str, text: str, policy: Any) -> Any:
    """The policy, if it has what its slot needs."""
    if inspect.isclass(policy):
        raise BadSetting(f"{slot} = {text} is a class; give a policy made from it: {policy.__name__}()")
    if not isinstance(policy, SLOTS[slot]):
        raise BadSetting(f"{slot} = {text!r} is not a policy for that slot: {base_advice(slot, policy)}")
    return policy


def base_advice(slot: str, policy: Any) -> str:
    """Return which base class the class of a policy must derive from.

    >>> base_advice("deadline", object())
    'derive object from fedbalancer.core.contracts.DeadlinePolicy'
    """
    return f"derive {type(policy).__name__} from {SLOTS[slot].__module__}.{SLOTS[slot].__name__}"


def read_call(place: str, text: str) -> tuple[str, dict[str, Any]]:
    """The name and the keyword arguments of a call in words. Values are literals: nothing is evaluated.

    >>> read_call("here", "my.module:Mine(first=60, names=['a'], early=true)")
    ('my.module:Mine', {'first': 60, 'names': ['a'], 'early': True})
    """
    name, parenthesis, _ = text.partition("(")
    if not parenthesis:
        return text.strip(), {}
    wrong = f"{place} must look like package.module:Class(key=value, ...), with plain values"
    try:
        call = ast.parse(f"f{text[len(name) :].rstrip()}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise BadSetting(wrong)
        arguments = [(keyword.arg, ast.literal_eval(_Words().visit(keyword.value))) for keyword in call.keywords]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise BadSetting(wrong) from error
    keys = [str(key) for key, _ in arguments if key is not None]
    if len(set(keys)) < len(arguments):
        raise BadSetting(f"{place}: an argument is given twice, or has no name")
    return name.strip(), dict(zip(keys, (value for _, value in arguments), strict=True))


class _Words(ast.NodeTransformer):
    """TOML's words for values stand for Python's."""

    known: ClassVar = {"true": True, "false": False, "inf": math.inf, "none": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.known[node.id]) if node.id in self.known else node


def _is_absent(error: Exception, module_name: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and module_name.startswith(str(error.name))
