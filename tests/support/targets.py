"""Servers that count who connects to them."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any


class Target:
    """A server that counts who connects."""

    def __init__(self) -> None:
        self.location: str | None = None
        """Where it redirects to; None answers "hello"."""
        self.hosts: list[str] = []
        target = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                target.hosts.append(self.headers["host"])
                self.send_response(302 if target.location else 200)
                if target.location:
                    self.send_header("Location", target.location)
                self.send_header("Content-Length", "0" if target.location else "5")
                self.end_headers()
                if not target.location:
                    self.wfile.write(b"hello")

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        class Server(http.server.ThreadingHTTPServer):
            def verify_request(self, request: Any, address: Any) -> bool:
                target.connections += 1
                return True

        self.connections = 0
        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@contextlib.contextmanager
def a_target() -> Iterator[Target]:
    target = Target()
    try:
        yield target
    finally:
        target.server.shutdown()
        target.server.server_close()
