"""The process that serves the pages: its socket, its start, its end.

The daemon listens, and hands the socket to one process after another: who comes while a dead one is replaced waits in
the row of the same socket. The process ends with the daemon, however that ends: it reads a pipe whose other end only
the daemon has. Invariant: nothing secret is in its arguments or its environment.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from bireme.api.cluster import PagesError
from bireme.daemon.interpreter import own_environment
from bireme.daemon.web.plan import WebPlan

_BACKLOG = 256
_END_S = 5.0
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
"""Variables of the daemon's that it gets: others may hold what is nobody else's business."""


def listener(plan: WebPlan, remembered: int) -> socket.socket:
    """A listening socket; `remembered`: the port that it had, where the kernel may choose one. Raises PagesError."""
    for port in [remembered, 0] if not plan.port and remembered else [plan.port]:
        try:
            return _bound(plan.host, port)
        except OSError as error:
            failed = error
    taken = "; another program has this port: name another" if failed.errno == errno.EADDRINUSE else ""
    raise PagesError(f"the pages cannot be served at {plan.host}:{plan.port} (web.listen): {failed.strerror}{taken}")


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


@dataclass(slots=True)
class WebProcess:
    """One that was started. Closing `lifeline` ends it."""

    child: subprocess.Popen[bytes]
    lifeline: int

    @property
    def has_ended(self) -> bool:
        return self.child.poll() is not None

    def end(self) -> None:
        """Returns when it is gone; waits for that."""
        with suppress(OSError):
            os.close(self.lifeline)
        self.lifeline = -1
        try:
            self.child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def start(plan: WebPlan, sock: socket.socket, api: str, log: str) -> WebProcess:
    """Starts one and returns at once. Raises OSError."""
    read_end, lifeline = os.pipe2(os.O_CLOEXEC)
    words = ["--api", api, "--listener", str(sock.fileno()), "--prefix", plan.prefix]
    if plan.url.startswith("https:"):
        words.append("--behind-tls")
    if plan.tls_certificate:
        words += ["--tls-certificate", plan.tls_certificate, "--tls-key", plan.tls_key]
    try:
        with open(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as said:
            child = subprocess.Popen(
                [sys.executable, "-m", "bireme.web", *words],
                stdin=read_end,
                stdout=said,
                stderr=said,
                cwd="/",
                env={name: value for name, value in own_environment().items() if name in _KEPT},
                pass_fds=(sock.fileno(),),
                start_new_session=True,
            )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(read_end)
    return WebProcess(child, lifeline)
