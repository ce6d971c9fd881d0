"""What a thin command and the daemon send each other: parts, each with a letter and its length.

A part is `LETTER LENGTH`, a line end, and so many bytes; parts follow each other. Read and written by `cli/thin.py`,
whose imports are the time that a command takes, and by `api/routes/commands.py`; so nothing is imported here.

What a command sends:
  a  a word of its command line        v  a variable, NAME=VALUE          h  the name of its machine
  d  its working folder                u  its umask, in digits            p  its nice value, in digits
  k  the key of a submission           f  a file: places, and what it holds
  m  a file that cannot be read: places, and the number of the error
What it is answered with:
  o  text for standard output          e  text for standard error         x  its exit code, in digits; the last
  j  a job whose end it is to wait for by itself, and to end as that does (only where it said that it can: `WAITS`)
  n  run it near: it needs the process of who asked (the only part)
  w  a file is wanted: places (the only part); the same is sent again, with the file

Places are the names that a file may have, the first that can be read; NULs between them, two after the last. An empty
name is standard input.
"""

from __future__ import annotations

ARGUMENT, VARIABLE, HOST, FOLDER, UMASK, NICE, KEY, FILE, MISSING = "a", "v", "h", "d", "u", "p", "k", "f", "m"
OUTPUT, ERROR, EXIT, NEAR, WANTED, AWAITED = "o", "e", "x", "n", "w", "j"
WAITS = "waits"
"""In the query of the request: this command knows how to wait for a job."""


MOST_PARTS = 8192
"""A process has fewer words and variables; each part takes some time to read."""


class BadParcelError(ValueError):
    """What came is no parcel."""


def pack(letter: str, content: bytes) -> bytes:
    return b"%s %d\n%s" % (letter.encode(), len(content), content)


def unpack(data: bytes) -> list[tuple[str, bytes]]:
    """The parts in order; raises BadParcelError."""
    parts: list[tuple[str, bytes]] = []
    at = 0
    while at < len(data):
        end = data.find(b"\n", at, at + 32)
        letter, _, digits = data[at : max(at, end)].partition(b" ")
        if end < 0 or len(letter) != 1 or not letter.isalpha() or not digits.isdigit():
            raise BadParcelError("a part begins with its letter and its length")
        at = end + 1 + int(digits)
        if at > len(data):
            raise BadParcelError("a part is shorter than it says")
        parts.append((letter.decode("ascii"), data[end + 1 : at]))
        if len(parts) > MOST_PARTS:
            raise BadParcelError(f"there are more than {MOST_PARTS} parts")
    return parts


def pack_file(letter: str, places: bytes, content: bytes) -> bytes:
    return pack(letter, places + b"\0\0" + content)


def unpack_file(content: bytes) -> tuple[bytes, bytes]:
    """The places, and what is said of the file; raises BadParcelError."""
    places, nuls, said = content.partition(b"\0\0")
    if not nuls:
        raise BadParcelError("a file has places")
    return places, said
