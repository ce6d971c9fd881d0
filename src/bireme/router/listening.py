"""Listening sockets of the shared port, and the certificate that is shown on them.

Made by the supervisor, which keeps them: a worker that is started again, and the workers that follow others, accept on
the same sockets, so that no connection is lost that waits in one. The certificate's files are read once, into memory
that workers inherit: all of them show the same one, whatever becomes of the files.

Invariant: what is returned listens (is a certificate with its key); else ListeningError says what to do.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from bireme.router.messages import certificate_digest

_BACKLOG = 4096
_LISTENS = "0A"
"""The state of a listening socket in the kernel's table."""


class ListeningError(Exception):
    """The failure to listen at an address. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key, as descriptors of memory."""

    certificate: int
    key: int
    digest: str

    @property
    def fds(self) -> tuple[int, int]:
        return self.certificate, self.key

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def read_certificate(certificate: str, key: str) -> Certificate:
    """Raises ListeningError."""
    contents = []
    for path in (certificate, key):
        try:
            with open(path, "rb") as file:
                contents.append(file.read())
        except OSError as error:
            raise ListeningError(f"{path}: {error.strerror}") from error
    found = Certificate(_in_memory(contents[0]), _in_memory(contents[1]), certificate_digest(*contents))
    try:
        tls(found.fds)
    except OSError as error:  # ssl.SSLError is one
        found.close()
        raise ListeningError(_unusable(certificate, key, error)) from error
    return found


def _in_memory(content: bytes) -> int:
    fd = os.memfd_create("bireme-router-tls", os.MFD_CLOEXEC)
    os.write(fd, content)
    return fd


def _unusable(certificate: str, key: str, error: OSError) -> str:
    reason = str(getattr(error, "reason", "") or "")
    if reason == "KEY_VALUES_MISMATCH":
        return f"{key} is not the key of the certificate {certificate}"
    said = f" ({reason.lower().replace('_', ' ')})" if reason else ""
    return f"{certificate} and {key} are no certificate and its key in PEM{said}"


def tls(fds: Sequence[int]) -> ssl.SSLContext | None:
    """Of a certificate's descriptors; None where there are none. Raises OSError."""
    if not fds:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate, key = (f"/proc/self/fd/{fd}" for fd in fds)
    context.load_cert_chain(certificate, key, password=lambda: b"")  # else one with a password asks the terminal
    context.set_alpn_protocols(["http/1.1"])
    return context


def listeners(
    host: str, port: int, count: int, kept: Sequence[socket.socket], own: Sequence[socket.socket] = ()
) -> list[socket.socket]:
    """So many listening sockets at one port: those that are kept (there already), and new ones. Raises ListeningError.

    `own`: all at which this router listens, perhaps at that port of another address (127.0.0.1, then 0.0.0.0).
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made: list[socket.socket] = []
    try:
        if kept:
            port = kept[0].getsockname()[1]
        else:
            port = _port_of_nobody_else(family, host, port, own)
        for _ in range(count - len(kept)):
            listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            made.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
    except OSError as error:
        for listener in made:
            listener.close()
        raise ListeningError(_cannot_listen(host, port, error)) from error
    return [*kept, *made]


def _port_of_nobody_else(family: int, host: str, port: int, own: Sequence[socket.socket]) -> int:
    """That port, or where it is 0 one that the kernel chooses. Raises OSError where others listen there: they may
    share theirs (SO_REUSEPORT), and then requests would be too."""
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            alone.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_ours_alone(port, own):
                raise
            return port
        return int(alone.getsockname()[1])


def _is_ours_alone(port: int, own: Sequence[socket.socket]) -> bool:
    """Whether nobody but this router listens at that port, at whatever address."""
    return _listening_at(port) <= {os.fstat(each.fileno()).st_ino for each in own}


def _listening_at(port: int) -> set[int]:
    """Inodes of the sockets that do."""
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}") as file:
                rows = [line.split() for line in file]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        found.update(
            int(row[9]) for row in rows[1:] if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port
        )
    return found


def is_at(listener: socket.socket, host: str, port: int) -> bool:
    """Whether it listens there. Port 0 is any."""
    name = listener.getsockname()
    return bool(name[0] == host) and port in (0, name[1])


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is taken by another program: name another (setting router.address; of a router by itself, --port)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        remedy = "name another (setting router.address; of a router by itself, --host)"
        return f"{host} is no address of this machine: {remedy}"
    if error.errno == errno.EACCES:
        remedy = "name a port above 1023 (setting router.address; of a router by itself, --port)"
        return f"{where} is not for this user: {remedy}"
    return f"cannot listen at {where}: {error.strerror}"
