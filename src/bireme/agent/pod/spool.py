"""Output files of a pod whose place is on the daemon's machine: carried there as they grow.

Runs in the pod's first process, beside the gangway. The agent writes such a file into the spool folder as it writes any
other; a file's name there is all that the pod knows of it, and only the daemon knows what that name stands for
(`engines/kubernetes/crossing/returned.py`). A task never waits for the daemon: what cannot be carried now stays in the
folder.

A connection ({"as": "file", "token", "name"}) begins with the daemon's word on how many bytes it has; then pieces
(their length as a line, and the bytes), each answered by the new count. So a daemon that was away says where to go on.

Invariant: bytes are carried in order, and a piece is sent again only if nobody has said that it arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from bireme.agent.pod.gangway import Ends, RefusedError

log = logging.getLogger("bireme.agent")

PIECE_BYTES = 1 << 18
_LOOK_S = 0.2
_ANSWER_S = 30.0
_RETRY_S = 0.2
_MAX_RETRY_S = 5.0
_LAST_WORDS_S = 20.0
"""How long a pod that ends waits for a daemon that does not answer: less than the grace that its kubelet gives."""

Dial = Callable[[dict[str, str]], Awaitable[Ends]]


class Spool:
    def __init__(self, folder: Path, dial: Dial) -> None:
        """`dial`: a connection to the gateway that was taken. Raises OSError or RefusedError."""
        self._folder = folder
        self._dial = dial
        self._carriers: dict[str, asyncio.Task[None]] = {}
        self._complete = False

    async def run(self) -> None:
        """Until cancelled: every file that appears is carried."""
        while True:
            self._look()
            await asyncio.sleep(_LOOK_S)

    async def finish(self) -> None:
        """Nobody writes any more: carries the rest, and gives up on a daemon that stays away."""
        self._complete = True
        self._look()
        if self._carriers:
            _, late = await asyncio.wait(self._carriers.values(), timeout=_LAST_WORDS_S)
            for carrier in late:
                carrier.cancel()
            if late:
                log.error("the output of %d files did not reach the daemon in time", len(late))

    def _look(self) -> None:
        names = (path.name for path in self._folder.iterdir()) if self._folder.is_dir() else ()
        for name in names:
            if name not in self._carriers:
                self._carriers[name] = asyncio.get_running_loop().create_task(self._carry(name))

    async def _carry(self, name: str) -> None:
        retry_s = _RETRY_S
        while True:
            try:
                reader, writer = await self._dial({"as": "file", "name": name})
                try:
                    await self._carry_over(self._folder / name, reader, writer)
                    return
                finally:
                    writer.close()
            except (OSError, ValueError, EOFError, RefusedError) as error:
                log.warning("output cannot be carried to the daemon now: %s", error or type(error).__name__)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _MAX_RETRY_S)

    async def _carry_over(self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Returns when all of a complete file has arrived."""
        position = await _count(reader)
        with path.open("rb") as file:
            while True:
                complete = self._complete  # read first: what is written before it is set is seen below
                file.seek(position)
                piece = file.read(PIECE_BYTES)
                if piece:
                    writer.write(f"{len(piece)}\n".encode() + piece)
                    await writer.drain()
                    position = await _count(reader)
                elif complete:
                    return
                else:
                    await asyncio.sleep(_LOOK_S)


async def _count(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(_ANSWER_S):
        line = await reader.readline()
    if not line:
        raise EOFError("the daemon closed the connection")
    return int(line)
