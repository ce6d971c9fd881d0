"""What a probe says and hears over HTTP: the bytes of the question, and what those of the answer mean.

Pure, for the agent and for whoever asks from outside; each has its own sockets.
Invariant: whatever a path has in it, the question is one GET with one head.
"""

from __future__ import annotations

from urllib.parse import quote

from bireme import __version__

_TEXT = "!#$%&'()*+,-./:;=?@[]_~"
"""What stays as it is in a path: all else that is no letter or digit is escaped, above all an end of line."""
_VERSION = b"HTTP/1.1"
NOT_HTTP = "what answers does not speak HTTP"
HUNG_UP = "it closed the connection without an answer"
NO_STATUS = "it says no status"


def request_of(address: str, port: int, path: str) -> bytes:
    host = f"[{address}]" if ":" in address else address
    return (
        f"GET {quote(path, safe=_TEXT)} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: bireme-probe/{__version__}\r\n"
        "Accept: */*\r\nConnection: close\r\n\r\n"
    ).encode("ascii")


def verdict(heard: bytes) -> str | None:
    """What is wrong by the answer so far ("": nothing); None: its status is not all there yet.

    200 to 399 is well, as for Kubernetes; what an interim answer says does not count.
    """
    while (status := _status(heard)) is not None:
        if not 100 <= status <= 199:
            return "" if 200 <= status <= 399 else f"HTTP {status}"
        _, found, heard = heard.partition(b"\r\n\r\n")
        if not found:
            return None
    return None if heard.startswith(b"HTTP/"[: len(heard)]) else NOT_HTTP


def _status(heard: bytes) -> int | None:
    """Of `HTTP/1.1 200 OK`; None while that is not all there, or it is something else."""
    words = heard[:32].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or len(words[0]) != len(_VERSION):
        return None
    digits = words[1][:3]
    complete = len(words) == 3 or words[1][3:4] in (b"\r", b"\n")
    return int(digits) if complete and len(digits) == 3 and digits.isdigit() else None
