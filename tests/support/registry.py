"""A real registry on loopback (Debian's `docker-registry`), and a proxy before it that is as bad as networks are."""

from __future__ import annotations

import base64
import http.client
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support import unpacked
from tests.support.ports import free_port

USER, PASSWORD = "ann", "hush-7d1f"
_HASH = "$2y$05$abcdefghijklmnopqrstuun7r3OpQGRZ/g1hOsbikgUOZryI1kIl6"
"""Of the password, by bcrypt."""
_CONF = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}}}, delete: {{enabled: true}}}}
http: {{addr: "{host}"}}
{auth}
"""
_PATIENCE_S = 60.0


_PACKAGE = "docker-registry"


def fetch() -> str:
    """Why it could not be had, in a few words."""
    return unpacked.fetch(_PACKAGE, _PACKAGE)


def missing() -> str:
    return (
        ""
        if unpacked.program(_PACKAGE, _PACKAGE)
        else "not there: docker-registry (python -m tests.prepare fetches it)"
    )


@dataclass
class Registry:
    host: str
    folder: Path
    authorization: str = ""


@contextmanager
def registry(folder: Path, *, password: bool = False) -> Iterator[Registry]:
    folder.mkdir(parents=True, exist_ok=True)
    host = f"127.0.0.1:{free_port()}"
    auth = ""
    if password:
        (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
        auth = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}"
    (folder / "config.yml").write_text(_CONF.format(folder=folder / "data", host=host, auth=auth))
    log = (folder / "log").open("wb")
    words = [str(unpacked.program(_PACKAGE, _PACKAGE)), "serve", str(folder / "config.yml")]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _until_it_answers(process, host, folder / "log")
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        yield Registry(host, folder, basic if password else "")
    finally:
        process.terminate()
        process.wait()
        log.close()


def _until_it_answers(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    name, _, port = host.partition(":")
    while True:
        with suppress(OSError), socket.create_connection((name, int(port)), timeout=5):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "the registry does not answer"
        time.sleep(0.02)


Spoil = Callable[["_Handler", http.client.HTTPResponse], bool]
"""Answers in place of the registry, or returns False."""


@dataclass
class BadProxy:
    """Stands before a registry. `spoil` is asked for every answer; requests are counted by method and path."""

    host: str
    behind: str
    spoil: Spoil = field(default=lambda *_: False)
    asked: Counter[str] = field(default_factory=Counter)
    ranges: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the test is over: what hangs lets go."""


@contextmanager
def bad_proxy(behind: str) -> Iterator[BadProxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    proxy = BadProxy(f"127.0.0.1:{server.server_address[1]}", behind)
    server.proxy = proxy  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    @property
    def proxy(self) -> BadProxy:
        found: BadProxy = self.server.proxy  # type: ignore[attr-defined]
        return found

    def do_GET(self) -> None:
        self.proxy.asked[self.path] += 1
        self.proxy.ranges += [self.headers["Range"]] if "Range" in self.headers else []
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        behind = http.client.HTTPConnection(self.proxy.behind, timeout=60)
        try:
            behind.request("GET", self.path, headers=kept)
            answer = behind.getresponse()
            with suppress(OSError):  # who asked may be gone
                if not self.proxy.spoil(self, answer):
                    self.head(answer)
                    self.wfile.write(answer.read())
        finally:
            behind.close()

    def head(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
