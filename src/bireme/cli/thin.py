"""Commands that answer at once: words and variables go to the daemon, which is warm; its text is printed.

What the launchers call, and `main` for the commands in `ANSWERED`. People submit and look in loops, so it costs little
more than the start of Python: a socket and one request, by hand (`socket`, `json` and `contextlib` each cost more to
import than the daemon takes to answer). `tests/tidy` holds what may be imported.

Whatever is out of the ordinary (no daemon, a refusal, a terminal that is not UTF-8, something that has to be near the
terminal) is not handled here: `ask` returns None, and the command runs in this process (`cli/main.py`).

The daemon may be anybody's: it is given the files that the user's words name and no others (`named_files`), and what it
says reaches a terminal as plain text.

Invariants: nothing is printed before the whole answer is there. A command that changes something is not run a second
time when its answer was lost.
"""

from __future__ import annotations

import _socket
import os
import sys
from stat import S_ISREG

from bireme.cli.named_files import may_be_read
from bireme.commands import parcels
from bireme.daemon.paths import Paths

ANSWERED = frozenset({"sbatch", "scancel", "squeue", "sinfo", "sacct", "seff", "sprio", "sshare", "sstat", "scontrol"})
"""Commands that the daemon answers."""
_CHANGES = frozenset({"scancel", "scontrol"})
"""Those of them that may change something. (What `sbatch` sends again is the same job, by its key.)"""
KEPT: dict[str, bytes] = {}
"""What was used up here and is needed by the command when it runs near after all, by places with NULs between them:
standard input (""), pipes, whatever is no file that can be read again; and the key of the submission (KEY), and that
the daemon had it and ended before it answered (LOST)."""
KEY, LOST = "\0key", "\0lost"
_MOST_FILES = 8
_LARGEST_READ = 1 << 26
"""Of a file; the daemon takes less, and says so."""
_NOT_RUN = (b"HTTP/1.1 4", b"HTTP/1.1 503 ")
"""How answers begin that say that nothing was done: what was sent is refused, or who sent it is not let in."""
_SILENT_S, _GIVEN_UP_S = 10.0, 100.0
_IN_ROW_S = 2
"""How long the daemon is waited for without a word, and at all; as `client/transport.py` does."""
_READ_BYTES = 1 << 18
_INTERRUPTED = 130
_HARMLESS = bytes([*b"\n\t", *range(0x20, 0x7F)])


def run_and_exit(name: str) -> None:
    """What the launchers call."""
    open_closed_streams()
    code = ask(name, sys.argv[1:])
    if code is None:
        from bireme.cli.main import run_and_exit as run_near  # late: it costs what this module saves

        run_near(name)
    os._exit(code or 0)


def open_closed_streams() -> None:
    """What is written to standard streams that are closed (`squeue >&-`) goes nowhere, as with Slurm's commands; and no
    socket gets their numbers."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        os.set_inheritable(opened, True)
    os.close(opened)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def ask(name: str, argv: list[str]) -> int | None:
    """Has the daemon run the command and prints what it says; its exit code. None: it has to run near."""
    if name not in ANSWERED or argv in (["--version"], ["-V"]) or not _is_plain():
        return None
    try:
        body = _said(name, argv)
        for _ in range(_MOST_FILES):
            parts = _exchange(name, _request(name, body))
            if parts and parts[0][0] == parcels.WANTED and _is_named(name, argv, parts[0][1]):
                body += _file(parts[0][1])
            else:
                break
        if not parts or parts[-1][0] != parcels.EXIT:
            return None
        awaited = [content for letter, content in parts if letter == parcels.AWAITED]
        code = _print(name, [part for part in parts if part[0] != parcels.AWAITED])
        return _end_as(name, awaited[0]) if awaited and not code else code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _end_as(name: str, job: bytes) -> int:
    from bireme.cli.awaiting import end_as  # late: hardly any command waits for what it submitted

    return end_as(name, job.decode("ascii", "replace"))


def _is_plain() -> bool:
    """Whether text is bytes of UTF-8 here, as it is in the daemon."""
    streams = (sys.stdout, sys.stderr)
    return sys.getfilesystemencoding() == "utf-8" and all(
        stream is not None and stream.encoding.lower() == "utf-8" for stream in streams
    )


def _said(name: str, argv: list[str]) -> bytes:
    """What the daemon has to know of this process."""
    pack = parcels.pack
    read = ("SLURM_", "BIREME_JOB", f"{name.upper()}_")
    parts = [pack(parcels.ARGUMENT, os.fsencode(word)) for word in argv]
    parts += [
        pack(parcels.VARIABLE, os.fsencode(f"{key}={value}"))
        for key, value in os.environ.items()
        if name == "sbatch" or key == "TZ" or key.startswith(read)
    ]
    parts.append(pack(parcels.HOST, os.fsencode(os.uname().nodename)))
    if name == "sbatch":
        key = KEPT[KEY] = os.urandom(16).hex().encode()
        parts.append(pack(parcels.FOLDER, os.fsencode(working_folder())))
        parts.append(pack(parcels.UMASK, b"%d" % current_umask()))
        parts.append(pack(parcels.NICE, b"%d" % os.getpriority(os.PRIO_PROCESS, 0)))
        parts.append(pack(parcels.KEY, key))
    return b"".join(parts)


def working_folder() -> str:
    """As the kernel names it, like Slurm; empty where it has no name any more: it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _is_named(name: str, argv: list[str], places: bytes) -> bool:
    return may_be_read(name, argv, os.environ.get("SLURM_HOSTFILE", ""), os.environ.get("PATH", ""), places)


def _file(places: bytes) -> bytes:
    """What the first of these holds that can be read, or why the last cannot be."""
    if places == b"":
        KEPT[""] = _content(0)
        return parcels.pack_file(parcels.FILE, places, KEPT[""])
    names = places.split(b"\0")
    found = [name for name in names if os.path.isfile(name) and os.access(name, os.R_OK)]
    try:
        opened = os.open(found[0] if found else names[-1], os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = _content(opened)
            if not S_ISREG(os.fstat(opened).st_mode):
                KEPT[os.fsdecode(places)] = content
            return parcels.pack_file(parcels.FILE, places, content)
        finally:
            os.close(opened)
    except OSError as error:
        return parcels.pack_file(parcels.MISSING, places, b"%d" % (error.errno or 0))


def _content(opened: int) -> bytes:
    """All that it holds, in however small pieces it comes."""
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(opened, _READ_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > _LARGEST_READ:
            break
    return b"".join(pieces)


def _request(name: str, body: bytes) -> bytes:
    able = f"?{parcels.WAITS}=yes" if name == "sbatch" else ""
    head = (
        f"POST /v1/commands/{name}{able} HTTP/1.1\r\nHost: bireme\r\nUser-Agent: {name}\r\nConnection: close\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _exchange(name: str, request: bytes) -> list[tuple[str, bytes]]:
    """The parts of the answer; none where there is no answer that is good, and nothing was done."""
    path, sent, answer = Paths().socket, False, b""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        _join_row(sock, path)
        sock.settimeout(_GIVEN_UP_S)
        sock.sendall(request)
        sent = True
        answer = _receive(name, sock)
    except OSError:
        pass  # told below, or by the command that runs near
    finally:
        sock.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 200 ") and b"content-length: %d" % len(body) in head.lower():
        try:
            parts = parcels.unpack(body)
        except parcels.BadParcelError:
            parts = []
        if parts and (parts[0][0] in (parcels.NEAR, parcels.WANTED) or _is_exit(*parts[-1])):
            return parts
    if sent and name in _CHANGES and not head.startswith(_NOT_RUN):
        return [(parcels.EXIT, _lost(name, path))]
    if sent and not head and name == "sbatch":
        KEPT[LOST] = b"yes"
    return []


def _join_row(sock: _socket.socket, path: str) -> None:
    """Connects, and where many others do, waits in the kernel's row (as `client/transport`). Raises OSError."""
    wait = _IN_ROW_S.to_bytes(8, sys.byteorder) + bytes(8)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, wait)
    sock.connect(path)
    sock.getpeername()  # a signal may have ended the wait


def _is_exit(letter: str, content: bytes) -> bool:
    return letter == parcels.EXIT and content.isdigit()


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
    """The daemon took it and gave no whole answer: whether it was done is not known, so it is not sent again."""
    _say(name, "error: Unable to contact slurm controller (connect failure)")
    _say(name, f"the daemon at {path} failed before it had answered: look whether it was done (see: bireme status)")
    return b"1"


def _say(name: str, text: str) -> None:
    try:  # noqa: SIM105  # `contextlib` takes longer to import than the daemon to answer
        os.write(2, os.fsencode(f"{name}: {text}\n"))
    except OSError:
        pass  # nobody listens


def _print(name: str, parts: list[tuple[str, bytes]]) -> int:
    for letter, content in parts[:-1]:
        view = memoryview(_plain(1 if letter == parcels.OUTPUT else 2, content))
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
    return int(parts[-1][1]) & 0xFF


def _plain(descriptor: int, content: bytes) -> bytes:
    """As text near is (`plain_streams`), where a terminal would obey it. The daemon has seen to its own already."""
    if not content.translate(None, _HARMLESS) or not os.isatty(descriptor):
        return content
    from bireme.commands.shown import SHOWN  # late, as the next: most text has nothing to hide
    from bireme.slurm.formats.visible import visible_lines

    return visible_lines(content.decode("utf-8", "surrogateescape")).encode("utf-8", SHOWN)
