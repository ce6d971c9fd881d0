"""What the daemon's own keepers ask of the API, from within the process: with the daemon's own rights, over no socket.

Called by `daemon/faults/restarts`. The answer is what anybody with these rights would get over HTTP.
Invariant: nothing is changed by asking: GET alone.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from bireme.api.serving.peers import SCOPE_KEY, TRANSPORT_KEY, WITHIN_KEY, Peer


class UnansweredError(Exception):
    """The failure of a question within the daemon; its text says why it was not answered."""


async def ask_within(app: ASGIApp, path: str, limit_s: float) -> Any:
    """The JSON that GET of this path answers. Raises UnansweredError, and TimeoutError after `limit_s`."""
    asked = _Asked(path)
    try:
        async with asyncio.timeout(limit_s):
            await app(asked.scope, asked.receive, asked.send)
    finally:
        asked.over = True
    if asked.status != 200:
        raise UnansweredError(f"{asked.status}: {asked.body[:300].decode(errors='replace')}")
    return json.loads(asked.body)


class _Asked:
    def __init__(self, path: str) -> None:
        self.status, self.body, self.over = 0, b"", False
        self._sent = False
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"user-agent", b"bireme")],
            SCOPE_KEY: Peer(os.geteuid(), os.getegid(), os.getpid(), tuple(os.getgroups())),
            TRANSPORT_KEY: self,
            WITHIN_KEY: True,
        }

    def is_closing(self) -> bool:
        """As of a connection: whether nobody waits for the answer."""
        return self.over

    async def receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while not self.over:
            await asyncio.sleep(0.5)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
