"""Automatic resubmission: submits an app, and again whenever Flower ends its run before the method is done.

Flower marks a run as failed when its ServerApp or its SuperLink dies, and never continues it. A run with a `run_key`
continues from its last checkpoint when the app is submitted again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedbalancer.core.errors import MissingData
from fedbalancer.flower.operate import checkpoint_rounds
from fedbalancer.store.contents import read_manifest, read_status

COMMAND_S = 120.0
"""Longest duration of one call of `flwr`."""
STOPPED = "finished:stopped"
"""Flower's status of a run that `flwr stop` has ended."""


@dataclass(frozen=True)
class Submitter:
    """Submits an app until its run is done.

    Args:
        app: Folder of the app, whose `Strategy` has the `run_key` and `checkpoint_dir` of `run`.
        run: The run folder.
        options: More options of `flwr run`.
        tries: Submissions in a row without a new round after which to give up.
        poll_s: Seconds between two checks of the run.
        wait_s: Seconds before another submission.
        say: Receives one line per event.
        environment: More environment variables for `flwr`. It may write to its `FLWR_HOME`; if that is read-only, it
            gets a temporary copy.
    """

    app: Path
    run: Path
    options: Sequence[str] = ()
    tries: int = 5
    poll_s: float = 10.0
    wait_s: float = 30.0
    say: Callable[[str], None] = print
    environment: Mapping[str, str] | None = None

    def keep_running(self) -> str:
        """Submit the app until the run is done, or `flwr stop` has ended it.

        Returns:
            The final status: done or stopped.

        Raises:
            MissingData: `tries` submissions in a row completed no round.
        """
        with writable_home({**os.environ, **(self.environment or {})}) as environment:
            return replace(self, environment=environment)._keep_running()

    def _keep_running(self) -> str:
        fruitless = 0
        while read_status(self.run) != "done":
            before, (status, why) = self._rounds(), self._run_once()
            if status == STOPPED or read_status(self.run) == "done":
                break
            fruitless = 0 if self._rounds() > before else fruitless + 1
            if fruitless >= self.tries:
                submissions = "submission" if self.tries == 1 else "submissions in a row"
                raise MissingData(f"{self.tries} {submissions} completed no round; the last one: {why}")
            self.say(f"after round {self._rounds()}: {why}; submitting again in {self.wait_s:g} s")
            time.sleep(self.wait_s)
        return "done" if read_status(self.run) == "done" else "stopped"

    def _rounds(self) -> int:
        return max(checkpoint_rounds(self.run), default=0)

    def _run_once(self) -> tuple[str, str]:
        """Submit the app and wait until Flower's run ends; returns its status, and why it ended.

        The status in the run folder may be the same after `flwr stop` and after the death of the SuperLink, because
        both send a signal to the ServerApp. Flower's status differs.
        """
        submitted = self._flwr("run", str(self.app), "--format", "json", *self.options)
        run_id = submitted.get("run-id")
        if run_id is None:
            return "", str(submitted.get("error-message") or "flwr run failed")
        self.say(f"submitted as run {run_id}")
        while True:
            time.sleep(self.poll_s)
            runs = self._flwr("ls", "--run-id", str(run_id), "--format", "json").get("runs") or []
            status = str(runs[0].get("status")) if runs else "unknown"  # unknown: the SuperLink restarts
            if status.startswith("finished"):
                return status, f"Flower's run {run_id} is {status}{self._reason()}"

    def _reason(self) -> str:
        why = read_manifest(self.run).get("why") if read_status(self.run) == "failed" else None
        return f" ({why})" if why else ""

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """Call `flwr`; returns its JSON, or the error that it printed."""
        try:
            done = subprocess.run(
                ["flwr", *arguments], env=self.environment, capture_output=True, text=True, timeout=COMMAND_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error-message": f"flwr {arguments[0]} did not answer in {COMMAND_S:g} s"}
        except FileNotFoundError as error:
            raise MissingData("this needs flwr: pip install 'fedbalancer[flower]'") from error
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = None
        lines = (done.stdout + done.stderr).strip().splitlines()
        return answer if isinstance(answer, dict) else {"error-message": lines[-1] if lines else "no answer"}


@contextmanager
def writable_home(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Provide an environment in which `flwr` can write to its home, where it keeps credentials.

    Args:
        environment: The environment. A `FLWR_HOME` that is read-only, such as a mounted configuration, is replaced by a
            temporary folder with a copy of its `config.toml`.
    """
    home = Path(environment.get("FLWR_HOME") or Path.home() / ".flwr")
    config = home / "config.toml"
    if not config.is_file() or os.access(home, os.W_OK):
        yield dict(environment)
        return
    with TemporaryDirectory(prefix="fedbalancer-flower-") as copy:
        shutil.copyfile(config, Path(copy) / config.name)
        yield {**environment, "FLWR_HOME": copy}
