"""A SuperNode for long tests: `python quick_node.py OPTIONS` takes the options of `flower-supernode`.

It asks for messages every 0.5 s instead of every 3 s, and forks the process of a message from one that has the packages
loaded, instead of starting a new Python. Everything else is Flower's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

POLL_S = 0.5


def run_node() -> None:
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, POLL_S))

    def start_executor(command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, *command])

    module: Any = start_client_internal
    assert module.time.sleep
    assert module.subprocess.Popen
    module.time = SimpleNamespace(**{**vars(time), "sleep": sleep})
    module.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start_executor})
    flower_supernode()


def run_executor() -> None:
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supernode.cli import flwr_clientapp

    import fedbalancer.flower  # noqa: F401 - loaded once, here

    def launch(self: Any, spec: Any) -> Any:
        if os.fork() == 0:
            _run_client(flwr_clientapp, spec)
        return LaunchResult.accepted()

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes of messages
    SubprocessExecutor.launch = launch  # type: ignore[method-assign]
    flower_superexec()


def _run_client(main: Any, spec: Any) -> None:
    """Run the process of one message; it does not return."""
    for each in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    assert spec.insecure
    sys.argv = ["flwr-clientapp", "--runtime-api-address", spec.runtime_api_address, "--token", spec.token,
                "--insecure", "--parent-pid", str(os.getppid())]  # fmt: skip
    try:
        main()
    finally:
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["flower-superexec"]:
        del sys.argv[0]
        run_executor()
    else:
        run_node()
