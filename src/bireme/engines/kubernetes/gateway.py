"""The daemon's end of the gangways: agents in pods call here, and become sockets like those of agents on this machine.

The engine says which pods it expects (`expect`) and gets an address per pod that `crew.link.AgentLink` and `srun`
connect to. Pods connect over TLS (`agent/gangway.py` has the words) and prove with a token which pod of which start of
which job they are. Tokens are a keyed hash over that, so nothing about them has to be stored and a restarted daemon
knows its pods; a token is worth nothing once the engine does not expect its pod any more.

Not here: what is said on the connections. Invariant: a peer is only ever connected to agents of its own job, and to the
API only as the job's owner, for that job.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
import logging
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme.agent.gangway import Ends, relay
from bireme.core.model.jobs import Owner
from bireme.ports import Admit

log = logging.getLogger("bireme.engines.kubernetes")

_HELLO_S = 10.0
_HELLO_BYTES = 4096
_CARRY_S = 10.0
_PING_S = 15.0


@dataclass(frozen=True, slots=True)
class Berth:
    """Where one agent belongs: a start of a job, on a node."""

    job_id: int
    generation: int
    node: str

    @property
    def text(self) -> str:
        return f"{self.job_id}.{self.generation}.{self.node}"


@dataclass(slots=True)
class _Pod:
    owner: Owner
    address: Path
    attached: asyncio.Event = field(default_factory=asyncio.Event)
    pod_address: str = ""
    control: asyncio.StreamWriter | None = None
    local: asyncio.Server | None = None


class Gateway:
    def __init__(self, sockets: Path, secret: bytes, certificate: Path, admit: Admit) -> None:
        """`sockets`: a private folder. `certificate`: a PEM file with the certificate and its key."""
        self._sockets = sockets
        self._secret = secret
        self._certificate = certificate
        self._admit = admit
        self._pods: dict[Berth, _Pod] = {}
        self._wanted: dict[tuple[Berth, int], asyncio.Future[Ends]] = {}
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None

    # --- the engine's side ---------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Listens; the port, which the kernel chooses when it is 0. Raises OSError."""
        self._sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)
        self._server = await asyncio.start_server(self._greet, host, port, ssl=context, limit=_HELLO_BYTES * 16)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for berth in list(self._pods):
            self.dismiss(berth)

    def address(self, berth: Berth) -> str:
        """Where the agent of this pod is reached, as long as it is there."""
        return f"unix:{self._socket_of(berth)}"

    def _socket_of(self, berth: Berth) -> Path:
        return self._sockets / f"{berth.text}.sock"

    def expect(self, berth: Berth, owner: Owner) -> None:
        """From now on this pod may call."""
        if berth not in self._pods:
            self._pods[berth] = _Pod(owner, self._socket_of(berth))

    def pod_address(self, berth: Berth) -> str:
        """Where other pods of the job reach this one; empty while it has not called."""
        pod = self._pods.get(berth)
        return pod.pod_address if pod is not None else ""

    def token(self, berth: Berth) -> str:
        mac = hmac.new(self._secret, berth.text.encode(), hashlib.sha256).hexdigest()
        return f"{berth.text}:{mac}"

    async def attached(self, berth: Berth) -> None:
        """Returns when the pod's agent can be reached; at once for a pod that nobody expects (any more)."""
        pod = self._pods.get(berth)
        if pod is not None:
            await pod.attached.wait()

    def dismiss(self, berth: Berth) -> None:
        """The pod is gone or going: what it says from now on is not heard."""
        pod = self._pods.pop(berth, None)
        if pod is not None:
            self._detach(pod)
            pod.attached.set()

    # --- pods that call ------------------------------------------------------------------------------------

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = json.loads(await reader.readline())
            berth = self._recognise(str(hello["token"]))
            await self._take(berth, hello, reader, writer)
        except (TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
            with contextlib.suppress(OSError):
                writer.write(f"refused: {error or 'no proper hello'}\n".encode())
            writer.close()

    def _recognise(self, token: str) -> Berth:
        text, _, _ = token.partition(":")
        job_id, generation, node = text.split(".", 2)
        berth = Berth(int(job_id), int(generation), node)
        if not hmac.compare_digest(self.token(berth), token):
            raise ValueError("this is not a token of this cluster")
        if berth not in self._pods:
            raise ValueError(f"no pod of job {job_id} is expected on node {node}")
        return berth

    async def _take(
        self, berth: Berth, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        purpose = hello["as"]
        if purpose == "carry":
            waiting = self._wanted.pop((berth, int(hello["id"])), None)
            if waiting is None or waiting.done():
                raise ValueError("nobody waits for this connection")
            writer.write(b"ok\n")
            waiting.set_result((reader, writer))
        elif purpose == "control":
            writer.write(b"ok\n")
            self._pods[berth].pod_address = str(hello.get("address", ""))
            await self._serve_control(berth, reader, writer)
        elif purpose == "api":
            ours, theirs = socket.socketpair()
            self._admit(theirs, self._pods[berth].owner, berth.job_id)
            writer.write(b"ok\n")
            await relay((reader, writer), await asyncio.open_unix_connection(sock=ours))
        elif purpose == "stream":
            there = await self._agent_of(Berth(berth.job_id, berth.generation, str(hello["node"])))
            writer.write(b"ok\n")
            await relay((reader, writer), there)
        else:
            raise ValueError(f"nothing is known of connections as {purpose!r}")

    async def _serve_control(self, berth: Berth, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The pod is there as long as this runs. A newer connection replaces an older one."""
        pod = self._pods[berth]
        self._detach(pod)
        pod.control = writer
        pod.local = await asyncio.start_unix_server(lambda r, w: self._carry_to(berth, (r, w)), pod.address)
        pod.attached.set()
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PING_S):
                        if not await reader.readline():
                            return
                    continue
                writer.write(b"{}\n")
        except OSError:
            return
        finally:
            if pod.control is writer:
                self._detach(pod)

    def _detach(self, pod: _Pod) -> None:
        if pod.control is not None:
            pod.control.close()
            pod.control = None
        if pod.local is not None:
            pod.local.close()
            pod.local = None
            pod.address.unlink(missing_ok=True)
        pod.attached.clear()

    # --- reaching an agent ---------------------------------------------------------------------------------

    async def _carry_to(self, berth: Berth, here: Ends) -> None:
        try:
            there = await self._agent_of(berth)
        except (OSError, ValueError) as error:
            log.warning("the agent of %s cannot be reached: %s", berth.text, error or f"no answer in {_CARRY_S:g} s")
            here[1].close()
            return
        await relay(here, there)

    async def _agent_of(self, berth: Berth) -> Ends:
        """A connection to the agent in this pod, which its gangway makes on request. Raises ValueError or OSError."""
        pod = self._pods.get(berth)
        if pod is not None:  # after a restart of the daemon it may be about to call again
            await asyncio.wait_for(pod.attached.wait(), _CARRY_S)
        if pod is None or pod.control is None:
            raise ValueError(f"no pod of job {berth.job_id} on node {berth.node} is expected")
        number = next(self._numbers)
        arrived: asyncio.Future[Ends] = asyncio.get_running_loop().create_future()
        self._wanted[berth, number] = arrived
        pod.control.write(json.dumps({"carry": number}).encode() + b"\n")
        try:
            return await asyncio.wait_for(arrived, _CARRY_S)
        finally:
            self._wanted.pop((berth, number), None)
