"""The way between an agent and a daemon that share no machine: unix sockets here, carried over TLS to there.

Runs beside the agent in a pod. Agent and commands know nothing of it: they find the sockets they find on any machine
(`run/api.sock` for the commands, one socket per pod of the job for `srun`), and what is said on them travels to the
daemon's gateway (`engines/kubernetes/gateway.py`). All connections are made from here, so that nothing has to reach
into a pod. A connection's first line says what it is for:

  {"as": "control", "token", "address"}  stays open; the gateway asks for connections to this agent: {"carry": ID}.
                                       `address`: where the job's other pods reach this one
  {"as": "carry", "token", "id"}       the answer to that: from here on it is the agent's own socket
  {"as": "api", "token"}               a command of the job: from here on it is HTTP with the daemon
  {"as": "stream", "token", "peer"}    `srun` of this node wants the agent of another pod of its job
  {"as": "file", "token", "name"}      output that goes to a file on the daemon's machine (`spool`)
  {"as": "input", "token", "name"}     input that comes from a file there (`fetcher`)

The gateway answers "ok" or says what is wrong, in one line. Invariant: the token is read from a file and is never an
argument, a variable or a word in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("bireme.agent")

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ADDRESS_VARIABLE = "BIREME_POD_ADDRESS"
"""In a pod: its own address, which only Kubernetes knows."""
_CHUNK_BYTES = 1 << 16
_DIAL_S = 10.0
_PATIENCE_S = 60.0
_RETRY_S = 0.2
_MAX_RETRY_S = 5.0
_LAST_WORDS_S = 5.0
_PING_S = 15.0
"""The control connection says something so often; a middlebox that forgot it is noticed within two of these."""


class RefusedError(Exception):
    """The gateway does not want this connection, and says why."""


@dataclass(frozen=True, slots=True)
class Gangway:
    """`peers`: all pods of the job, by the gateway's names for them. `authority`: the certificate it must show."""

    host: str
    port: int
    authority: Path
    token_file: Path
    home: Path
    node: str
    peers: tuple[str, ...]
    address: str = ""

    async def run(self) -> None:
        """Until cancelled. Losing the daemon is no reason to end: it is called again until it answers."""
        async with contextlib.AsyncExitStack() as held:
            await held.enter_async_context(self._listen(self.home / "run" / "api.sock", {"as": "api"}))
            for peer in self.peers:
                hello = {"as": "stream", "peer": peer}
                await held.enter_async_context(self._listen(self.home / "nodes" / f"{peer}.sock", hello))
            await self._keep_control()

    # --- from the pod to the daemon ------------------------------------------------------------------------

    @asynccontextmanager
    async def _listen(self, path: Path, hello: dict[str, Any]) -> AsyncIterator[None]:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)

        async def carry_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there = await self._dial_patiently(hello)
            except (OSError, RefusedError) as error:
                log.warning("%s cannot reach the daemon: %s", path.name, error)
                writer.close()
                return
            await relay((reader, writer), there)

        server = await asyncio.start_unix_server(carry_out, path)
        os.chmod(path, 0o600)
        async with server:
            yield

    async def _dial_patiently(self, hello: dict[str, Any]) -> Ends:
        """A command of the job waits for a daemon that is just being started again."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                return await self.dial(hello)
            except OSError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def dial(self, hello: dict[str, Any]) -> Ends:
        """A connection that the gateway took. Raises OSError or RefusedError."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.check_hostname = False  # the certificate is this daemon's own and known beforehand
        async with asyncio.timeout(_DIAL_S):
            reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
            token = self.token_file.read_text().strip()
            writer.write(json.dumps({**hello, "token": token}).encode() + b"\n")
            answer = (await reader.readline()).decode(errors="replace").strip()
        if answer != "ok":
            writer.close()
            raise RefusedError(answer or "the gateway closed the connection")
        return reader, writer

    # --- from the daemon to the agent ----------------------------------------------------------------------

    async def _keep_control(self) -> None:
        retry_s = _RETRY_S
        while True:
            try:
                reader, writer = await self.dial({"as": "control", "address": self.address})
            except (OSError, RefusedError) as error:
                log.warning("no way to the daemon yet: %s", error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _MAX_RETRY_S)
                continue
            retry_s = _RETRY_S
            with contextlib.suppress(OSError, ValueError, TimeoutError):
                await self._serve_control(reader, writer)
            writer.close()
            log.info("the daemon's gateway is gone; calling it again")

    async def _serve_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carried: set[asyncio.Task[None]] = set()
        while True:
            async with asyncio.timeout(2 * _PING_S):
                line = await reader.readline()
            if not line:
                return
            message = json.loads(line)
            if "carry" in message:
                task = asyncio.create_task(self._carry_in(message["carry"]))
                carried.add(task)
                task.add_done_callback(carried.discard)
            writer.write(b"{}\n")

    async def _carry_in(self, number: int) -> None:
        socket_path = self.home / "agents" / self.node / "agent.sock"
        try:
            here = await asyncio.open_unix_connection(socket_path)
            there = await self.dial({"as": "carry", "id": number})
        except (OSError, RefusedError) as error:
            log.warning("the daemon asked for the agent and cannot have it: %s", error)
            return
        await relay(here, there)


async def relay(one: Ends, other: Ends) -> None:
    """Carries bytes both ways until either side ends; then both are closed. What it said before its end arrives."""
    pumps = {
        asyncio.create_task(_pump(one[0], other[1])),
        asyncio.create_task(_pump(other[0], one[1])),
    }
    try:
        done, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        if left and not all(pump.result() for pump in done):
            await asyncio.wait(left, timeout=_LAST_WORDS_S)
    finally:
        for pump in pumps:
            pump.cancel()
        for _, writer in (one, other):
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the reader's side ended. False: the writer's did, and may have said something before."""
    try:
        while data := await reader.read(_CHUNK_BYTES):
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                return False
    except OSError:
        return True
    return True
