"""A daemon that answers what a test tells it to, on a real unix socket: enough to run the commands from end to end."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

Answer = tuple[int, Any]
Handler = Callable[[dict[str, Any]], Answer]


class FakeDaemon:
    """`routes` maps "POST /v1/jobs" (no query) to an answer or a function of the request's body; `requests` records."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.routes: dict[str, Answer | Handler] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.queries: list[tuple[str, dict[str, str]]] = []
        """Of each request its path, and what stands behind the question mark."""
        self.closing = threading.Event()

    def refuse(
        self, route: str, message: str, code: str | None = None, status: int = 400, errno: int | None = None
    ) -> None:
        self.routes[route] = (status, {"error": {"message": message, "code": code, "slurm_errno": errno}})

    def bodies(self, route: str) -> list[dict[str, Any]]:
        return [body for asked, body in self.requests if asked == route]


@contextmanager
def serving(home: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(home)
    (home / "run").mkdir(parents=True, exist_ok=True)

    class Conversation(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._answer(json.loads(data) if data else {})

        def _answer(self, body: dict[str, Any]) -> None:
            route = f"{self.command} {self.path.partition('?')[0]}"
            daemon.requests.append((route, body))
            path, _, query = self.path.partition("?")
            daemon.queries.append((path, dict(parse_qsl(query))))
            if route.endswith("/hold-open"):
                self._hold()
                return
            known = daemon.routes.get(route, (404, {"error": {"message": f"no route {route}", "code": None}}))
            status, content = known(body) if callable(known) else known
            payload = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def _hold(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"kind":"Watching"}\n')
            self.wfile.flush()
            daemon.closing.wait()
            self.close_connection = True

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True
        block_on_close = False

    with Server(str(home / "run" / "api.sock"), Conversation) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield daemon
        finally:
            daemon.closing.set()
            server.shutdown()
            thread.join()
