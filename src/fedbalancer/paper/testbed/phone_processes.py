"""All phones of a test bed, forked from one process that has loaded everything.

Started as `python -m fedbalancer.paper.testbed.phone_processes PLAN SUPERLINK PORTS`.

No code of torch or flwr runs before the forks, because a process with threads cannot be forked safely. The forks end
with this process. On Linux the kernel ensures this, and every phone has its own session, so that a scheduler that
shares time by session gives each phone as much as any other program. On other systems the forks stay in this process's
group, which the parent ends as a whole.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fedbalancer.core.processes import one_thread_here
from fedbalancer.flower.memory import FOLDER_KEY
from fedbalancer.paper.testbed import preloaded
from fedbalancer.paper.testbed.client import EmulatedPhone, PhoneTrainer
from fedbalancer.paper.testbed.clock import SERVER
from fedbalancer.paper.testbed.netns import enter, namespace_of
from fedbalancer.paper.testbed.plan import BedPlan
from fedbalancer.training.model_file import FileTrainer
from fedbalancer.training.trainer import TorchTrainer

WATCH_S, PR_SET_PDEATHSIG = 0.5, 1


def main(plan: BedPlan, superlink: str, ports: Sequence[int]) -> None:
    """Start every phone and wait until one of them, or the parent process, has ended.

    Args:
        plan: The plan of the test bed.
        superlink: Address of the SuperLink.
        ports: One port per phone.
    """
    one_thread_here()
    devices, parent = plan.devices(), os.getppid()
    trainer: PhoneTrainer = FileTrainer(plan.loaded, plan.model) if plan.model else TorchTrainer(plan.loaded)
    model_bytes = plan.model_bytes()
    for number, (client, port) in enumerate(zip(plan.names, ports, strict=True)):
        _start(EmulatedPhone(client, plan, devices, trainer, model_bytes), number, superlink, port)
    while os.getppid() == parent and os.waitpid(-1, os.WNOHANG) == (0, 0):
        time.sleep(WATCH_S)


def _start(phone: EmulatedPhone, number: int, superlink: str, port: int) -> None:
    """Fork the SuperNode and the runner of a phone, connected by a pipe."""
    reading, writing = os.pipe()
    place = namespace_of(number) if phone.plan.netns else None
    config = f'client-id="{phone.client}" {FOLDER_KEY}="off"'
    pipes = phone.plan.wakeups
    node = partial(preloaded.supernode, superlink, port, config, writing, pipes / phone.client, pipes / SERVER)
    _fork("node", place, (reading,), node)
    _fork("phone", place, (writing,), lambda: preloaded.runner(port, phone.loaded_app(), reading))
    os.close(reading)
    os.close(writing)


def _fork(name: str, place: str | None, unwanted: tuple[int, ...], work: Callable[[], None]) -> None:
    """Fork a child that runs `work`, in a network namespace if `place` names one, and then exits."""
    if os.fork():
        return
    try:
        if sys.platform == "linux":
            _configure_on_linux(f"fb-{name}")
        for descriptor in unwanted:
            os.close(descriptor)
        if place is not None:
            enter(place)
        work()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _configure_on_linux(name: str) -> None:
    """Give this process its own session and name, and end it with its parent."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Path("/proc/self/comm").write_text(name)


if __name__ == "__main__":
    main(BedPlan.read(Path(sys.argv[1])), sys.argv[2], [int(port) for port in sys.argv[3].split(",")])
