"""The lines of a job's output with the times in which they were written, read as the user who asks.

At most a few pieces of each file are read, its beginning and its end: an output of terabytes costs no more than a small
one. A pipe or a device is not read. Invariant: what cannot be read is a sentence in the answer, not an error.
"""

from __future__ import annotations

import os
from typing import Any

from bireme.core.telemetry.log_lines import Dated, Raw, dated
from bireme.evidence.opened import NoFileError, NotTheirsError, open_output
from bireme.evidence.whereabouts import utc_offset_s

MOST_LINES = 10_000
_PIECE = 1 << 20
_LONGEST = 500
"""Characters of a line that are shown."""


def lines_of(timeline: dict[str, Any], most: int) -> list[dict[str, Any]]:
    """Of each output: its path, `lines`, how many bytes were passed over (`skipped`), or why there are none."""
    began = _began(timeline)
    if began is None or not most:
        return []
    life = (began, timeline["end"] if timeline["is_over"] else timeline["now"])
    return [_of_output(output, most, life, timeline["user_id"]) for output in timeline["outputs"]]


def _began(timeline: dict[str, Any]) -> float | None:
    """When it first ran; None: it has not."""
    spans = [span for lane in timeline["lanes"] if lane["name"] == "state" for span in lane["spans"]]
    return min((span["start"] for span in spans if span["text"] == "runs"), default=None)


def _of_output(output: dict[str, Any], most: int, life: tuple[float, float], owner: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "stream": output["stream"],
        "path": output["path"],
        "lines": [],
        "skipped": 0,
        "problem": "",
    }
    try:
        raw, told["skipped"] = _read(output["path"], most, owner)
    except NoFileError:
        return told
    except NotTheirsError:
        told["problem"] = f"{output['path']} is not a file of the job's owner: not shown"
        return told
    except OSError as error:
        told["problem"] = f"cannot read {output['path']}: {error.strerror}"
        return told
    looks = [(look[0], look[1], look[2]) for look in output["looks"]]
    told["lines"] = [_shown(line) for line in dated(raw, looks, life, utc_offset_s(life[1]))]
    return told


def _shown(line: Dated) -> dict[str, Any]:
    return {"number": line.number, "text": line.text, "start": line.start, "end": line.end, "source": line.source}


def _read(path: str, most: int, owner: int) -> tuple[list[Raw], int]:
    """The first quarter and the rest from the end, where there are more than `most`; and the bytes between them."""
    with open_output(path, owner) as file:
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
