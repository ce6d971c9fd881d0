"""Where metrics are served, as people write it. Imports nothing: `bireme up` reads it too.

Invariant: without a host it is loopback, so that nothing is shown to other machines that nobody named.
"""

from __future__ import annotations

_PORTS = 65536


class PortError(Exception):
    """The address cannot be listened at. The text says why and what to do."""


def address_of(text: str) -> tuple[str, int]:
    """`9400`, `127.0.0.1:9400`, `0.0.0.0:9400` or `[::1]:9400` as host and port. Raises PortError."""
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < _PORTS
    if not is_number or (colon and not host):
        raise PortError(f"{text[:80]!r} is no address for Prometheus: it is PORT (on loopback) or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
