"""Agents that are only said to be there: they call the daemon's gateway from no pod at all, and every script succeeds.

For jobs of hundreds of fake nodes, whose pods run nothing. What is real: the daemon, its gateway and the TLS to it, the
tokens of the job's Secret, and the orders, which are answered as `agent/server.py` answers them.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bireme.agent.messages.protocol import VERSION
from bireme.agent.pod.gangway import Ends, Gangway, RefusedError

Object = dict[str, Any]
_AT_ONCE = 32
_RETRY_S = 0.2


class FakeCrew:
    """The agents of one start, by its Secret as the API server has it."""

    def __init__(self, secret: Object, folder: Path) -> None:
        self._data = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
        self._settings = json.loads(self._data["pod"])
        self._folder = folder
        self._dialling = asyncio.Semaphore(_AT_ONCE)
        self.hosts: dict[str, int] = {}
        """Node -> how many of the job's nodes it was told the addresses of."""

    async def run(self) -> None:
        """Until cancelled."""
        authority = self._folder / "authority"
        authority.write_text(self._data["authority"])
        tokens = [text for key, text in self._data.items() if key.startswith("token-")]
        async with asyncio.TaskGroup() as group:
            for rank, token in enumerate(tokens):
                group.create_task(self._serve(group, token, authority, rank))

    async def _serve(self, group: asyncio.TaskGroup, token: str, authority: Path, rank: int) -> None:
        berth = token.partition(":")[0]
        token_file = self._folder / f"token-{rank}"
        token_file.write_text(token)
        host, port = self._settings["host"], self._settings["port"]
        node = berth.split(".", 2)[2]
        gangway = Gangway(host, port, authority, token_file, self._folder, node, berth)
        address = f"10.0.{rank // 250}.{rank % 250 + 1}"
        reader, writer = await self._dial(gangway, {"as": "control", "address": address})
        while line := await reader.readline():
            asked = json.loads(line)
            if "carry" in asked:
                group.create_task(self._carry(gangway, asked["carry"], node))
            writer.write(b"{}\n")

    async def _carry(self, gangway: Gangway, number: int, node: str) -> None:
        with suppress(OSError, RefusedError):  # whoever asked is asked for again
            await self._obey(await self._dial(gangway, {"as": "carry", "id": number}), node)

    async def _dial(self, gangway: Gangway, hello: dict[str, Any]) -> Ends:
        """As gangways do, again and again: the daemon may be busy. Raises RefusedError."""
        while True:
            async with self._dialling:
                with suppress(OSError):
                    return await gangway.dial(hello)
            await asyncio.sleep(_RETRY_S)

    async def _obey(self, ends: Ends, node: str) -> None:
        reader, writer = ends
        numbers = itertools.count(1)

        def say(**words: Any) -> None:
            writer.write(json.dumps(words).encode() + b"\n")

        while line := await reader.readline():
            order = json.loads(line)
            if order.get("hello") == "daemon":
                about = {"version": "fake", "protocol": VERSION, "pid": 1, "epoch": 1}
                say(ev="welcome", node=node, **about, isolation={}, holds=[], seq=0)
                continue
            if "no" in order:
                say(did=[order["no"]])
            if "hosts" in order:
                self.hosts[node] = len(order["hosts"])
            for event in _answers(order):
                say(**event, seq=next(numbers), job=order["job"], gen=order["gen"], at=time.time())


def _answers(order: Object) -> Iterator[Object]:
    match order.get("op"):
        case "prepare":
            yield {"ev": "prepared"}
        case "start":
            yield {"ev": "launched"}
            yield {"ev": "batch_ended", "status": {"code": 0}, "usage": {}, "cleared": False}
        case "terminate":
            yield {"ev": "cleared"}
