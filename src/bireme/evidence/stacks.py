"""Where the threads of a Python program stand, out of what faulthandler and py-spy write; and py-spy itself.

Each thread becomes one line of evidence with the source "trace", in words that rules can know:

    thread MainThread stands in all_reduce (torch/distributed/distributed_c10d.py:2806), called by step (train.py:71)

The innermost frame is named, and the innermost one outside of the standard library, site-packages and the interpreter's
own files, where that is another one. Invariant: at most `MOST_THREADS` of one text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bireme.evidence.whereabouts import ranks_text

MOST_THREADS = 200
_MOST_FRAMES = 100
_PY_SPY_S = 6.0
_LONGEST_LABEL = 24
_HEADS = (b"most recent call first", b" (idle)", b" (active")
_FAULT = re.compile(
    r"(?:(?:Current thread|Thread) )?(0x[0-9a-fA-F]+|Stack)(?: \[([^\]]{1,60})\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'\s*File "([^"]{1,500})", line (\d+) in (\S{1,200})')
_SPY = re.compile(r"Thread (0x[0-9A-Fa-f]+|\d+) \((?:idle|active)[^)]*\)(?:: \"([^\"]{0,60})\")?")
_SPY_FRAME = re.compile(r"\s{2,}(\S[^()]{0,200}?) \(([^()]{1,500}?):(\d+)\)\s*$")
_COLLECTIVE = re.compile(r"torch/distributed/|horovod/|mpi4py/|deepspeed/comm/")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|^<frozen|^(?:threading|queue|selectors|socket|ssl)\.py$"
)


@dataclass(frozen=True, slots=True)
class Frame:
    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({_short(self.file)}:{self.line})"


@dataclass(frozen=True, slots=True)
class Stack:
    """One thread's, the innermost frame first."""

    thread: str
    frames: tuple[Frame, ...]
    line: int
    """Of the text, counted from 0, in which it begins."""
    label: str = ""
    """What stands before it in that line: a rank, where several write into one file."""

    def __str__(self) -> str:
        inner = self.frames[0]
        own = next((frame for frame in self.frames if not _LIBRARY.search(frame.file)), inner)
        called = "" if own is inner else f", called by {own}"
        return f"thread {self.thread} stands in {inner}{called}"


def has_stacks(data: bytes) -> bool:
    return any(head in data for head in _HEADS)


def stack_lines(text: str, number: int) -> Iterator[tuple[str, int]]:
    """(words, number of the line) of each thread in a text. `number`: of its first line."""
    for stack in stacks_in(text):
        yield f"{stack.label}{stack}", number + stack.line


def stacks_in(text: str) -> list[Stack]:
    lines = text.split("\n")
    found: list[Stack] = []
    for place, line in enumerate(lines):
        head, frame_pattern = _FAULT.search(line), _FAULT_FRAME
        if head is None:
            head, frame_pattern = _SPY.search(line), _SPY_FRAME
        if head is None:
            continue
        frames = tuple(_frames(lines[place + 1 : place + 1 + _MOST_FRAMES], frame_pattern))
        if frames:
            label = line[: head.start()]
            found.append(Stack(head[2] or head[1], frames, place, label if len(label) <= _LONGEST_LABEL else ""))
        if len(found) == MOST_THREADS:
            break
    return found


def _frames(lines: Sequence[str], pattern: re.Pattern[str]) -> Iterator[Frame]:
    """Until a line that is none. A label before each (`3: `) is passed over."""
    for line in lines:
        found = pattern.search(line)
        if found is None:
            return
        if pattern is _FAULT_FRAME:
            yield Frame(found[3], found[1], int(found[2]))
        else:
            yield Frame(found[1], found[2], int(found[3]))


def _short(path: str) -> str:
    """The last three parts: enough to know which file it is."""
    return "/".join(path.rsplit("/", 3)[-3:])


def compared(main: Mapping[int, Stack]) -> Iterator[tuple[str, int]]:
    """(words, rank) of each rank that is elsewhere while more than half of them wait for it. `main`: each one's first
    thread:

        rank 3 stands in read (data.py:12) while ranks 0-2,4-7 wait in a collective
    """
    waiting = [rank for rank, stack in main.items() if any(_COLLECTIVE.search(each.file) for each in stack.frames[:8])]
    if 2 * len(waiting) > len(main) > len(waiting):
        for rank in sorted(main.keys() - set(waiting)):
            where = str(main[rank]).partition(" stands in ")[2]
            yield f"rank {rank} stands in {where} while {ranks_text(waiting)} wait in a collective", rank


def py_spy() -> str | None:
    """The program, where it is installed: on the PATH, or beside this Python."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


def dump(pid: int, program: str) -> str:
    """What py-spy says of a process; raises OSError where it cannot look (another's process, ptrace not allowed)."""
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PY_SPY_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"py-spy did not answer within {_PY_SPY_S:g} s") from error
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["py-spy failed"])[-1][:200])
    return done.stdout[: 1 << 20]
