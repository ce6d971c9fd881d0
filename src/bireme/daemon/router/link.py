"""The daemon's conversation with the router: it is there when there are services, goes by the newest table, is heard.

Made by the daemon, on its event loop; what is routed comes from `table`, what the router tells goes to a `Listener`.
The router goes on alone when the daemon ends, and is found here by the next one: by its socket. One that died is
started again, and finds its workers, which went on; so is one that does not answer any more, which is killed. One that
cannot start (its port is taken) is tried again, ever less often, and `problem` says why. One that listens elsewhere
than the settings say now is told where to; while it cannot, it goes on where it is, and `warning` says why.

Invariants: after any change the router is told a table with it, and never two at once: what changed meanwhile goes with
the next one. Whom nobody sends requests any more is told (`Listener.routed`) only when all workers go by such a table,
or no process of a router lives.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Protocol

from bireme.agent.messages.protocol import connect_endpoint
from bireme.daemon.router import process
from bireme.daemon.router.process import RouterPlan, StartedRouter, peer_pid
from bireme.router import messages
from bireme.router.census import living

log = logging.getLogger("bireme.daemon")

_STARTING_S = 20.0
_LOOK_S = 0.05
"""Between looks for the socket of a router that starts."""
_FIRST_PAUSE_S, _MOST_PAUSE_S = 1.0, 30.0
_ENDING_S = 45.0
_ASK_AGAIN_S = 5.0
_PING_S = 2.0
"""After so long without a word it is asked for one."""
_PINGS_NOTED, _PINGS_PATIENT = 2, 5
"""After so many questions in a row without an answer that is said, and the router is replaced. Counted, not measured: a
daemon that was stopped itself has heard nothing either."""
_GATHER_S = 0.01
"""So long a table waits for what else is about to change."""


class _UnsuitedError(Exception):
    """The router that runs is not what the settings ask for, and of a release that cannot be told to become it."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


class _SilentError(Exception):
    """The router's supervisor is there, and answers nothing."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


class Listener(Protocol):
    """Who is told what the router tells."""

    def routed(self, replicas: Container[str]) -> None:
        """Nobody sends new requests to replicas other than these. Also said when it was so before."""

    def load(self, load: messages.Load) -> None:
        """What services have to do; once a second while there is any of it."""

    def wake(self, service: str) -> None:
        """A request waits for a service without a ready replica."""

    def drained(self, replica: str) -> None:
        """A replica that gets no new requests has answered all that it had."""

    def trouble(self, told: messages.Trouble) -> None:
        """A ready replica did not answer a request."""


class RouterLink:
    """`services`: what is to be routed, asked for when something changed."""

    def __init__(
        self,
        plan: Callable[[], RouterPlan],
        services: Callable[[], tuple[messages.Service, ...]],
        listener: Listener,
        speaker: str = "",
    ) -> None:
        self._plan = plan
        self._services = services
        self._listener = listener
        self._speaker = speaker
        self.welcome: messages.Welcome | None = None
        """Of the router that is there."""
        self.problem = ""
        """Why there is none that answers; empty: none is needed, or all is well."""
        self._notes: dict[str, str] = {}
        """What is not well with one that answers, by what it is about."""
        self._needed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._started: StartedRouter | None = None
        self._failures = 0
        self._asking_again: asyncio.TimerHandle | None = None
        self._has_asked = False
        """The router was told what the settings say, and has not answered that."""
        self._serial = 0
        self._told: tuple[messages.Service, ...] | None = None
        """What the router was told last, over this connection."""
        self._took = 0
        self._routed: frozenset[str] = frozenset()
        """The names of the services that all its workers go by."""
        self._pushing: asyncio.TimerHandle | None = None
        self._is_absent = False
        """None could be started, and no process of one lives: nobody routes."""
        self._task: asyncio.Task[None] | None = None

    @property
    def warning(self) -> str:
        """What is not well with a router that answers, or that it is on its way; empty: nothing."""
        if self._needed.is_set() and self.welcome is None and not self.problem:
            return "the router is being started"
        return "; ".join(self._notes.values())

    def begin(self) -> None:
        """From now on there is a router whenever there are services; one that runs already is found."""
        if process.is_running(self._plan().folder):
            self._needed.set()
        self.changed()
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="router")

    async def close(self) -> None:
        """Leaves the router, which goes on."""
        if self._pushing is not None:
            self._pushing.cancel()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def end(self) -> None:
        """Leaves it, and ends it."""
        await self.close()
        await asyncio.to_thread(process.end, self._plan().folder)

    def changed(self) -> None:
        """What is to be routed may be something else now."""
        if self._pushing is None:
            self._pushing = asyncio.get_running_loop().call_later(_GATHER_S, self._push)

    def routes(self, name: str) -> bool:
        """Whether it is known that requests for this service are not answered with "there is none"."""
        return name in self._routed

    def reconsider(self) -> None:
        """The plan may be another now: a router that is not what it says is told to become it."""
        if self._writer is None or self.welcome is None:
            return
        if self._asking_again is not None:
            self._asking_again.cancel()
            self._asking_again = None
        plan = self._plan()
        if plan.suits(self.welcome):
            self._notes.pop("settings", None)
        elif self.welcome.version < process.CONFIGURABLE:
            self._writer.close()  # it is asked who it is once more, and replaced
        else:
            self._has_asked = True
            self._say(plan.order())

    # --- keeping it there ----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await self._needed.wait()
            try:
                reader, self._writer = await self._connected()
            except (OSError, TimeoutError) as error:
                self._tell_problem(str(error) or "the router does not answer")
                self._is_absent = not await asyncio.to_thread(living, self._plan().folder)
                self.changed()
                await asyncio.sleep(min(_MOST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._failures, 10)))
                self._failures += 1
                continue
            try:
                await self._converse(reader)
            except _UnsuitedError as error:
                await self._end_unsuited(error.pid)
            except _SilentError as error:
                log.error("the router's supervisor (pid %d) does not answer: another takes its place", error.pid)
                process.kill(error.pid)
            except (OSError, ValueError, EOFError) as error:
                log.warning("the router is not there any more (%s): looking for it", error or "it hung up")
            finally:
                self._left()
            await asyncio.sleep(_LOOK_S)

    async def _end_unsuited(self, pid: int) -> None:
        """Its requests in flight have their time."""
        folder, deadline = self._plan().folder, time.monotonic() + _ENDING_S
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        while process.is_running(folder):
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            await asyncio.sleep(_LOOK_S)

    def _tell_problem(self, text: str) -> None:
        if text != self.problem:
            log.error("services cannot be reached: the router does not run: %s", text)
        self.problem = text

    def _left(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self.welcome, self._told, self._took = None, None, None, 0
        self._routed = frozenset()
        self._notes.clear()
        self._has_asked = False
        if self._asking_again is not None:
            self._asking_again.cancel()
            self._asking_again = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the router that there is, or to one that is started for it. Raises OSError or TimeoutError."""
        plan, deadline = self._plan(), time.monotonic() + _STARTING_S
        while True:
            self._is_absent = False
            with suppress(FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                connection = connect_endpoint(f"unix:{plan.socket}", 0.0)
                return await asyncio.open_unix_connection(sock=connection, limit=messages.MAX_LINE_BYTES)
            if not process.is_running(plan.folder):
                await self._start(plan)
            if time.monotonic() > deadline:
                silent = (await asyncio.to_thread(living, plan.folder)).supervisors
                for pid in silent:
                    process.kill(pid)
                raise TimeoutError(f"a router holds {plan.folder} and does not answer; see {plan.log}")
            await asyncio.sleep(_LOOK_S)

    async def _start(self, plan: RouterPlan) -> None:
        """Unless one that was started is still on its way. Raises OSError when that one has given up."""
        if self._started is None or (self._started.served and self._started.process.poll() is not None):
            self._started = await asyncio.to_thread(process.start, plan)
            log.info("started a router for %s, pid %d", plan.folder, self._started.process.pid)
        elif self._started.process.poll() is not None:
            ended, self._started = self._started, None
            raise OSError(ended.why_ended())

    # --- talking -------------------------------------------------------------------------------------------

    async def _converse(self, reader: asyncio.StreamReader) -> None:
        """Until one of the two leaves. Raises OSError, EOFError, ValueError (ProtocolError is one) or _SilentError."""
        self._say(messages.Hello(speaker=self._speaker))
        unanswered = 0
        while True:
            try:
                async with asyncio.timeout(_PING_S):
                    line = await reader.readline()
            except TimeoutError:
                unanswered += 1
                self._silent_for(unanswered)
                self._say(messages.Ping())
                continue
            if not line.endswith(b"\n"):
                raise EOFError
            unanswered = 0
            self._notes.pop("silent", None)
            if (told := messages.read_told(line)) is not None:
                self._hear(told)

    def _silent_for(self, questions: int) -> None:
        """Notes that the router did not answer so many questions. Raises _SilentError when that was often enough."""
        assert self._writer is not None
        if questions < _PINGS_NOTED:
            return
        pid = peer_pid(self._writer.get_extra_info("socket"))
        if questions > _PINGS_PATIENT:
            raise _SilentError(pid)
        text = f"the router does not answer (pid {pid}): requests go where it last knew of"
        if self._notes.get("silent") != text:
            log.warning("%s", text)
        self._notes["silent"] = text

    def _say(self, order: messages.AnyOrder) -> None:
        assert self._writer is not None
        self._writer.write(messages.encode(order))

    def _hear(self, told: messages.AnyTold) -> None:
        match told:
            case messages.Welcome():
                self._welcomed(told)
            case messages.Took():
                self._took, self.problem = max(self._took, told.serial), ""
                self._notes.pop("refused", None)
                if self._took >= self._serial:
                    self._routed = frozenset(each.name for each in self._told or ())
                    self._tell_routed()
                    self.changed()
            case messages.Refused():
                self._refused(told)
            case messages.Kept():
                self._kept(told.why)
            case messages.Load():
                self._listener.load(told)
            case messages.Wake():
                self._listener.wake(told.service)
            case messages.Drained():
                self._listener.drained(told.replica)
            case messages.Trouble():
                self._listener.trouble(told)
            case messages.Ails():
                self._ails(told.why)
            case _:
                pass  # Numbers and Pong: that it spoke is what counts

    def _welcomed(self, found: messages.Welcome) -> None:
        if found.version < process.CONFIGURABLE and not self._plan().suits(found):
            log.warning("the router listens at %s:%d, which is not what the settings say: anew", found.host, found.port)
            raise _UnsuitedError(found.pid)
        self.welcome, self.problem, self._failures = found, "", 0
        if self._started is not None:
            self._started.served = True
        self._serial = self._took = max(self._serial, found.serial)
        log.info("the router listens at %s:%d, pid %d", found.host, found.port, found.pid)
        self._push()
        if self._has_asked and not self._plan().suits(found):
            self._kept("it is not what it was told to be")
        else:
            self.reconsider()
        self._has_asked = False

    def _kept(self, why: str) -> None:
        """What the settings ask for cannot be, now: services are reached as they were, and it is tried again."""
        assert self.welcome is not None
        self._has_asked = False
        text = f"the router still listens at {url_of(self.welcome)}, not as the settings say: {why}"
        if self._notes.get("settings") != text:
            log.error("%s", text)
        self._notes["settings"] = text
        self._asking_again = asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self.reconsider)

    def _refused(self, told: messages.Refused) -> None:
        """A bug of ours, or more than it has room for: said, and tried again with the next change."""
        log.error("the router does not take a table: %s", told.why)
        self._notes["refused"] = f"the router goes by an older table: {told.why}"
        self._took = self._serial

    def _ails(self, why: str) -> None:
        self._notes.pop("ails", None)
        if why:
            log.error("the router goes on, but %s", why)
            self._notes["ails"] = f"the router answers, but {why}"

    def _push(self) -> None:
        """Tells the newest table, unless one is on its way (then it is told after that) or it is what was told."""
        if self._pushing is not None:
            self._pushing.cancel()
            self._pushing = None
        services = self._services()
        if services:
            self._needed.set()
        if self._is_absent:
            self._listener.routed(())
        if self.welcome is None or self._took < self._serial:
            return
        if services == self._told:
            self._tell_routed()
            return
        self._serial += 1
        self._told = services
        self._say(messages.Table(serial=self._serial, services=services))

    def _tell_routed(self) -> None:
        """Whom the workers send requests to, where they go by what was told over this connection."""
        if self._told is None or "refused" in self._notes:
            return
        replicas = (replica for service in self._told for replica in service.replicas)
        self._listener.routed(frozenset(each.id for each in replicas if each.state == "ready"))


def summary(link: RouterLink | None) -> dict[str, str | int]:
    """Of the router, for those who ask how the cluster is: where it listens, who it is, what is wrong."""
    found = link.welcome if link is not None else None
    about: dict[str, str | int] = {}
    if found is not None:
        about |= {"url": url_of(found), "pid": found.pid, "release": found.speaker}
    if link is not None and link.problem:
        about["problem"] = link.problem
    if link is not None and link.warning:
        about["warning"] = link.warning
    return about


def url_of(found: messages.Welcome) -> str:
    """Where it listens, as an address of the web."""
    host = f"[{found.host}]" if ":" in found.host else found.host
    return f"{'https' if found.tls else 'http'}://{host}:{found.port}"
