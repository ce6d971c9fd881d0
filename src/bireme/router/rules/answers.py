"""What the router answers by itself: a status and a JSON body in the shape that clients of OpenAI's API read.

Invariant: every sentence says what is wrong and, where somebody can do something about it, what.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the router's own."""

    status: int
    body: bytes
    extra: bytes = b""
    """More header lines, each with its CR LF."""

    def to_bytes(self, *, closing: bool, with_body: bool = True) -> bytes:
        head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n" % (
            self.status,
            _phrase(self.status),
            len(self.body),
            self.extra,
            b"Connection: close\r\n" if closing else b"",
        )
        return head + self.body if with_body else head


def _phrase(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()


def refusal(status: int, message: str, code: str, *, retry_after_s: int = 0) -> Reply:
    """An error, for people and for programs."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": message, "type": kind, "param": None, "code": code}
    extra = b"Retry-After: %d\r\n" % retry_after_s if retry_after_s else b""
    if status == 401:
        extra += b'WWW-Authenticate: Bearer realm="bireme"\r\n'
    return Reply(status, json.dumps({"error": error}).encode(), extra)


def listing(models: list[tuple[str, str]]) -> Reply:
    """`/v1/models`: (what may be asked for, whose it is)."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": service} for name, service in models]
    return Reply(200, json.dumps({"object": "list", "data": data}).encode())


def one_model(name: str, service: str) -> Reply:
    """`/v1/models/NAME`"""
    return Reply(200, json.dumps({"id": name, "object": "model", "created": 0, "owned_by": service}).encode())


HEALTHY = Reply(200, b'{"status": "ok"}')
