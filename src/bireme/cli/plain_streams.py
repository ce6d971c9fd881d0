"""The commands' output and errors as plain text: nothing that they show of others reaches a terminal as an order.

Set by `main` around every command. What a command has of others' records is one line deep in it somewhere; here it is
caught wherever it comes out. Bytes (`sys.stdout.buffer`), which the output of jobs is, pass untouched.

Invariants: the streams are as before when the command is over; no text is so odd that a command dies of showing it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, TextIO, cast

from bireme.commands.shown import SHOWN
from bireme.slurm.formats.visible import visible_lines


class _Plain:
    """A text stream, with everything else of the one behind it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible_lines(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self._stream.write(visible_lines("".join(lines)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_streams(*, draws: bool = False) -> Iterator[None]:
    """`draws`: a command that uses colours; it makes what it shows visible by itself."""
    before = sys.stdout, sys.stderr
    files = [stream for stream in before if isinstance(stream, TextIOWrapper)]
    strictness = [stream.errors for stream in files]
    for stream in files:
        stream.reconfigure(errors=SHOWN)
    if not draws:
        sys.stdout, sys.stderr = (cast(TextIO, _Plain(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream, errors in zip(files, strictness):
            if not stream.closed:
                stream.reconfigure(errors=errors)
