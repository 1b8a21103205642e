"""The live page of a folder: made anew when something in the folder has changed."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

from fedbalancer.dashboard.runs import LiveRuns, signature
from fedbalancer.errors import FedBalancerError
from fedbalancer.report.folders import load
from fedbalancer.report.page import Live, page_html, waiting_html
from fedbalancer.report.scores import score_comparison
from fedbalancer.store import COMPARISON, ComparisonFile

REST = 2
"""Making a page takes at most one of so many parts of the time."""
LONGEST_REST_S = 1.0


class LivePage:
    """The page of `folder`, which need not exist yet. For any number of threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = LiveRuns()
        self._lock = threading.Lock()
        self._version, self._page = "", b""
        self._not_before = 0.0

    def newest(self) -> tuple[str, bytes]:
        """The page and the version that it is of; the same until something changes."""
        with self._lock:
            if self._page and time.monotonic() < self._not_before:
                return self._version, self._page
            version = self._now()
            if version != self._version:
                began = time.monotonic()
                self._page, self._version = self._made(version).encode(), version
                self._not_before = time.monotonic() + min((time.monotonic() - began) * (REST - 1), LONGEST_REST_S)
            return self._version, self._page

    def close(self) -> None:
        """Remove what was kept on disk."""
        self._runs.close()

    def _now(self) -> str:
        seen = [signature(self.folder, self.folder / COMPARISON), *map(self._runs.signature, self._run_folders())]
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]

    def _run_folders(self) -> list[Path]:
        if not (self.folder / COMPARISON).is_file():
            return [self.folder]
        try:
            found = ComparisonFile.read(self.folder)
        except FedBalancerError:
            return []
        return [self.folder / method / f"seed-{seed}" for method in found.methods for seed in found.seeds]

    def _made(self, version: str) -> str:
        live = Live(version)
        if not any((self.folder / name).is_file() for name in (COMPARISON, "manifest.json")):
            return waiting_html(self.folder.name, self._hint(), live)
        try:
            results = load(self.folder, self._runs.load)
            return page_html(results, None if results.single else score_comparison(results), live)
        except FedBalancerError as error:
            return waiting_html(self.folder.name, str(error), live)

    def _hint(self) -> str:
        if not self.folder.exists():
            return f"There is no folder {self.folder} yet. This page shows the run or comparison that begins there."
        inside = sorted(
            path.parent.name for name in (COMPARISON, "manifest.json") for path in self.folder.glob(f"*/{name}")
        )
        hint = f" It holds the folders {', '.join(inside)}: give one of them." if inside else ""
        return f"{self.folder} holds no run or comparison yet.{hint}"
