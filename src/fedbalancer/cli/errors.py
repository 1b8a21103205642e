"""Errors of commands: one line on stderr and exit code 2; Ctrl-C has exit code 130. There is never a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import typer
from typer import core

from fedbalancer.core.errors import FedBalancerError
from fedbalancer.core.processes import EXIT_INTERRUPTED

P = ParamSpec("P")
EXIT_USER_ERROR = 2


def with_clear_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Return the command with errors turned into one line on stderr."""

    @wraps(command)
    def inner(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            _check_names(kwargs.values())
            command(*args, **kwargs)
        except FedBalancerError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(EXIT_USER_ERROR) from error
        except BrokenPipeError as error:
            raise typer.Exit(1) from error
        except OSError as error:  # a disk that is full, read-only or gone
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(EXIT_USER_ERROR) from error
        except KeyboardInterrupt as error:
            typer.echo("stopped", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from error

    return inner


def _check_names(values: Iterable[object]) -> None:
    """Refuse arguments that are not UTF-8, because a run could not write its tables there."""
    from fedbalancer.core.files import check_path_name

    for value in values:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str | Path):
                check_path_name(each)


class Commands(core.TyperGroup):
    """A group of commands that suggests a similar name once. Some versions of click suggest one themselves."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Newer versions of typer include their own click, under another name.
        click_module = getattr(core, "click", None) or getattr(core, "_click", None)
        self.suggest_commands = not hasattr(getattr(click_module, "exceptions", None), "NoSuchCommand")
        return super().resolve_command(ctx, args)
