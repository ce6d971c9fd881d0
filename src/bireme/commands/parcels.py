"""What a thin command and the daemon send each other: parts, each with a letter and its length.

A part is `LETTER LENGTH`, a line end, and so many bytes; parts follow each other. Read and written by `cli/thin.py`,
whose imports are the time that a command takes, and by `api/commands.py`; so nothing is imported here.

What a command sends:
  a  a word of its command line        v  a variable, NAME=VALUE          h  the name of its machine
What it is answered with:
  o  text for standard output          e  text for standard error         x  its exit code, in digits; the last
  n  run it near: it needs the process of who asked (the only part)
"""

from __future__ import annotations

ARGUMENT, VARIABLE, HOST = "a", "v", "h"
OUTPUT, ERROR, EXIT, NEAR = "o", "e", "x", "n"


class BadParcelError(ValueError):
    """It is none."""


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
    return parts
