"""One HTTP request to a registry, with a time limit on every wait: connecting, the head, each piece of the body.

The standard library's client, so that TLS, proxies and certificates are what the user's environment says. Redirects are
followed here: credentials do not go along to another host, and nobody is sent from TLS to plain HTTP.
Invariant: whatever the other side does or does not do, a request ends.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from bireme import __version__
from bireme.images.refusing import RefusedError

_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE = 1 << 18
_TRICKLE_S, _TRICKLE_BYTES = 60.0, 64 << 10
"""Less than so much in such a time is as good as nothing."""


class UnreachableError(RefusedError):
    """The other side did not answer as it must: somebody else may be asked, or the same again."""


@dataclass(slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    url: str
    _connection: http.client.HTTPConnection
    _response: http.client.HTTPResponse

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises UnreachableError when it stops coming, or is cut off."""
        host = urlsplit(self.url).netloc
        since, came = time.monotonic(), 0
        expected, total = self.headers.get("content-length", ""), 0
        while True:
            try:
                piece = self._response.read1(_PIECE)
            except (OSError, http.client.HTTPException) as error:
                raise UnreachableError(_broken(host, error)) from error
            if not piece:
                break
            came += len(piece)
            total += len(piece)
            if (spent := time.monotonic() - since) > _TRICKLE_S:
                if came < _TRICKLE_BYTES:
                    raise UnreachableError(f"{host} sends less than a KiB/s: try again later, or use a mirror")
                since, came = since + spent, 0
            yield piece
        if expected.isdigit() and total < int(expected):
            raise UnreachableError(f"{host} cut the connection off after {total} of {expected} bytes: try again")

    def body(self, most: int) -> bytes:
        data = bytearray()
        for piece in self.pieces():
            data += piece
            if len(data) > most:
                raise RefusedError(
                    f"{urlsplit(self.url).netloc} answers with more than {most} bytes: this is no registry"
                )
        return bytes(data)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(
    url: str, headers: Mapping[str, str], *, authorization: str = "", idle_s: float, body: bytes | None = None
) -> Answer:
    """`authorization` is shown to the host of `url` alone. Raises UnreachableError, RefusedError."""
    first = parts_of(url, url)
    for _ in range(_MOST_REDIRECTS + 1):
        here = parts_of(url, first.netloc)
        if first.scheme == "https" and here.scheme == "http":
            raise RefusedError(f"{first.netloc} sends us on without TLS (to {here.netloc}): that is not done")
        shown = {"Authorization": authorization} if authorization and here.netloc == first.netloc else {}
        answer = _asked(url, {**headers, **shown}, idle_s, body)
        if answer.status not in _REDIRECTS or "location" not in answer.headers:
            return answer
        answer.close()
        url = _joined(url, answer.headers["location"])
    raise RefusedError(f"{first.netloc} sends us in a circle: this is no registry")


def _joined(url: str, location: str) -> str:
    with suppress(ValueError):
        return urljoin(url, location)
    return location


def parts_of(url: str, host: str) -> SplitResult:
    """`host`: who sends us there. Raises RefusedError."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise RefusedError(f"{host} sends us to {url[:200]!r}, which is no web address: this is no registry")


def _asked(url: str, headers: Mapping[str, str], idle_s: float, body: bytes | None) -> Answer:
    parts = urlsplit(url)
    connection, target = _connection(url, idle_s)
    # A head that comes byte by byte is within every wait's limit, and never ends.
    watch = threading.Timer(2 * idle_s, lambda: _cut(connection))
    watch.daemon = True
    try:
        watch.start()
        sent = {"User-Agent": f"bireme/{__version__}", "Accept-Encoding": "identity", **headers}
        connection.request("GET" if body is None else "POST", target, body=body, headers=sent)
        response = connection.getresponse()
    except (OSError, http.client.HTTPException, ValueError) as error:
        connection.close()
        raise UnreachableError(_unreachable(parts.netloc, error, idle_s)) from error
    finally:
        watch.cancel()
    found = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, found, url, connection, response)


def _connection(url: str, idle_s: float) -> tuple[http.client.HTTPConnection, str]:
    """And what is asked of it: behind a proxy, plain HTTP asks for whole addresses."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxy = "" if proxy_bypass(parts.hostname) else getproxies().get(parts.scheme, "")
    through = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    host, port = (through.hostname, through.port) if through.hostname else (parts.hostname, parts.port)
    if parts.scheme == "http":
        plain = http.client.HTTPConnection(host, port, timeout=idle_s)
        return plain, url if through.hostname else target
    secure = http.client.HTTPSConnection(host, port, timeout=idle_s, context=ssl.create_default_context())
    if through.hostname:
        secure.set_tunnel(parts.hostname, parts.port or 443)
    return secure, target


def _cut(connection: http.client.HTTPConnection) -> None:
    if isinstance(connection.sock, socket.socket):
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _unreachable(host: str, error: Exception, idle_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"{host} does not answer within {idle_s:g} s: try again later, or use a mirror (setting images.mirrors)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {host} cannot be trusted ({error.verify_message}): name its authority in SSL_CERT_FILE"
        )
    if isinstance(error, ssl.SSLError):
        return f"{host} does not speak TLS: if that is meant, name it in the setting images.insecure"
    if isinstance(error, socket.gaierror):
        return f"the registry {host} is not known to this machine's name service: is it spelled right?"
    if isinstance(error, ConnectionRefusedError):
        return f"no registry answers at {host}: is it up, and is its port right?"
    return _broken(host, error)


def _broken(host: str, error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"{host} stopped sending: try again later, or use a mirror (setting images.mirrors)"
    why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return f"the connection to {host} broke ({why}): try again, or use a mirror (setting images.mirrors)"
