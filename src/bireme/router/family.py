"""The workers of a supervisor as processes: started, found again, let go; and generations of them.

A generation is all workers that were started with the same settings. When these change, a new one is started beside
the one before, which lets go of its listening sockets when the new one answers, and ends with its last request. Used by
the supervisor alone, which says what to do when one falls.

Invariant: a row of the board belongs to one worker at most; a listening socket is open here as long as the newest
generation needs it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from bireme import __version__
from bireme.router import inner, succession
from bireme.router.listening import Certificate
from bireme.router.settings import Settings

if TYPE_CHECKING:
    import asyncio

_SOON_S = 1.0
"""A worker that ended sooner than this after its start is started again later and later."""
_LATEST_S = 5.0
ASK_S = 1.0
"""Between two questions whether a worker lives."""
PATIENCE, PATIENCE_AT_START = 5, 60
"""So many without an answer, and it is replaced: of one that has spoken, and of one that is being started."""


@dataclass(slots=True, eq=False)
class Generation:
    """Workers with the same settings."""

    settings: Settings
    certificate: Certificate | None
    listeners: list[socket.socket]
    members: list[Member] = field(default_factory=list)
    serves: bool = False
    """All of its workers have had a table."""

    @property
    def digest(self) -> str:
        return self.certificate.digest if self.certificate is not None else ""

    @property
    def port(self) -> int:
        return int(self.listeners[0].getsockname()[1]) if self.listeners else self.settings.port


@dataclass(slots=True, eq=False)
class Member:
    """One worker of a generation."""

    generation: Generation
    row: int
    meeting: socket.socket
    listeners: list[socket.socket]
    pid: int = 0
    """0: none runs now."""
    pidfd: int = -1
    process: subprocess.Popen[bytes] | None = None
    """None of one that another supervisor started."""
    channel: asyncio.Transport | None = None
    has_applied: bool = False
    applied: int = 0
    connections: int = 0
    is_leaving: bool = False
    """It takes no more connections, and is not started again."""
    started: float = 0.0
    falls: int = 0
    can_be_asked: bool = True
    """It is of this release, and knows the question."""
    has_spoken: bool = False
    unanswered: int = 0
    """So often it was asked whether it lives since it last said anything."""

    def tell(self, line: bytes) -> None:
        if self.channel is not None and not self.channel.is_closing():
            self.channel.write(line)

    def heard(self) -> None:
        self.has_spoken, self.unanswered = True, 0

    def ask(self) -> bool:
        """Asks for a sign of life; whether there is still hope of one.

        Questions are counted, not time: a supervisor that was stopped itself has heard nobody.
        """
        if self.channel is None or not self.can_be_asked:
            return True
        if self.unanswered >= (PATIENCE if self.has_spoken else PATIENCE_AT_START):
            return False
        self.unanswered += 1
        self.tell(inner.line(inner.Ask()))
        return True

    def meet_anew(self, home: str) -> None:
        """A place where the next supervisor finds it: the one that it had may be gone. Raises OSError."""
        made = succession.meeting_socket(home, self.row)
        self.meeting.close()
        self.meeting = made

    def start(self, memory: int, kicks: tuple[int, ...]) -> socket.socket:
        """Starts the process; the supervisor's end of what they share."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        certificate = self.generation.certificate
        start = inner.Start(
            settings=self.generation.settings,
            row=self.row,
            workers=len(self.generation.members),
            listeners=tuple(listener.fileno() for listener in self.listeners),
            channel=theirs.fileno(),
            meeting=self.meeting.fileno(),
            memory=memory,
            kicks=kicks,
            certificate=certificate.fds if certificate is not None else (),
            digest=self.generation.digest,
            release=__version__,
        )
        command = [sys.executable, "-m", "bireme.router", "--worker", msgspec.json.encode(start).decode()]
        passed = (*start.listeners, start.channel, start.meeting, memory, *kicks, *start.certificate)
        self.applied, self.started = 0, time.monotonic()
        self.can_be_asked, self.has_spoken, self.unanswered = True, False, 0
        self.process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)
        theirs.close()
        self.pid, self.pidfd = self.process.pid, os.pidfd_open(self.process.pid)
        return ours

    def adopt(self, orphan: succession.Orphan) -> None:
        """It runs already. Raises ProcessLookupError when it has just ended."""
        self.pidfd = os.pidfd_open(orphan.handed.pid)
        self.pid = orphan.handed.pid
        self.is_leaving = orphan.handed.is_draining
        self.can_be_asked = orphan.handed.start.release == __version__

    def fell(self) -> str:
        """The process has ended; how, in words."""
        code = self.process.wait() if self.process is not None else None
        os.close(self.pidfd)
        self.pid, self.pidfd, self.process = 0, -1, None
        if self.channel is not None:
            self.channel.abort()
            self.channel = None
        self.falls = self.falls + 1 if time.monotonic() - self.started < _SOON_S else 0
        return f"with {code}" if code is not None else "without a supervisor that could see how"

    @property
    def pause_s(self) -> float:
        """How long to wait before it is started again."""
        return min(_LATEST_S, 0.1 * 2**self.falls) if self.falls else 0.0

    def kill(self) -> None:
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def forget(self, home: str) -> None:
        """It will not be started again: nobody is to look for it."""
        self.meeting.close()
        with suppress(OSError):
            os.unlink(succession.meeting_path(home, self.row))
