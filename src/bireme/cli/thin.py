"""Commands that answer at once: words and variables go to the daemon, which is warm; its text is printed.

What the launchers call, and `main` for the commands in `ANSWERED`. People submit and look in loops, so it costs little
more than the start of Python: a socket and one request, by hand (`socket`, `json` and `contextlib` each cost more to
import than the daemon takes to answer). `tests/tidy` holds what may be imported.

Whatever is out of the ordinary (no daemon, a refusal, a terminal that is not UTF-8, something that has to be near the
terminal) is not handled here: `ask` returns None, and the command runs in this process (`cli/main.py`).

Invariants: nothing is printed before the whole answer is there. A command that changes something is not run a second
time when its answer was lost.
"""

from __future__ import annotations

import _socket
import os
import sys

from bireme.commands import parcels
from bireme.daemon.paths import Paths

ANSWERED = frozenset({"squeue", "sinfo", "sacct", "sprio", "sshare", "sstat", "scontrol"})
"""Commands that the daemon answers."""
_CHANGES = frozenset({"scontrol"})
"""Those of them that may change something."""
_SILENT_S, _GIVEN_UP_S = 10.0, 100.0
"""How long the daemon is waited for without a word, and at all; as `client/transport.py` does."""
_READ_BYTES = 1 << 18
_INTERRUPTED = 130


def run_and_exit(name: str) -> None:
    """What the launchers call."""
    code = ask(name, sys.argv[1:])
    if code is None:
        from bireme.cli.main import run_and_exit as run_near  # late: it costs what this module saves

        run_near(name)
    os._exit(code or 0)


def ask(name: str, argv: list[str]) -> int | None:
    """Has the daemon run the command and prints what it says; its exit code. None: it has to run near."""
    if name not in ANSWERED or argv in (["--version"], ["-V"]) or not _is_plain():
        return None
    try:
        answer = _exchange(name, _request(name, argv))
        parts = parcels.unpack(answer) if answer is not None else []
        if not parts or parts[-1][0] != parcels.EXIT:
            return None
        return _print(name, parts)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except parcels.BadParcelError:
        return None


def _is_plain() -> bool:
    """Whether text is bytes of UTF-8 here, as it is in the daemon."""
    streams = (sys.stdout, sys.stderr)
    return sys.getfilesystemencoding() == "utf-8" and all(
        stream is not None and stream.encoding.lower() == "utf-8" for stream in streams
    )


def _request(name: str, argv: list[str]) -> bytes:
    pack = parcels.pack
    read = ("SLURM_", "BIREME_JOB", f"{name.upper()}_")
    parts = [pack(parcels.ARGUMENT, os.fsencode(word)) for word in argv]
    parts += [
        pack(parcels.VARIABLE, os.fsencode(f"{key}={value}"))
        for key, value in os.environ.items()
        if key == "TZ" or key.startswith(read)
    ]
    parts.append(pack(parcels.HOST, os.fsencode(os.uname().nodename)))
    body = b"".join(parts)
    head = (
        f"POST /v1/commands/{name} HTTP/1.1\r\nHost: bireme\r\nUser-Agent: {name}\r\nConnection: close\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _exchange(name: str, request: bytes) -> bytes | None:
    """The body of the answer; None where there is none that is good."""
    path, sent, answer = Paths().socket, False, b""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(_GIVEN_UP_S)
        sock.connect(path)
        sock.sendall(request)
        sent = True
        answer = _receive(name, sock)
    except OSError:
        pass  # told below, or by the command that runs near
    finally:
        sock.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 200 ") and b"content-length: %d" % len(body) in head.lower():
        return body
    if sent and name in _CHANGES and not head:
        return _lost(name, path)
    return None


def _receive(name: str, sock: _socket.socket) -> bytes:
    """Until the daemon closes; raises OSError when it says nothing."""
    pieces: list[bytes] = []
    sock.settimeout(_SILENT_S)
    while True:
        try:
            piece = sock.recv(_READ_BYTES)
        except TimeoutError:
            if sock.gettimeout() != _SILENT_S:
                raise
            pid = int.from_bytes(sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)[:4], sys.byteorder)
            _say(
                name, f"the daemon (pid {pid}) has not answered for {_SILENT_S:g} s; still waiting (see: bireme doctor)"
            )
            sock.settimeout(_GIVEN_UP_S - _SILENT_S)
            continue
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _lost(name: str, path: str) -> bytes:
    """The daemon took it and did not answer: whether it was done is not known, so it is not sent again."""
    _say(name, "error: Unable to contact slurm controller (connect failure)")
    _say(name, f"the daemon at {path} ended before it answered: look whether it was done (see: bireme status)")
    return parcels.pack(parcels.EXIT, b"1")


def _say(name: str, text: str) -> None:
    try:  # noqa: SIM105  # `contextlib` takes longer to import than the daemon to answer
        os.write(2, os.fsencode(f"{name}: {text}\n"))
    except OSError:
        pass  # nobody listens


def _print(name: str, parts: list[tuple[str, bytes]]) -> int:
    for letter, content in parts[:-1]:
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(1 if letter == parcels.OUTPUT else 2, view) :]
        except BrokenPipeError:
            if letter == parcels.OUTPUT:
                return 0  # `squeue | head` is no error
        except OSError as error:
            if letter == parcels.OUTPUT:
                _say(name, f"error: standard output: {error.strerror}")
                return 1
    return int(parts[-1][1])
