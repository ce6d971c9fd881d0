"""Lines of a job's output: its beginning and its end, or those around one; for commands, and as a program for pages.

`python -I -m bireme.evidence.excerpt` reads a request as JSON on its standard input, as whoever looks at a page:

    {"uid": 1000, "owner_uid": 1001, "path": "/home/a/slurm-42.out", "most": 400, "around": 0}
    {"lines": [[number, end, text], ...], "skipped": 0, "problem": ""}

At most a few pieces of the file are read: an output of terabytes costs no more than a small one. Invariant: what cannot
be read is a sentence in the answer; a pipe, a device, or another's file in its place is not read.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

from bireme.bound_process import bind
from bireme.core.telemetry.log_lines import Raw
from bireme.evidence.opened import NoFileError, NotTheirsError, open_output

MOST_LINES = 10_000
_MOST_REQUEST = 1 << 16
_PIECE = 1 << 20
_LONGEST = 500
"""Characters of a line that are shown."""
_MOST_SEARCHED = 256 << 20
"""Bytes from the beginning on in which a line is looked for by its number."""
_MEMORY, _CPU_S, _DESCRIPTORS = 1 << 30, 20, 32


def main() -> int:
    request = json.loads(sys.stdin.buffer.read(_MOST_REQUEST))
    if request["uid"] != os.geteuid():
        print(json.dumps({"error": f"it runs as user {os.geteuid()}, and reads as nobody else"}))
        return 2
    bind(memory_bytes=_MEMORY, cpu_s=_CPU_S, descriptors=_DESCRIPTORS)
    lines, skipped, problem = excerpt(request["path"], request["most"], request["owner_uid"], request["around"])
    told: dict[str, Any] = {"lines": [[each.number, each.end, each.text] for each in lines], "skipped": skipped}
    print(json.dumps({**told, "problem": problem}))
    return 0


def excerpt(path: str, most: int, owner: int, around: int = 0) -> tuple[list[Raw], int, str]:
    """The lines, how many bytes between them were passed over, and why there are none. `around`: those beside this
    line; 0: the first quarter of them from the beginning, the rest from the end."""
    try:
        with open_output(path, owner) as file:
            lines, skipped = _around(file, most, around) if around else _both_ends(file, most)
        return lines, skipped, ""
    except NoFileError:
        return [], 0, ""
    except NotTheirsError:
        return [], 0, f"{path} is not a file of the job's owner: not shown"
    except OSError as error:
        return [], 0, f"cannot read {path}: {error.strerror}"


def _both_ends(file: BinaryIO, most: int) -> tuple[list[Raw], int]:
    """Where there are no more than `most`, all; and the bytes between both ends."""
    size = os.fstat(file.fileno()).st_size
    head = _lines(file.read(_PIECE) or b"", 0, 1, whole=size <= _PIECE)
    if size <= _PIECE and len(head) <= most:
        return head, 0
    begin = max(0, size - _PIECE)
    file.seek(begin)
    piece = file.read(_PIECE) or b""
    cut = piece.find(b"\n") + 1 if begin else 0
    tail = _lines(piece[cut:], begin + cut, 0 if begin else 1, whole=True)
    first = head[: most // 4]
    behind = first[-1].end if first else 0
    kept = len(tail) - (most - len(first))
    starts = tail[kept - 1].end if kept > 0 else begin + cut
    last = [line for line in tail[max(0, kept) :] if line.end > behind]
    return [*first, *last], max(0, starts - behind)


def _around(file: BinaryIO, most: int, wanted: int) -> tuple[list[Raw], int]:
    """As many before it as after it; the bytes before the first of them are passed over."""
    first = max(1, wanted - most // 2)
    number, offset = 1, 0
    while number < first and offset < _MOST_SEARCHED:
        line = file.readline(_PIECE)
        if not line:
            return [], offset
        offset += len(line)
        number += line.endswith(b"\n")
    found: list[Raw] = []
    begin = offset
    while len(found) < most and (line := file.readline(_PIECE)):
        offset += len(line)
        found += _lines(line, offset - len(line), number, whole=True)
        number += line.endswith(b"\n")
    return found, begin


def _lines(data: bytes, offset: int, number: int, *, whole: bool) -> list[Raw]:
    """`number`: of the first; 0: it is not known, of none. `whole`: what stands behind the last newline is a line too.

    Of a line that a progress bar wrote over and over, what was to be seen last.
    """
    found: list[Raw] = []
    *lines, rest = data.split(b"\n")
    for place, line in enumerate([*lines, rest] if whole and rest else lines):
        offset += len(line) + (place < len(lines))
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
        found.append(Raw(number + place if number else 0, offset, text[:_LONGEST]))
    return found


if __name__ == "__main__":
    sys.exit(main())
