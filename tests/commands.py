"""`fedbalancer ARGUMENTS`, or a script, as a process of its own that need not load its libraries again.

A process that has them loaded forks for every command: each has its own folder, environment, streams and exit code, and
ends as any other does, but for taking its libraries apart, which costs as much as loading them. That a fresh process
loads what it needs, and no more, is what cli/test_help.py looks at.

Run as a script this file is that process: a request, a line of JSON, comes on stdin; the child's number and then its
exit code go out.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LOADED = (
    "torch", "polars", "scipy.stats", "matplotlib.figure", "matplotlib.backends.backend_agg", "jinja2", "rich.table",
    "rich.progress", "fedbalancer.cli.app", "fedbalancer.cli.compare", "fedbalancer.experiments.comparison",
    "fedbalancer.experiments.progress", "fedbalancer.experiments.execute", "fedbalancer.experiments.run_warnings",
    "fedbalancer.reporting",
    "fedbalancer.reporting.figures", "fedbalancer.data.tasks.synthetic", "fedbalancer.training.fast",
)  # fmt: skip
"""What most commands use. None of these starts a thread by being loaded that a fork would miss."""


def run(folder: Path, *arguments: str, timeout_s: float = 240, **given: str) -> subprocess.CompletedProcess[str]:
    """The command in a folder, with what was given over this environment; nothing is on its stdin."""
    return _run(folder, "", arguments, timeout_s, given)


def run_script(
    folder: Path, script: Path, *arguments: str, timeout_s: float = 240, **given: str
) -> subprocess.CompletedProcess[str]:
    """`python SCRIPT ARGUMENTS` in a folder, in the same way."""
    return _run(folder, str(script), arguments, timeout_s, given)


def _run(
    folder: Path, script: str, arguments: tuple[str, ...], timeout_s: float, given: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    with TemporaryDirectory() as kept:
        out, err = Path(kept, "out"), Path(kept, "err")
        environment = {**os.environ, **given}
        request = {"script": script, "arguments": arguments, "folder": str(folder), "environment": environment}
        try:
            code = _asked({**request, "out": str(out), "err": str(err)}, timeout_s)
        except BaseException:
            _server().kill()  # nobody reads its answer any more
            _server.cache_clear()
            raise
        return subprocess.CompletedProcess(arguments, code, out.read_text("utf-8"), err.read_text("utf-8"))


@cache
def _server() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, __file__], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent
    )


def _asked(request: dict[str, Any], timeout_s: float) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request).encode() + b"\n")
    child = int(server.stdout.readline())
    if not select.select([server.stdout], [], [], timeout_s)[0]:
        os.kill(child, signal.SIGKILL)
        raise subprocess.TimeoutExpired(request["arguments"], timeout_s)
    return int(server.stdout.readline())


def _serve() -> str:
    """Forks for every line. In the child it returns the script, after having become the command's process."""
    for name in LOADED:
        with suppress(ImportError):
            import_module(name)
    gc.freeze()  # a collection in a child would copy all that is loaded
    known = [entry for entry in sys.path if entry not in os.environ.get("PYTHONPATH", "").split(os.pathsep)][1:]
    while line := sys.stdin.buffer.readline():
        child = os.fork()
        if child == 0:
            request = json.loads(line)
            _become(request, known)
            return str(request["script"])
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


def _become(request: dict[str, Any], known: list[str]) -> None:
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    streams = ((os.devnull, os.O_RDONLY), (request["out"], os.O_WRONLY), (request["err"], os.O_WRONLY))
    for number, (path, mode) in enumerate(streams):
        os.dup2(os.open(path, mode | os.O_CREAT | os.O_TRUNC * (number > 0)), number)
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    for stream in (sys.stdout, sys.stderr):  # those of the new places: Python has looked at the old ones
        stream.reconfigure(encoding=encoding)  # type: ignore[union-attr]
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    script = request["script"]
    sys.path[:] = [str(Path(script).parent) if script else request["folder"], *path, *known]
    sys.argv[1:] = request["arguments"]


def _ran(script: str) -> int:
    """The exit code of the command or script, and what it says of itself at its end."""
    try:
        if script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module("fedbalancer", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = _ran(_serve())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
