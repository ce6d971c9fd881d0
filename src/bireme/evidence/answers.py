"""A diagnosis as the data that `bireme diagnose --json` and the API answer with; secrets are masked in all of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bireme.core.diagnosis.matching import plain
from bireme.core.diagnosis.model import UNKNOWN, Candidate, Diagnosis, Line
from bireme.evidence.masking import mask

_MOST_QUOTED = 8
ANSWERED = (
    "cause", "title", "summary", "confidence", "basis", "who", "is_hardware", "evidence", "actions", "others",
    "ruled_out", "collect", "problems",
)  # fmt: skip
_JOB = re.compile(r"\bJOB\b")


def answer_of(diagnosis: Diagnosis, problems: Iterable[str] = (), job: str = "") -> dict[str, Any]:
    """`problems`: what could not be read or asked; `job`: its number, for what is to be typed."""
    return {
        "cause": diagnosis.cause.id,
        "title": diagnosis.cause.title,
        "summary": mask(diagnosis.summary),
        "confidence": diagnosis.confidence,
        "basis": diagnosis.why_so_sure,
        "who": diagnosis.cause.who,
        "is_hardware": diagnosis.cause.is_hardware,
        "evidence": [_quoted(line) for line in diagnosis.evidence],
        "actions": [_JOB.sub(job, text) if job else text for text in diagnosis.actions],
        "others": [_runner_up(each) for each in diagnosis.others],
        "ruled_out": [mask(text) for text in diagnosis.ruled_out],
        "collect": list(diagnosis.collect),
        "problems": [mask(text) for text in dict.fromkeys(problems)],
    }


def with_ends(diagnosis: Diagnosis, ends: Iterable[Line]) -> Diagnosis:
    """The last lines of the outputs, quoted where nothing else can be: they explain nothing, and save a look."""
    if diagnosis.cause.id != UNKNOWN or diagnosis.evidence:
        return diagnosis
    return replace(diagnosis, evidence=tuple(ends)[:_MOST_QUOTED])


def _runner_up(candidate: Candidate) -> dict[str, Any]:
    return {
        "cause": candidate.cause.id,
        "title": candidate.cause.title,
        "why_not": candidate.why_not,
        "evidence": [_quoted(clue.line) for clue in candidate.clues[:1]],
    }


def _quoted(line: Line) -> dict[str, Any]:
    return {
        "text": mask(plain(line.text)),
        "source": line.source,
        "file": line.file,
        "line": line.number or None,
        "time": line.at,
        "node": line.node,
        "rank": line.rank,
        "device": line.device,
    }
