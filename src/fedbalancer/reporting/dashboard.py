"""The dashboard: the report of a folder as a live page, served over HTTP.

A running run updates its tables on disk only now and then, but its journal after every round. The dashboard therefore
rebuilds the tables of a running run from its journal, in a temporary folder, and reads these like any run. A page is
rendered again only if a file has changed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from fedbalancer.core.errors import BadSetting, FedBalancerError
from fedbalancer.reporting.page import Live, page_html, waiting_html
from fedbalancer.reporting.results import StoredRun, load, load_run
from fedbalancer.reporting.scores import score_comparison
from fedbalancer.store import COMPARISON, ComparisonFile
from fedbalancer.store.journal import JournalReader, journal_path

FILES = ("manifest.json", "rounds.parquet", "evals.parquet", "clients.parquet", "population.parquet")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
REST = 2
"""Rendering takes at most one part in `REST` of the time."""
LONGEST_REST_S = 1.0

Remarks = Callable[[Path], Sequence[str]]
"""Lines about the rounds of the run in a folder."""
Signature = tuple[tuple[int, int, int] | None, ...]
"""Modification time, size and inode of each file; None for a missing file."""


def sign(*paths: Path) -> Signature:
    """Return a value that changes whenever one of the files does."""
    signature: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            stat = path.stat()
            signature.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            signature.append(None)
    return tuple(signature)


class LiveRuns:
    """Reads runs like `load_run` and caches those that have not changed."""

    def __init__(self) -> None:
        self._copies = TemporaryDirectory(prefix="fedbalancer-dashboard-")
        self._readers: dict[Path, JournalReader] = {}
        self._cache: dict[Path, tuple[Signature, StoredRun]] = {}

    def load(self, folder: Path, method: str | None = None, seed: int | None = None) -> StoredRun:
        """Load a run folder, from the cache if none of its files has changed.

        Args:
            folder: The run folder.
            method: Name of the method in the comparison. Default: the name in the manifest.
            seed: Seed in the comparison. Default: the seed in the manifest.
        """
        signature = self.sign(folder)
        cached = self._cache.get(folder)
        if cached is not None and cached[0] == signature:
            return cached[1]
        run = load_run(self._current(folder), method, seed)
        self._cache[folder] = signature, run
        return run

    def sign(self, folder: Path) -> Signature:
        """Return a value that changes whenever the run in a folder does."""
        return sign(*(folder / name for name in FILES), journal_path(folder))

    def close(self) -> None:
        """Remove the temporary folder."""
        self._copies.cleanup()

    def __enter__(self) -> LiveRuns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _current(self, folder: Path) -> Path:
        """Return the folder itself or, for a running run, a copy with all its rounds."""
        if not _is_running(folder):
            self._readers.pop(folder, None)
            return folder
        reader = self._readers.setdefault(folder, JournalReader(folder))
        tables = reader.tables()
        if tables is None:
            return folder
        copy = Path(self._copies.name) / "run"  # one at a time: it is loaded into memory before the next
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in ("manifest.json", "population.parquet"):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, copy / name)
        for name, table in tables.by_name.items():
            (copy / f"{name}.parquet").write_bytes(table.parquet())  # only this process reads it: no sync needed
        return copy


class LivePage:
    """The page of a folder, which need not exist yet. Safe for several threads."""

    def __init__(self, folder: Path, remarks: Remarks | None = None) -> None:
        self.folder, self._remarks = folder, remarks
        self._runs = LiveRuns()
        self._lock = threading.Lock()
        self._version, self._page = "", b""
        self._not_before = 0.0

    def newest(self) -> tuple[str, bytes]:
        """Return the version and the page; both remain the same until a file changes."""
        with self._lock:
            if self._page and time.monotonic() < self._not_before:
                return self._version, self._page
            version = self._current_version()
            if version != self._version:
                started = time.monotonic()
                self._page, self._version = self._render(version).encode(), version
                self._not_before = time.monotonic() + min((time.monotonic() - started) * (REST - 1), LONGEST_REST_S)
            return self._version, self._page

    def close(self) -> None:
        """Remove temporary files."""
        self._runs.close()

    def _current_version(self) -> str:
        signatures = [sign(self.folder, self.folder / COMPARISON), *map(self._runs.sign, self._run_folders())]
        return hashlib.sha256(repr(signatures).encode()).hexdigest()[:16]

    def _run_folders(self) -> list[Path]:
        if not (self.folder / COMPARISON).is_file():
            return [self.folder]
        try:
            comparison = ComparisonFile.read(self.folder)
        except FedBalancerError:
            return []
        return [self.folder / method / f"seed-{seed}" for method in comparison.methods for seed in comparison.seeds]

    def _render(self, version: str) -> str:
        live = Live(version)
        if not any((self.folder / name).is_file() for name in (COMPARISON, "manifest.json")):
            return waiting_html(self.folder.name, self._hint(), live)
        try:
            results = load(self.folder, self._runs.load)
            if not results.single:
                return page_html(results, score_comparison(results), live)
            return page_html(results, None, live, self._remarks(self.folder) if self._remarks is not None else ())
        except FedBalancerError as error:
            return waiting_html(self.folder.name, str(error), live)

    def _hint(self) -> str:
        if not self.folder.exists():
            return f"There is no folder {self.folder} yet. This page will show the run or comparison that starts there."
        inside = sorted(
            path.parent.name for name in (COMPARISON, "manifest.json") for path in self.folder.glob(f"*/{name}")
        )
        hint = f" It contains the folders {', '.join(inside)}: pass one of them." if inside else ""
        return f"{self.folder} contains no run or comparison yet.{hint}"


class DashboardServer(ThreadingHTTPServer):
    """An HTTP server for the page of one folder."""

    daemon_threads = True

    def __init__(self, page: LivePage, host: str, port: int) -> None:
        self.page, self.host = page, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        """The URL of the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"


@contextmanager
def open_dashboard(
    folder: Path, host: str = "127.0.0.1", port: int = 0, remarks: Remarks | None = None
) -> Iterator[DashboardServer]:
    """Open the server of a folder's page, bound to its port; call `serve_forever` on it.

    Args:
        folder: A run or comparison folder; it need not exist yet.
        host: Interface to listen on.
        port: Port; 0 chooses a free one.
        remarks: Returns lines about the rounds of a single run.

    Raises:
        BadSetting: If the address cannot be used.
    """
    page = LivePage(folder, remarks)
    try:
        server = DashboardServer(page, host, port)
    except (OSError, OverflowError) as error:
        page.close()
        raise BadSetting(f"cannot listen on {host} port {port}: {error}; choose another --port") from error
    try:
        yield server
    finally:
        server.server_close()
        page.close()


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer
    timeout = 30
    server_version, sys_version = "fedbalancer", ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if not self._is_allowed():
            return self._answer(403, b"this page is for this machine only\n", "text/plain")
        if url.path not in ("/", "/page"):
            return self._answer(404, b"not found\n", "text/plain")
        version, page = self.server.page.newest()
        if url.path == "/page" and parse_qs(url.query).get("since") == [version]:
            return self._answer(204, b"", "text/html")
        return self._answer(200, page, "text/html; charset=utf-8", version)

    do_HEAD = do_GET

    def _is_allowed(self) -> bool:
        """Reject host names that another site has pointed at this machine (DNS rebinding)."""
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return self.server.host not in LOOPBACK or name in LOOPBACK

    def _answer(self, status: int, body: bytes, kind: str, version: str = "") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Version": version,
        }  # fmt: skip
        for name, value in headers.items():
            if value and not (status == 204 and name.startswith("Content-")):
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a page that sends a request every second would fill the terminal."""


def _is_running(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("status") == "running"
