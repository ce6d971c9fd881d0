"""The daemon's end of the gangways: agents in pods call here, and become sockets like those of agents on this machine.

The engine says which pods it expects (`expect`) and gets an address per pod for its `crew.link.AgentLink`; `srun` on
this machine asks for agents at a crossing, as it does in pods. Pods connect over TLS (`agent/pod/gangway.py` has the
words) and prove with a token which pod of which start of which job they are. Tokens are a keyed hash over that, so
nothing about them has to be stored and a restarted daemon knows its pods; a token is worth nothing once the engine does
not expect its pod any more.

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
import os
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

from bireme.agent.door import peer_uid
from bireme.agent.messages.protocol import CROSSING, socket_path, whole_number
from bireme.agent.pod.gangway import LATER, Ends, keep_alive, listening, refuse_stream, relay, wanted_peer
from bireme.agent.pod.spool import PIECE_BYTES
from bireme.core.model.jobs import Owner
from bireme.ports import Admit

log = logging.getLogger("bireme.engines.kubernetes")

_HELLO_S = 10.0
_HELLO_BYTES = 4096
_TLS_BUFFER_BYTES = 32 * 1024
"""Read at once of a connection. asyncio sets 256 KiB aside for each, and a job of 2,000 nodes has 4,000 of them."""
_ATTACH_S = 10.0
_CARRY_S = 120.0
"""Pods of a large job all come at once, and each of their connections takes some work to greet."""
_PING_S = 15.0
_MOST_ASKING = 256
"""Connections of one user to the crossing that have not got their agent yet."""


@dataclass(frozen=True, slots=True)
class Berth:
    """Where one agent belongs: a start of a job, on a node."""

    job_id: int
    generation: int
    node: str

    @property
    def text(self) -> str:
        return f"{self.job_id}.{self.generation}.{self.node}"

    @classmethod
    def read(cls, text: str) -> Berth:
        """Raises ValueError."""
        job_id, generation, node = text.split(".", 2)
        return cls(int(job_id), int(generation), node)


class Delivery(Protocol):
    """A file of the submitter's that is filled from a pod."""

    position: int

    def write(self, piece: bytes) -> None: ...

    def close(self) -> None: ...


Deliver = Callable[[Berth, str], Delivery]
"""The file that this name of this pod stands for. Raises ValueError or OSError."""


class Offer(NamedTuple):
    """A file of the submitter's that a pod is to read, open."""

    fd: int
    size: int


Provide = Callable[[Berth, str], Offer]
"""The file that this name of this pod stands for. Raises ValueError or OSError."""


@dataclass(slots=True)
class _Pod:
    owner: Owner
    crew: int
    """The job, or what the components of a heterogeneous one have in common: these reach each other."""
    address: Path
    attached: asyncio.Event = field(default_factory=asyncio.Event)
    pod_address: str = ""
    control: asyncio.StreamWriter | None = None
    local: asyncio.Server | None = None
    ended: bool = False
    """Kubernetes says that nothing of it runs any more."""


class _PodLeftError(OSError):
    """A pod whose control connection ended while somebody waited for its agent: it calls again, or its job is over."""


class _LaterError(OSError):
    """What was asked cannot be said yet, or not be done now: whoever asked may ask again."""


class Gateway:
    def __init__(
        self,
        sockets: Path,
        crossing: Path,
        secret: bytes,
        certificate: Path,
        admit: Admit,
        deliver: Deliver,
        provide: Provide,
    ) -> None:
        """`sockets`: a private folder. `crossing`: the folder where users' `srun` asks for agents.

        `certificate`: a PEM file with the certificate and its key.
        """
        self._sockets = sockets
        self._crossing = crossing
        self._secret = secret
        self._certificate = certificate
        self._admit = admit
        self._deliver = deliver
        self._provide = provide
        self._pods: dict[Berth, _Pod] = {}
        self._crews: dict[int, set[Berth]] = {}
        self._hosts: dict[int, dict[tuple[int, int], Mapping[str, str]]] = {}
        """Crew -> start -> what `hosts` says."""
        self._asking: Counter[int] = Counter()
        self._wanted: dict[tuple[Berth, int], asyncio.Future[Ends]] = {}
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._settled = asyncio.Event()
        self._held = contextlib.AsyncExitStack()

    # --- the engine's side ---------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Listens; the port, which the kernel chooses when it is 0. Raises OSError."""
        self._sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate)
        sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES  # of all in this process: asyncio has no other way to say it
        self._server = await asyncio.start_server(self._greet, host, port, ssl=context, limit=_HELLO_BYTES * 16)
        await self._held.enter_async_context(listening(self._crossing / CROSSING, self._cross, 0o666))
        self._crossing.chmod(0o711)  # anybody may come; who gets which agent is told by the peer's credentials
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._held.aclose()
        for berth in list(self._pods):
            self.dismiss(berth)

    def settle(self) -> None:
        """All pods that ran before this daemon are expected by now: who is not never will be."""
        self._settled.set()

    def address(self, berth: Berth) -> str:
        """Where the engine reaches the agent of this pod, as long as it is there."""
        return f"unix:{self._socket_of(berth)}"

    def crossing_address(self, berth: Berth) -> str:
        """Where users of this machine reach it."""
        return f"unix:{self._crossing}/{berth.text}.sock"

    def _socket_of(self, berth: Berth) -> Path:
        return self._sockets / f"{berth.text}.sock"

    def expect(self, berth: Berth, owner: Owner, crew: int) -> None:
        """Lets this pod call from now on."""
        if berth not in self._pods:
            self._pods[berth] = _Pod(owner, crew, self._socket_of(berth))
            self._crews.setdefault(crew, set()).add(berth)

    def owner(self, berth: Berth) -> Owner:
        """The owner of the job of a pod that is expected."""
        return self._pods[berth].owner

    def hosts(self, berth: Berth) -> Mapping[str, str]:
        """Node -> address of every pod of this one's crew that has called. Its own job's come before the others'.

        The same object until it changes: a job of thousands of nodes asks for each of them.
        """
        crew = self._pods[berth].crew
        known = self._hosts.setdefault(crew, {})
        start = (berth.job_id, berth.generation)
        if start not in known:

            def comes_later(other: Berth) -> tuple[bool, str]:
                return (other.job_id, other.generation) == start, other.node

            mates = [(other, self._pods[other]) for other in sorted(self._crews[crew], key=comes_later)]
            known[start] = {other.node: pod.pod_address for other, pod in mates if pod.pod_address}
        return known[start]

    def token(self, berth: Berth) -> str:
        mac = hmac.new(self._secret, berth.text.encode(), hashlib.sha256).hexdigest()
        return f"{berth.text}:{mac}"

    async def attached(self, berth: Berth) -> None:
        """Returns when the pod's agent can be reached; at once for a pod that nobody expects (any more)."""
        pod = self._pods.get(berth)
        if pod is not None:
            await pod.attached.wait()

    def has_ended(self, berth: Berth) -> None:
        """Nothing of the pod runs any more: nobody need wait for its agent."""
        pod = self._pods.get(berth)
        if pod is not None:
            pod.ended = True
            self._detach(pod)
            pod.attached.set()

    def dismiss(self, berth: Berth) -> None:
        """The pod is gone or going: what it says from now on is not heard."""
        pod = self._pods.pop(berth, None)
        if pod is not None:
            self._detach(pod)
            pod.attached.set()
            self._hosts.pop(pod.crew, None)
            self._crews[pod.crew].discard(berth)
            if not self._crews[pod.crew]:
                del self._crews[pod.crew]

    # --- pods that call ------------------------------------------------------------------------------------

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep_alive(writer)
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = json.loads(await reader.readline())
            berth = self._recognise(str(hello["token"]))
            await self._take(berth, hello, reader, writer)
        except _LaterError as error:
            with contextlib.suppress(OSError):
                writer.write(f"{LATER}{error}\n".encode())
            writer.close()
        except (TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
            with contextlib.suppress(OSError):
                writer.write(f"refused: {error or 'no proper hello'}\n".encode())
            writer.close()

    def _recognise(self, token: str) -> Berth:
        berth = Berth.read(token.partition(":")[0])
        if not hmac.compare_digest(self.token(berth), token):
            raise ValueError("this is not a token of this cluster")
        if berth not in self._pods:
            self._unexpected(berth)
        return berth

    def _unexpected(self, berth: Berth) -> NoReturn:
        """Of a pod that nobody expects; a daemon that has just started may not know it yet."""
        if not self._settled.is_set():
            raise _LaterError("the daemon is starting")
        raise ValueError(f"no pod of job {berth.job_id} is expected on node {berth.node}")

    async def _take(
        self, berth: Berth, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        purpose = hello["as"]
        if purpose == "carry":
            waiting = self._wanted.pop((berth, whole_number(hello, "id")), None)
            if waiting is None or waiting.done():
                raise ValueError("nobody waits for this connection")
            writer.write(b"ok\n")
            waiting.set_result((reader, writer))
        elif purpose == "control":
            self._located(self._pods[berth], str(hello.get("address", "")))
            await self._serve_control(berth, reader, writer)
        elif purpose == "api":
            ours, theirs = socket.socketpair()
            self._admit(theirs, self._pods[berth].owner, berth.job_id)
            writer.write(b"ok\n")
            await relay((reader, writer), await asyncio.open_unix_connection(sock=ours))
        elif purpose == "stream":
            wanted = Berth.read(str(hello["peer"]))
            if wanted not in self._crews[self._pods[berth].crew]:
                self._unexpected(wanted)
            there = await self._stream_of(wanted)
            writer.write(b"ok\n")
            await relay((reader, writer), there)
        elif purpose == "file":
            await self._receive(self._deliver(berth, str(hello["name"])), reader, writer)
        elif purpose == "input":
            await self._give(self._provide(berth, str(hello["name"])), writer)
        else:
            raise ValueError(f"nothing is known of connections as {purpose!r}")

    def _located(self, pod: _Pod, address: str) -> None:
        if pod.pod_address != address:
            pod.pod_address = address
            self._hosts.pop(pod.crew, None)

    async def _give(self, offer: Offer, writer: asyncio.StreamWriter) -> None:
        """All of a file, as fast as the pod takes it; read beside the loop, since a disk may be slow."""
        with open(offer.fd, "rb") as file:
            writer.write(f"ok\n{offer.size}\n".encode())
            try:
                while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                    writer.write(piece)
                    await writer.drain()
            except OSError as error:
                log.warning("input of a job did not reach its pod: %s", error)
            finally:
                writer.close()

    async def _receive(self, delivery: Delivery, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pieces of a file, until the pod has no more. A disk may be slow: it is written beside the loop."""
        try:
            writer.write(f"ok\n{delivery.position}\n".encode())
            while line := await reader.readline():
                length = int(line)
                if not 0 < length <= PIECE_BYTES:
                    raise ValueError(f"a piece of {length} bytes is not taken")
                piece = await reader.readexactly(length)
                await asyncio.to_thread(delivery.write, piece)
                writer.write(f"{delivery.position}\n".encode())
        except (OSError, ValueError, EOFError) as error:
            log.warning("output of a job did not arrive: %s", error)
        finally:
            delivery.close()
            writer.close()

    async def _serve_control(self, berth: Berth, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The pod is there as long as this runs. A newer connection replaces an older one."""
        pod = self._pods[berth]
        self._detach(pod)
        pod.control = writer  # first: whoever calls meanwhile replaces us
        try:
            pod.local = await self._open_local(berth, pod)
        except ValueError:
            if pod.control is writer:
                pod.control = None  # it stays open: the caller is told why on it
            raise
        try:
            writer.write(b"ok\n")
            pod.attached.set()
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

    async def _open_local(self, berth: Berth, pod: _Pod) -> asyncio.Server:
        """Where the agent in the pod is reached from here. Raises ValueError."""
        try:
            with socket_path(str(pod.address)) as path:
                return await asyncio.start_unix_server(lambda r, w: self._carry_to(berth, (r, w)), path)
        except OSError as error:
            log.error("no socket for the agent of %s at %s: %s", berth.text, pod.address, error)
            raise ValueError("the daemon cannot make a socket for it") from error

    def _detach(self, pod: _Pod) -> None:
        if pod.control is not None:
            pod.control.close()
            pod.control = None
        if pod.local is not None:
            pod.local.close()
            pod.local = None
            pod.address.unlink(missing_ok=True)
        pod.attached.clear()
        for (berth, _), arrived in self._wanted.items():
            if self._pods.get(berth) in (pod, None) and not arrived.done():
                arrived.set_exception(_PodLeftError("the pod is gone"))

    # --- reaching an agent ---------------------------------------------------------------------------------

    async def _carry_to(self, berth: Berth, here: Ends) -> None:
        try:
            there = await self._agent_of(berth)
        except (OSError, ValueError) as error:
            if not isinstance(error, _PodLeftError):
                why = str(error) or f"no answer in {_CARRY_S:g} s"
                log.warning("the agent of %s cannot be reached: %s", berth.text, why)
            here[1].close()
            return
        await relay(here, there)

    async def _cross(self, here: Ends) -> None:
        """`srun` of a user of this machine. The agent takes us for the job's user: here is told who it really is."""
        uid = _peer_uid(here)
        if self._asking[uid] >= _MOST_ASKING:
            here[1].close()  # it comes again; the others are served meanwhile
            return
        self._asking[uid] += 1
        try:
            there = await self._wanted_of(here, uid)
        except ValueError as error:
            refuse_stream(here, str(error))
        except OSError:  # it comes again
            here[1].close()
        else:
            self._answered(uid)
            await relay(here, there)
            return
        self._answered(uid)

    def _answered(self, uid: int) -> None:
        self._asking[uid] -= 1
        if not self._asking[uid]:
            del self._asking[uid]

    async def _wanted_of(self, here: Ends, uid: int) -> Ends:
        """The agent that a user asks for. Raises ValueError or OSError, as `_stream_of`."""
        berth = Berth.read(await wanted_peer(here))
        if berth not in self._pods:
            self._unexpected(berth)
        if uid not in (0, os.geteuid(), self._pods[berth].owner.uid):
            raise ValueError("Access denied: this is another user's job")
        return await self._stream_of(berth)

    async def _stream_of(self, berth: Berth) -> Ends:
        """The agent of a pod, for a stream to it. Raises ValueError when that will never be, _LaterError when it may be
        in a moment."""
        try:
            return await self._agent_of(berth)
        except OSError as error:
            pod = self._pods.get(berth)
            if pod is None or pod.ended:
                raise ValueError(f"the pod of job {berth.job_id} on node {berth.node} is gone") from error
            raise _LaterError(f"the pod on node {berth.node} does not answer") from error

    async def _agent_of(self, berth: Berth) -> Ends:
        """A connection to the agent in this pod, which its gangway makes on request. Raises ValueError or OSError."""
        pod = self._pods.get(berth)
        if pod is not None:  # after a restart of the daemon it may be about to call again
            async with asyncio.timeout(_ATTACH_S):
                await pod.attached.wait()
        if pod is None or pod.control is None:
            raise _PodLeftError(f"no pod of job {berth.job_id} on node {berth.node} is expected")
        number = next(self._numbers)
        arrived: asyncio.Future[Ends] = asyncio.get_running_loop().create_future()
        self._wanted[berth, number] = arrived
        pod.control.write(json.dumps({"carry": number}).encode() + b"\n")
        try:
            async with asyncio.timeout(_CARRY_S):
                return await arrived
        finally:
            self._wanted.pop((berth, number), None)


def _peer_uid(ends: Ends) -> int:
    return peer_uid(ends[1].get_extra_info("socket"))
