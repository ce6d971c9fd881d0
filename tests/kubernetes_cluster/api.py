"""A small client of the Kubernetes API for tests and benchmarks: JSON over kept connections, many at a time.

Not Bireme's client (that is in `engines/kubernetes`): a test must not depend on what it tests, and a benchmark must
create thousands of pods faster than any scheduler binds them.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Object = dict[str, Any]
_THREADS = 8
_BUSY = (429, 500, 503, 504)
_REPEATED = {("PATCH", 409), *((method, status) for method in ("GET", "PATCH") for status in _BUSY)}
_PATIENCE_S = (0.1, 0.5, 1.0, 2.0, 4.0)


class ApiError(RuntimeError):
    """What the API server said instead of doing it."""

    def __init__(self, status: int, said: Object) -> None:
        super().__init__(f"{status} {said.get('reason', '')}: {said.get('message', said)}")
        self.status = status
        self.said = said


class Api:
    """As the user of this kubeconfig (one written by `certificates.py`). Each thread has a connection of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = urlsplit(cluster["server"])
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._own = threading.local()

    def get(self, path: str) -> Object:
        return self.request("GET", path)

    def create(self, path: str, body: Object) -> Object:
        return self.request("POST", path, body)

    def delete(self, path: str) -> Object:
        return self.request("DELETE", path)

    def patch(self, path: str, body: Object) -> Object:
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def create_all(self, path: str, bodies: Sequence[Object]) -> None:
        """In any order, as fast as the API server takes them."""
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(lambda body: self.create(path, body), bodies):
                pass

    def text(self, path: str) -> str:
        """What is not JSON: /metrics."""
        return self._answer_kept("GET", path, None, {}).read().decode()

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[bytes]]:
        """Lines of a watch, over a connection of its own, until the server or the block ends."""
        connection = self._connect(timeout_s=None)
        try:
            connection.request("GET", path)
            yield iter(connection.getresponse())
        finally:
            connection.close()

    def request(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        """What is safe to repeat is repeated when the server is only too busy: a loaded machine fails no test."""
        for wait_s in (*_PATIENCE_S, None):
            try:
                return self._asked(method, path, body, kind)
            except ApiError as error:
                if wait_s is None or (method, error.status) not in _REPEATED:
                    raise
                time.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _asked(self, method: str, path: str, body: Object | None, kind: str) -> Object:
        data = None if body is None else json.dumps(body)
        headers = {"Accept": "application/json", "Content-Type": kind}
        answer = self._answer_kept(method, path, data, headers)
        text = answer.read()
        said: Object = json.loads(text) if text.startswith(b"{") else {"message": text.decode(errors="replace")}
        if answer.status >= 400:
            raise ApiError(answer.status, said)
        return said

    def _answer_kept(
        self, method: str, path: str, data: str | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        """Over this thread's connection, or a new one where the server has closed it meanwhile."""
        try:
            return self._answer(method, path, data, headers)
        except (http.client.HTTPException, ConnectionError, ssl.SSLEOFError):
            self._own.connection = None
            return self._answer(method, path, data, headers)

    def _answer(self, method: str, path: str, data: str | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._connect(timeout_s=60)
        connection.request(method, path, data, headers)
        answer: http.client.HTTPResponse = connection.getresponse()
        return answer

    def _connect(self, timeout_s: float | None) -> http.client.HTTPSConnection:
        host, port = self._server.hostname or "", self._server.port
        return http.client.HTTPSConnection(host, port, context=self._tls, timeout=timeout_s)
