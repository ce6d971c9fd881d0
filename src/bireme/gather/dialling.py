"""How a gatherer reaches the daemon: a socket file of its home, or TLS from another machine with what a pass says.

A pass is a private file that `bireme node token` makes: where the daemon listens, its certificate, and a token that
says for which nodes its bearer may speak. The certificate is the daemon's own: exactly this one is trusted, whatever
names it has, and no authority of the machine's.
Invariant: the token is read anew for each connection, and goes nowhere but to who has that certificate's key.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bireme.agent.messages.protocol import socket_path
from bireme.agent.pod.gangway import keep_alive

Dialled = tuple[asyncio.StreamReader, asyncio.StreamWriter, str]
"""A connection, and the token to say on it."""
Dial = Callable[[], Awaitable[Dialled]]
_DIAL_S = 20.0
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for."""
_PASS_BYTES = 64 * 1024


class Pass(msgspec.Struct, frozen=True):
    """What a node needs to be let in."""

    address: str
    """`HOST:PORT`."""
    certificate: str
    """The daemon's, as PEM."""
    token: str


class PassError(ValueError):
    """A pass that cannot be used; the text says what to do."""


def read_pass(file: Path) -> Pass:
    """Raises PassError."""
    try:
        with open(file, "rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_PASS_BYTES)
    except OSError as error:
        raise PassError(f"{file}: {error.strerror}; `bireme node token` on the daemon's machine makes one") from error
    if stat.S_IMODE(mode) & 0o077:
        raise PassError(f"{file} can be read by others: chmod 600 {file}")
    try:
        found = msgspec.json.decode(text, type=Pass)
        host_and_port(found.address)
    except (msgspec.DecodeError, ValueError) as error:
        raise PassError(f"{file} is not what `bireme node token` writes: {error}") from error
    return found


def host_and_port(address: str) -> tuple[str, int]:
    """`HOST:PORT`, `[::1]:PORT`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def local(path: str) -> Dial:
    """To a daemon of this machine."""

    async def dial() -> Dialled:
        with socket_path(path) as name:
            reader, writer = await asyncio.open_unix_connection(name)
        return reader, writer, ""

    return dial


def remote(file: Path) -> Dial:
    """To the daemon that a pass names. The file may be replaced while this runs."""

    async def dial() -> Dialled:
        found = await asyncio.to_thread(read_pass, file)
        host, port = host_and_port(found.address)
        async with asyncio.timeout(_DIAL_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=pinned(found.certificate))
        keep_alive(writer)
        return reader, writer, found.token

    return dial


def pinned(certificate: str) -> ssl.SSLContext:
    """Trusts this certificate and no other. Raises PassError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it is the daemon's own and known beforehand: its names say nothing
    context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)  # nor does a node's clock, which may be years off
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError) as error:
        raise PassError(f"the certificate in the pass is damaged: {error}") from error
    return context
