"""A web server on this machine for tests; it supports ranges, and can misbehave on request."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """The content of the server, and the requests that it received."""

    files: dict[str, bytes]
    url: str = ""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes of the body each of the next answers breaks off."""
    etag: str | None = '"v1"'
    ranges: bool = True
    chunked: bool = False
    status: int | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and range of every request."""


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """The site, reachable at `site.url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            body = site.files.get(self.path)
            if site.status is not None or body is None:
                self.send_error(site.status or 404)
                return
            tag = self.headers.get("If-Range")
            found = re.fullmatch(r"bytes=(\d+)-", wanted or "")
            if not found or not site.ranges or (tag is not None and tag != site.etag):
                self.answer(200, body, {})
                return
            start = int(found[1])
            if start >= len(body):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(body)}"})
                return
            self.answer(206, body[start:], {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            if site.etag is not None:
                self.send_header("ETag", site.etag)
            for name, value in headers.items():
                self.send_header(name, value)
            if site.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = site.cuts.pop(0) if site.cuts else None
            sent = body if cut is None else body[:cut]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(sent), sent) if site.chunked and sent else sent)
            if cut is not None:
                self.close_connection = True
                self.connection.close()
            elif site.chunked:
                self.wfile.write(b"0\r\n\r\n")

        def finish(self) -> None:
            if not self.connection._closed:  # type: ignore[attr-defined]
                super().finish()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
