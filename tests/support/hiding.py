"""A program that hides from whoever would end it: `python hiding.py WAY READY`, descriptor 9 open on a locked file.

Every process of it has descriptor 9 and so keeps the lock of that file: whether one is left anywhere, under whatever
pid, name or namespace, is whether somebody else gets the lock. READY is made once it is hidden. Tests copy this file
to where jobs of other users can read it; it imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

_LOCKED_FD = 9
_LONG_S = 3600
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_CHAIN_S = 600.0


def ready() -> None:
    open(sys.argv[2], "w").close()


def linger() -> NoReturn:
    ready()
    while True:
        time.sleep(_LONG_S)


def become_sleep(env: dict[str, str] | None = None, name: str = "sleep", program: str = "") -> NoReturn:
    ready()
    path = program or shutil.which("sleep") or "/bin/sleep"
    os.execve(path, [name, str(_LONG_S)], dict(os.environ) if env is None else env)


def daemonize() -> None:
    """As textbooks have it: two forks, a session of its own, another folder."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")


def cleared_environment() -> None:
    daemonize()
    become_sleep(env={})


def setsid() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    linger()


def double_fork() -> None:
    daemonize()
    linger()


def renamed() -> None:
    daemonize()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"kworker/0:1", 0, 0, 0)
    become_sleep(env={}, name="[kworker/0:1]")


def deaf() -> None:
    daemonize()
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    become_sleep(env={})


def stopped() -> None:
    daemonize()
    ready()
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


def fork_chain() -> None:
    """Never two looks at the same process: each one leaves its session, starts the next and ends.

    Not for ever: where a test finds that nothing can end it, the machine is not to be left with it.
    """
    until = time.monotonic() + _CHAIN_S
    daemonize()
    ready()
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        os.setsid()


def vfork() -> None:
    """The parent sleeps in the kernel until its child execs, which it never does."""
    daemonize()
    ready()
    libc = ctypes.CDLL(None)
    libc.vfork()
    while True:
        time.sleep(_LONG_S)


def namespace() -> None:
    """In a pid namespace of its own, where it is the first process."""
    daemonize()
    words = ["unshare", "--pid", "--fork", "sh", "-c", f"touch '{sys.argv[2]}'; sleep {_LONG_S} & wait"]
    if os.geteuid() != 0:
        words[1:1] = ["--user"]
    os.execvpe(words[0], words, {"PATH": os.environ["PATH"]})


def at_exec() -> None:
    """Becomes another program all the time: its environment is empty whenever somebody looks."""
    daemonize()
    path = f"{sys.argv[2]}.sh"
    with open(path, "w") as file:
        file.write('#!/bin/sh\nexec "$0"\n')
    os.chmod(path, 0o755)
    ready()
    os.execve(path, [path], {})


def setuid_program() -> None:
    """Its own user's, and yet a program whose environment the kernel shows to nobody."""
    path = f"{sys.argv[2]}.sleep"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", path)
    os.chmod(path, 0o755 | stat.S_ISUID | stat.S_ISGID)
    daemonize()
    become_sleep(env={}, program=path)


def first_thread_ended() -> None:
    """A process table shows a zombie."""
    daemonize()
    started = threading.Event()

    def live_on() -> None:
        started.set()
        linger()

    threading.Thread(target=live_on).start()
    started.wait()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit, of this thread alone


def own_subreaper() -> None:
    """Collects its own orphans, so that they go to nobody above it while it lives."""
    daemonize()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.fork() == 0:
        daemonize()
    linger()


WAYS: dict[str, Callable[[], None]] = {
    way.__name__: way
    for way in (
        cleared_environment,
        setsid,
        double_fork,
        renamed,
        deaf,
        stopped,
        fork_chain,
        vfork,
        namespace,
        at_exec,
        setuid_program,
        first_thread_ended,
        own_subreaper,
    )
}


def main() -> None:
    os.set_inheritable(_LOCKED_FD, True)
    sys.argv[2] = os.path.abspath(sys.argv[2])
    if os.fork() == 0:
        WAYS[sys.argv[1]]()
        os._exit(1)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)


if __name__ == "__main__":
    main()
