"""Make an item: measure its tasks one after the other, and write what they show after each."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedbalancer.errors import FedBalancerError
from fedbalancer.paper.index import write_index
from fedbalancer.paper.item import Item, Work
from fedbalancer.paper.request import Listen, Request
from fedbalancer.paper.write import Written, item_folder, part, write


def make_item(
    item: Item,
    request: Request,
    out: Path,
    command: str,
    listen: Listen = lambda task, event: None,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Written, list[str]]:
    """The item in its folder under `out`, and what failed, in words. `command` is what the user typed. A task that is
    measured is written at once, so that one that is stopped or fails takes nothing from those before it."""
    item.check(request)
    folder, failed, asked = item_folder(out, item, request), [], []
    written: Written | None = None
    for task in request.tasks:
        work, started = Work(request, task, partial(listen, task), stopped), time.monotonic()
        frames = item.measure(work)
        name = str(next(iter(frames.values()))["task"][0]) if any(frame.height for frame in frames.values()) else task
        if not any(frame.height for frame in frames.values()):
            raise FedBalancerError(
                f"nothing can be scored on {task}: {'; '.join(work.notes) or 'no run came to its end'}"
            )
        failed += [f"{task}: {note}" for note in work.notes if " failed: " in note]
        known = part(request, command, time.monotonic() - started, work.notes)
        asked.append(name)
        written = write(item, folder, frames, {name: known}, asked)
        write_index(out)
    assert written is not None  # a request has at least one task
    return written, failed
