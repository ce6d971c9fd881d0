"""Services for tests on a real cluster: a server that starts quickly, a steady load on it, what people see of it."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.support.cluster import Cluster

SERVER = """#!{python} -IS
import os, signal, socket, threading
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
listener = socket.create_server(("0.0.0.0", int(os.environ["PORT"])), backlog=128)
said = (os.environ["BIREME_REPLICA"] + " " + os.environ["BIREME_REVISION"] + " {mark}").encode()
answer = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(said) + said
def serve(peer):
    rest = b""
    while True:
        while b"\\r\\n\\r\\n" not in rest:
            data = peer.recv(65536)
            if not data:
                return
            rest += data
        head, _, rest = rest.partition(b"\\r\\n\\r\\n")
        peer.sendall(answer)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""
"""Says which replica and which revision it is, and a mark, to whatever it is asked."""


def serve(cluster: Cluster, *options: str, name: str = "chat", mark: str = "first") -> None:
    script = cluster.script(SERVER.format(python=cluster.python, mark=mark), f"{name}.py")
    cluster.bireme("serve", str(script), "--name", name, "--cpus-per-task=1", "--mem=100M", *options)


def shown(cluster: Cluster, name: str = "chat") -> dict[str, Any]:
    """`bireme service show NAME --json`."""
    found: dict[str, Any] = json.loads(cluster.bireme("service", "show", name, "--json").stdout)
    return found


def ready(cluster: Cluster, count: int, revision: int = 1, name: str = "chat") -> list[dict[str, Any]]:
    """Waits until so many replicas of this revision are ready, and no other replica is there; these."""
    found: list[dict[str, Any]] = []

    def is_so() -> bool:
        replicas = shown(cluster, name)["replicas"]
        found[:] = [each for each in replicas if each["health"] == "ready" and each["revision"] == revision]
        return len(found) == count == len(replicas)

    cluster.until(is_so, 120.0)
    return found


def router(cluster: Cluster) -> dict[str, Any]:
    """What `bireme status --json` says of it."""
    about: dict[str, Any] = json.loads(cluster.bireme("status", "--json").stdout)["router"]
    return about


def listening_router(cluster: Cluster) -> dict[str, Any]:
    """The same, once it listens."""
    cluster.until(lambda: router(cluster).get("url"), 60.0)
    return router(cluster)


class Load:
    """Clients that send one GET after another. What failed is kept with its reason; who answered, too."""

    def __init__(self, url: str, clients: int = 3, *, kept: bool = True) -> None:
        """`kept`: each on one connection; else each request on one of its own."""
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._is_secure = parts.scheme == "https"
        self._path = parts.path
        self._is_kept = kept
        self.answers: list[bytes] = []
        self.failures: list[str] = []
        self._over = threading.Event()
        self._news = threading.Condition()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=60.0)
        if self._is_secure:  # whose certificate it is, others look at
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(*self._address, timeout=60.0, context=context)
        while not self._over.wait(0.005):
            try:
                connection.request("GET", self._path)
                answer = connection.getresponse()
                body = answer.read()
                if not self._is_kept:
                    connection.close()
                problem = "" if answer.status == 200 else f"{answer.status}: {body[:200]!r}"
            except (OSError, http.client.HTTPException) as error:
                problem, body = repr(error), b""
                connection.close()
            with self._news:
                (self.failures if problem else self.answers).append(problem or body)  # type: ignore[arg-type]
                self._news.notify_all()

    def more(self, count: int = 60) -> None:
        """Waits for so many more answers."""
        with self._news:
            wanted = len(self.answers) + count
            assert self._news.wait_for(lambda: len(self.answers) >= wanted or self.failures, 60.0), "no answers"
            assert not self.failures, self.failures[:5]

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60.0)


@contextmanager
def steady_load(url: str, *, kept: bool = True) -> Iterator[Load]:
    """While it lasts nothing may fail."""
    load = Load(url, kept=kept)
    try:
        load.more()
        yield load
        load.more()
    finally:
        load.stop()
    assert not load.failures, f"{len(load.failures)} of {len(load.answers)} failed: {load.failures[:5]}"
