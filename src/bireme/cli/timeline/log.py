"""The lines of a job's output with the times in which they were written, read as the user who asks.

What is read of each file is `evidence/excerpt`; here its lines get their times. Invariant: what cannot be read is a
sentence in the answer, not an error.
"""

from __future__ import annotations

from typing import Any

from bireme.core.telemetry.log_lines import Dated, dated
from bireme.evidence.excerpt import MOST_LINES, excerpt
from bireme.evidence.whereabouts import utc_offset_s

__all__ = ["MOST_LINES", "lines_of"]


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
    raw, told["skipped"], told["problem"] = excerpt(output["path"], most, owner)
    looks = [(look[0], look[1], look[2]) for look in output["looks"]]
    told["lines"] = [_shown(line) for line in dated(raw, looks, life, utc_offset_s(life[1]))]
    return told


def _shown(line: Dated) -> dict[str, Any]:
    return {"number": line.number, "text": line.text, "start": line.start, "end": line.end, "source": line.source}
