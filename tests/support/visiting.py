"""The pages without a browser: requests as one sends them, and as one must not. Used by tests/web/test_safety.py."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.cluster import Cluster

OWN = {"Sec-Fetch-Site": "same-origin"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def cookie(self) -> str:
        """`name=value`, as it is sent back."""
        return self.headers.get("set-cookie", "").partition(";")[0]


class Visitor:
    """Somebody who is logged in to the pages of a cluster, with the cookie and the proof that their pages have."""

    def __init__(self, cluster: Cluster, user: str | None = None) -> None:
        self._cluster, self._user = cluster, user
        link = urlsplit(self.another_link())
        self._host, self.port = link.netloc, link.port or 0
        self.entered = self.enter(link.path.rpartition("/")[2])
        self.cookie = self.entered.cookie
        found = re.search(r'name="proof" content="([0-9a-f]+)"', self.get("/now").text)
        self.proof = found[1] if found else ""

    def another_link(self) -> str:
        said = self._cluster.run(self._cluster.python, "-m", "bireme", "web", "--json", user=self._user)
        url: str = json.loads(said.stdout)["url"]
        return url

    def enter(self, code: str, instead: str = "", **headers: str) -> Answer:
        """Sends the form that a link leads to."""
        form = {**OWN, "Content-Type": "application/x-www-form-urlencoded", **headers}
        return self.send("POST", "/login", form, f"code={code}&instead={instead}")

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, {"Cookie": self.cookie, **headers})

    def post(self, path: str, body: Any, **headers: str | None) -> Answer:
        """As a page of ours does it; a header that is None is left out."""
        own: dict[str, str | None] = {
            "Cookie": self.cookie, "Content-Type": "application/json", "bireme-proof": self.proof, **OWN, **headers,
        }  # fmt: skip
        sent = {name: value for name, value in own.items() if value is not None}
        return self.send("POST", path, sent, json.dumps(body))

    @contextmanager
    def listening(self, path: str, last: str = "") -> Iterator[Iterator[tuple[str, str]]]:
        """Parts as they come: (the number of the change, what is told)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path, headers={"Host": self._host, "Cookie": self.cookie, "Last-Event-ID": last})
        try:
            yield _parts(connection.getresponse())
        finally:
            connection.close()

    def send(self, method: str, path: str, headers: dict[str, str], body: str | None = None) -> Answer:
        return ask(method, self.port, path, {"Host": self._host, **headers}, body)


def ask(method: str, port: int, path: str, headers: dict[str, str], body: str | None = None) -> Answer:
    """One request to whatever serves pages at this port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        endless = fields.get("content-type", "").startswith("text/event-stream")
        return Answer(answer.status, fields, "" if endless else answer.read().decode(errors="replace"))
    finally:
        connection.close()


def _parts(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    number = ""
    while line := answer.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name == "id":
            number = value
        if name == "data" and number:
            yield number, value
            number = ""
