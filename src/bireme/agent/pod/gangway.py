"""The way between an agent and a daemon that share no machine: unix sockets here, carried over TLS to there.

Runs beside the agent in a pod. Agent and commands find sockets as on any machine: `run/api.sock` for the commands, and
for `srun` the folder `nodes`, with a link to this pod's own agent and a crossing to those of the job's other pods. What
is said on the first and on the crossing travels to the daemon's gateway (`engines/kubernetes/crossing/gateway.py`). All
connections are made from here, so that nothing has to reach into a pod. A connection's first line says what it is for:

  {"as": "control", "token", "address"}  stays open; the gateway asks for connections to this agent: {"carry": ID}.
                                       `address`: where the job's other pods reach this one
  {"as": "carry", "token", "id"}       the answer to that: from here on it is the agent's own socket
  {"as": "api", "token"}               a command of the job: from here on it is HTTP with the daemon
  {"as": "stream", "token", "peer"}    `srun` of this node wants the agent of another pod of its job
  {"as": "file", "token", "name"}      output that goes to a file on the daemon's machine (`spool`)
  {"as": "input", "token", "name"}     input that comes from a file there (`fetcher`)

The gateway answers in one line: "ok", "refused: WHY", or "later: WHY" where it may be otherwise in a moment. Whoever
connects to a crossing says in a line which agent it wants ({"peer": NAME}); if there is no such agent any more it gets
a REFUSED frame, and if only the way to it is interrupted, the connection's end.

Invariant: the token is read from a file and is never an argument, a variable or a word in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.agent.messages import protocol

log = logging.getLogger("bireme.agent")

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ADDRESS_VARIABLE = "BIREME_POD_ADDRESS"
"""In a pod: its own address, which only Kubernetes knows."""
_CHUNK_BYTES = 1 << 16
_DIAL_S = 30.0
"""A daemon that greets thousands of pods at once takes its time for each."""
_PATIENCE_S = 60.0
_RETRY_S = 0.2
_MAX_RETRY_S = 5.0
_LAST_WORDS_S = 5.0
_PING_S = 15.0
"""The control connection says something so often; a middlebox that forgot it is noticed within two of these."""


LATER = "later: "
"""How an answer begins that may be another one in a moment."""
_SILENT_S = 30


class RefusedError(Exception):
    """The gateway does not want this connection, and says why."""


@dataclass(frozen=True, slots=True)
class Gangway:
    """`berth`: the gateway's name for this pod. `authority`: the certificate that the gateway must show."""

    host: str
    port: int
    authority: Path
    token_file: Path
    home: Path
    node: str
    berth: str
    address: str = ""

    async def run(self) -> None:
        """Carries streams between pods until cancelled. Losing the daemon is no reason to end: it is called again until
        it answers."""
        self._link_own_agent()
        async with (
            listening(self.home / "run" / "api.sock", self._carry_to_api),
            listening(self.home / "nodes" / protocol.CROSSING, self._carry_to_peer),
        ):
            await self._keep_control()

    # --- from the pod to the daemon ------------------------------------------------------------------------

    def _link_own_agent(self) -> None:
        """`srun` of this pod talks with the agent of this pod, whatever becomes of us or of the daemon."""
        link = self.home / "nodes" / f"{self.berth}.sock"
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(self._agent_socket)

    @property
    def _agent_socket(self) -> Path:
        return self.home / "agents" / self.node / "agent.sock"

    async def _carry_to_api(self, here: Ends) -> None:
        try:
            there = await self._dial_patiently({"as": "api"})
        except (OSError, RefusedError) as error:
            log.warning("a command cannot reach the daemon: %s", error)
            here[1].close()
            return
        await relay(here, there)

    async def _carry_to_peer(self, here: Ends) -> None:
        try:
            peer = await wanted_peer(here)
            there = await self._dial_patiently({"as": "stream", "peer": peer})
        except RefusedError as error:
            refuse_stream(here, str(error))
        except (OSError, ValueError) as error:
            log.warning("srun cannot reach another pod of its job: %s", error or type(error).__name__)
            here[1].close()
        else:
            await relay(here, there)

    async def _dial_patiently(self, hello: dict[str, Any]) -> Ends:
        """A command of the job waits for a daemon that is just being started again."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        retry_s = _RETRY_S
        while True:
            try:
                return await self.dial(hello)
            except OSError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(random.uniform(_RETRY_S, retry_s))  # a large step's streams all come at once
                retry_s = min(retry_s * 2, _MAX_RETRY_S)

    async def dial(self, hello: dict[str, Any]) -> Ends:
        """A connection that the gateway took. Raises OSError or RefusedError."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.check_hostname = False  # the certificate is this daemon's own and known beforehand
        async with asyncio.timeout(_DIAL_S):
            reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
            token = self.token_file.read_text().strip()
            writer.write(json.dumps({**hello, "token": token}).encode() + b"\n")
            keep_alive(writer)
            answer = (await reader.readline()).decode(errors="replace").strip()
        if answer == "ok":
            return reader, writer
        writer.close()
        if not answer or answer.startswith(LATER):
            raise ConnectionResetError(answer or "the gateway closed the connection")
        raise RefusedError(answer)

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
        try:
            here = await asyncio.open_unix_connection(self._agent_socket)
            there = await self._dial_patiently({"as": "carry", "id": number})
        except (OSError, RefusedError) as error:
            log.warning("the daemon asked for the agent and cannot have it: %s", error)
            return
        await relay(here, there)


@asynccontextmanager
async def listening(path: Path, serve: Callable[[Ends], Awaitable[None]], mode: int = 0o600) -> AsyncIterator[None]:
    """A unix socket at which connections are served. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with protocol.socket_path(str(path)) as short:
        server = await asyncio.start_unix_server(lambda reader, writer: serve((reader, writer)), short)
    os.chmod(path, mode)
    async with server:
        yield


async def wanted_peer(here: Ends) -> str:
    """Whom a connection to a crossing asks for. Raises OSError or ValueError."""
    async with asyncio.timeout(_DIAL_S):
        line = await here[0].readline()
    try:
        return str(json.loads(line)["peer"])
    except (KeyError, TypeError) as error:
        raise ValueError("it does not say which agent it wants") from error


def refuse_stream(here: Ends, why: str) -> None:
    """The agent is not there and will not be: `srun` need not try again."""
    here[1].write(protocol.encode_frame(protocol.REFUSED, protocol.ALL_TASKS, why.encode()))
    here[1].close()


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Has the kernel notice a machine at the other end that is gone without a word."""
    connection = writer.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_S // 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_S // 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1000)


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
