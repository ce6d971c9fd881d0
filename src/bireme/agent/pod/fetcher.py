"""Fetches the input files that a pod's agent asks for (`inbox`) from the daemon's machine.

Runs in the pod's first process, beside the gangway. A connection ({"as": "input", "token", "name"}) begins with the
daemon's word on how many bytes there are; they follow.
Invariant: a file has its own name only when it is whole; whoever waits for it hears of it, or why it does not come.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from bireme.agent.inbox import LOOK_S
from bireme.agent.pod.gangway import Ends, RefusedError

log = logging.getLogger("bireme.agent")

_ANSWER_S = 30.0
_PATIENCE_S = 60.0
"""How long is asked for a file that the daemon refuses, or of a daemon that is away: it may be just starting again.
A transfer may take longer than that, and break when the daemon is started anew: then it counts from there."""
_MOST_BREAKS = 5
"""So often a file that the daemon did send did not come whole."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_RETRY_S = 0.5
_CHUNK_BYTES = 1 << 18

Dial = Callable[[dict[str, str]], Awaitable[Ends]]


class Fetcher:
    def __init__(self, folder: Path, dial: Dial, patience_s: float = _PATIENCE_S) -> None:
        """`dial`: a connection to the gateway that was taken. Raises OSError or RefusedError."""
        self._folder, self._dial, self._patience_s = folder, dial, patience_s
        self._fetching: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled: every file that is asked for is fetched."""
        while True:
            for wanted in self._folder.glob("*.wanted"):
                name = wanted.name.removesuffix(".wanted")
                if name not in self._fetching:
                    self._fetching[name] = asyncio.create_task(self._fetch(name))
            await asyncio.sleep(LOOK_S)

    async def _fetch(self, name: str) -> None:
        """From the beginning each time: what came of a file that was changed since is no part of it."""
        clock = asyncio.get_running_loop().time
        deadline, breaks = clock() + self._patience_s, 0
        while True:
            try:
                reader, writer = await self._dial({"as": "input", "name": name})
            except (OSError, RefusedError) as error:
                why, final = _reason(error), clock() > deadline
            else:
                try:
                    await _receive(reader, self._folder / f"{name}.part")
                    (self._folder / f"{name}.part").rename(self._folder / name)
                    return
                except (OSError, ValueError, EOFError) as error:
                    breaks += 1
                    why, final = _reason(error), breaks == _MOST_BREAKS or getattr(error, "errno", None) in _NO_ROOM
                    deadline = clock() + self._patience_s
                finally:
                    writer.close()
            log.warning("input has not come from the daemon: %s", why)
            if final:
                self._give_up(name, why)
                return
            await asyncio.sleep(_RETRY_S)

    def _give_up(self, name: str, why: str) -> None:
        """The question becomes the answer: on a full disk no new file may be possible."""
        wanted = self._folder / f"{name}.wanted"
        (self._folder / f"{name}.part").unlink(missing_ok=True)
        with suppress(OSError):
            wanted.write_text(why)
        wanted.rename(self._folder / f"{name}.failed")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return f"the pod has no room for its input file: {error.strerror}"
    return str(error).removeprefix("refused: ") or type(error).__name__


async def _receive(reader: asyncio.StreamReader, path: Path) -> None:
    """Raises EOFError: the daemon is gone, or the file became shorter. Written beside the loop: a disk may be slow."""
    async with asyncio.timeout(_ANSWER_S):
        left = int(await reader.readline() or -1)
    if left < 0:
        raise EOFError("the daemon closed the connection")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        while left:
            async with asyncio.timeout(_ANSWER_S):
                chunk = await reader.read(min(_CHUNK_BYTES, left))
            if not chunk:
                raise EOFError("the input file ended before its end")
            await asyncio.to_thread(file.write, chunk)
            left -= len(chunk)
