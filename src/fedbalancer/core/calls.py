"""Texts that look like a call with keyword arguments, such as `adamw(weight_decay=0.01)`, and the objects they name."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from fedbalancer.core.errors import BadSetting


def read_call(
    place: str, text: str, example: str = "package.module:Class(key=value, ...)"
) -> tuple[str, dict[str, Any]]:
    """Parse a call with keyword arguments. Values are literals; nothing is evaluated.

    Args:
        place: Where the text is given, for error messages.
        text: The call, or a name alone.
        example: What the text must look like, for error messages.

    Returns:
        The name and the arguments.

    Raises:
        BadSetting: If the text is no such call.

    Example:
        >>> read_call("here", "my.module:Mine(first=60, names=['a'], early=true)")
        ('my.module:Mine', {'first': 60, 'names': ['a'], 'early': True})
    """
    name, parenthesis, _ = text.partition("(")
    if not parenthesis:
        return text.strip(), {}
    advice = f"{place} must look like {example}, with plain values"
    try:
        call = ast.parse(f"f{text[len(name) :].rstrip()}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise BadSetting(advice)
        arguments = [(keyword.arg, ast.literal_eval(_Words().visit(keyword.value))) for keyword in call.keywords]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise BadSetting(advice) from error
    keys = [str(key) for key, _ in arguments if key is not None]
    if len(set(keys)) < len(arguments):
        raise BadSetting(f"{place}: an argument is given twice, or has no name")
    return name.strip(), dict(zip(keys, (value for _, value in arguments), strict=True))


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the canonical text of a call, which `read_call` parses.

    Args:
        name: The name.
        arguments: Keyword arguments with plain values.

    Example:
        >>> write_call("adamw", {"weight_decay": 0.01, "betas": (0.9, 0.99)}), write_call("sgd", {})
        ('adamw(betas=(0.9, 0.99),weight_decay=0.01)', 'sgd')
    """
    inside = ",".join(f"{key}={arguments[key]!r}" for key in sorted(arguments))
    return f"{name}({inside})" if inside else name


class _Words(ast.NodeTransformer):
    """Replaces TOML's words for values by Python's."""

    values: ClassVar = {"true": True, "false": False, "inf": math.inf, "none": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.values[node.id]) if node.id in self.values else node


def load_class(place: str, path: str) -> Any:
    """Import `package.module:Class`.

    Args:
        place: Where the path is given, for error messages.
        path: The module and the name in it.

    Returns:
        The class, or whatever has that name.

    Raises:
        BadSetting: If it cannot be imported.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon:
        raise BadSetting(f"{place} must look like package.module:Class")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # importing a user's module may raise anything
        advice = " (install its package, or put its folder on PYTHONPATH)" if _is_missing(error, module_name) else ""
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise BadSetting(f"{place}: {kind}{error}{advice}") from error


def _is_missing(error: Exception, module_name: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and module_name.startswith(str(error.name))


def create_object(place: str, source: Any, arguments: Mapping[str, Any]) -> Any:
    """Create an object of a class.

    Args:
        place: Where the class is named, for error messages.
        source: The class. Anything else is returned unchanged if there are no arguments.
        arguments: Keyword arguments.

    Returns:
        The object.

    Raises:
        BadSetting: If the class refuses the arguments.
    """
    if not inspect.isclass(source) and not arguments:
        return source
    try:
        return source(**arguments)
    except (TypeError, ValueError, BadSetting) as error:
        how = "with these arguments" if arguments else "without arguments"
        raise BadSetting(f"{place} cannot be created {how}: {error}") from error
