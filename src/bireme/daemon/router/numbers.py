"""The router's page for Prometheus, read over its socket, so that one scrape of the daemon has services' requests too.

Invariant: it takes a second at most; a router that does not answer costs its own figures.
"""

from __future__ import annotations

import asyncio

from bireme.agent.messages.protocol import socket_path
from bireme.daemon.scaling.fetching import Unanswered, body_of

_LIMIT_S = 1.0
_LIMIT_BYTES = 32 * 1024 * 1024


async def router_page(socket: str) -> str:
    """Empty where there is no router, or none that answers."""
    try:
        async with asyncio.timeout(_LIMIT_S):
            with socket_path(socket) as path:
                reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
                return (await body_of(reader, _LIMIT_BYTES)).decode()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, Unanswered):
        return ""
