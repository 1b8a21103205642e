"""A small HTTP server for the live page, for this machine only unless told otherwise."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from fedbalancer.dashboard.page import LivePage
from fedbalancer.errors import BadSetting

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class DashboardServer(ThreadingHTTPServer):
    """Serves the page of one folder."""

    daemon_threads = True

    def __init__(self, page: LivePage, host: str, port: int) -> None:
        self.page, self.host = page, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.server_address[1]}/"


@contextmanager
def dashboard(folder: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[DashboardServer]:
    """The server of a folder's page, bound to its port; call `serve_forever`."""
    page = LivePage(folder)
    try:
        server = DashboardServer(page, host, port)
    except (OSError, OverflowError) as error:
        page.close()
        raise BadSetting(f"nothing can be served at {host} port {port}: {error}; choose another --port") from error
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
        asked = urlsplit(self.path)
        if not self._is_for_us():
            return self._answer(403, b"this page is for this machine only\n", "text/plain")
        if asked.path not in ("/", "/page"):
            return self._answer(404, b"there is nothing here\n", "text/plain")
        version, page = self.server.page.newest()
        if asked.path == "/page" and parse_qs(asked.query).get("since") == [version]:
            return self._answer(204, b"", "text/html")
        return self._answer(200, page, "text/html; charset=utf-8", version)

    do_HEAD = do_GET

    def _is_for_us(self) -> bool:
        """A name that some other site has pointed at this machine is refused."""
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
        """Nothing: a page that asks every second would fill the terminal."""
