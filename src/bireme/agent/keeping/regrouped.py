"""A keeper under another of the user's groups, on a cluster without root: `sg` starts it.

Without root no process may take on a group, not even one of its user's own; the setuid programs of the system may,
for members and without a password. So the keeper of a job that was submitted under such a group (`sg`, `newgrp`) is
itself started through `sg`, and all that it starts has the group. Everything else is as with other keepers: tasks,
their environment, streams, signals and exit codes pass through the channel, not through `sg`.

Called by `keepers`; `python -m bireme.agent.keeping.regrouped` is what `sg` runs. No word of a user's is in a command
line: the shell that `sg` starts gets one fixed line. Where it does not succeed (no member, a password is asked for, no
such program, a user namespace, in which setuid programs have no power) the caller does without, and the job is told.

Invariant: a keeper is handed out only when it has said that it runs under the group, and nothing waits for that but the
job which needs it.
"""

from __future__ import annotations

import grp
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bireme.agent.keeping.keeper import CHANNEL_FD, serve_channel
from bireme.agent.messages.lines import decode_line, encode_line
from bireme.agent.system.descriptors import close_all_but, restore_limit
from bireme.agent.system.forking import fork_deaf
from bireme.agent.system.loop import READ, Loop, Timer

_COMMAND = 'exec "$BIREME_PYTHON" -P -m bireme.agent.keeping.regrouped'
"""What `sg` has a shell run."""
_SYSTEM_PATH = "/usr/bin:/bin"
_PATIENCE_S = 20.0
"""Only the job waits for it, and whatever else its agent does goes on."""


@dataclass(frozen=True, slots=True)
class Regrouped:
    """A keeper under the group, ready for orders."""

    child: int
    """The process that this agent started: `sg`, which waits for the keeper, or the keeper itself."""
    keeper: int
    channel: socket.socket


class Regrouping:
    """A keeper that `sg` is asked for, until it has said that it runs under the group; nobody waits for it meanwhile.

    `done` is told what came of it, once, from the loop: the keeper, or None where it cannot be had.
    """

    def __init__(
        self, loop: Loop, gid: int, child: int, channel: socket.socket, done: Callable[[Regrouped | None], None]
    ) -> None:
        self._loop, self._gid, self._child, self._channel, self._done = loop, gid, child, channel, done
        self._has_ended = False
        loop.watch(channel.fileno(), READ, lambda _: self._speaks())
        loop.on_exit(child, lambda _: self._ended())
        self._patience: Timer = loop.call_later(_PATIENCE_S, self._refused)

    def abandon(self) -> None:
        """A keeper that comes up all the same ends with its channel."""
        self._patience.cancel()
        self._loop.unwatch(self._channel.fileno())
        self._channel.close()
        if not self._has_ended:
            os.kill(self._child, signal.SIGKILL)

    def _ended(self) -> None:
        self._has_ended = True

    def _speaks(self) -> None:
        told = _first_words(self._channel)
        if self._has_ended or told.get("gid") != self._gid:
            self._refused()
            return
        self._patience.cancel()
        self._loop.unwatch(self._channel.fileno())
        self._done(Regrouped(self._child, told["keeper"], self._channel))

    def _refused(self) -> None:
        self.abandon()
        self._done(None)


def begin_regrouped(
    loop: Loop,
    gid: int,
    enter: Callable[[], None],
    environment: Mapping[str, str],
    done: Callable[[Regrouped | None], None],
) -> Regrouping | None:
    """Asks for a keeper whose group is `gid`; None where it is clear at once that there is none. `enter`: into its
    cgroup. Raises OSError when no process can be made."""
    program = shutil.which("sg", path=_SYSTEM_PATH)
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        return None
    if program is None or group.startswith("-"):
        return None
    ours, theirs = socket.socketpair()
    try:
        child = fork_deaf()
        if child == 0:
            _become_sg(program, group, theirs, enter, environment)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return Regrouping(loop, gid, child, ours, done)


def _first_words(channel: socket.socket) -> dict[str, int]:
    try:
        said = channel.recv(4096)
        return dict(decode_line(said.rstrip(b"\n"))) if said.endswith(b"\n") else {}
    except (OSError, ValueError):
        return {}


def _become_sg(
    program: str, group: str, channel: socket.socket, enter: Callable[[], None], environment: Mapping[str, str]
) -> None:
    """In a fork of the agent. Without a terminal and with nothing to read, a password is asked for in vain."""
    try:
        os.setsid()
        fd = channel.detach()
        if fd != CHANNEL_FD:
            os.dup2(fd, CHANNEL_FD)
        os.set_inheritable(CHANNEL_FD, True)
        null_fd = os.open(os.devnull, os.O_RDWR)
        for number in range(2):  # what it complains of is for the agent's log
            os.dup2(null_fd, number)
        close_all_but(range(CHANNEL_FD + 1))
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        enter()
        restore_limit()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(program, ["sg", group, "-c", _COMMAND], {**environment, "BIREME_PYTHON": sys.executable})
    finally:
        os._exit(127)


def main() -> None:
    """What `sg` starts: says who it is, and is a keeper from then on."""
    channel = socket.socket(fileno=CHANNEL_FD)
    channel.sendall(encode_line({"keeper": os.getpid(), "gid": os.getegid()}))
    serve_channel(channel)


if __name__ == "__main__":
    main()
