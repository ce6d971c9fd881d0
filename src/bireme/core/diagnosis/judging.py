"""The judgement: which of the causes that clues tell is the one, how sure that is, and why not the others. Pure.

What counts, in this order: a line that names a cause before one that only names an outer layer of it, before an echo,
before a mere symptom; hardware that several jobs met before what one program says; then what was first in time (or
first in its file, where no time is known), however often the others were written.
Invariant: a cause is `high` only if a line names it and nothing else as specific contradicts it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from bireme.core.diagnosis.model import UNKNOWN, Candidate, Cause, Clue, Confidence, Diagnosis, Line, Role

_WEIGHT: Mapping[Role, int] = {"cause": 3, "general": 2, "echo": 1, "symptom": 0}
_CERTAINTY: Mapping[Role, Confidence] = {"cause": "high", "general": "medium", "echo": "low", "symptom": "low"}
_MOST_QUOTED = 8
_MOST_OTHERS = 5
_COLLECT = (
    "keep the output of every rank: srun --output=%x-%j-%t.out",
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 for hangs, NCCL_DEBUG=WARN for the network",
    "PYTHONFAULTHANDLER=1 for crashes without a traceback",
)


def judge(clues: Iterable[Clue], causes: Mapping[str, Cause]) -> Diagnosis:
    """`causes`: the published list."""
    by_cause: dict[str, list[Clue]] = defaultdict(list)
    for clue in clues:
        by_cause[clue.rule.cause].append(clue)
    if not by_cause:
        return _unknown(causes)
    candidates = sorted(
        (Candidate(cause=causes[name], clues=tuple(sorted(found, key=_standing))) for name, found in by_cause.items()),
        key=lambda each: _standing(each.clues[0]),
    )
    first, rest = candidates[0], candidates[1:]
    role = first.clues[0].rule.role
    rivals = [each for each in rest if each.clues[0].rule.role == role]
    sure = _CERTAINTY[role]
    if sure == "high" and rivals and not _is_before(first.clues[0].line, rivals[0].clues[0].line):
        sure = "medium"
    return Diagnosis(
        cause=first.cause,
        summary=_summary(first),
        confidence=sure,
        why_so_sure=_basis(role, rivals),
        evidence=tuple(clue.line for clue in first.clues[:_MOST_QUOTED]),
        actions=first.clues[0].rule.actions or first.cause.actions,
        others=tuple(_beside(each, first) for each in rest[:_MOST_OTHERS]),
        collect=() if sure == "high" else _COLLECT,
    )


def _standing(clue: Clue) -> tuple[int, int, float, int, int]:
    """The smaller, the more it counts."""
    line = clue.line
    at = line.at if line.at is not None else float("inf")
    return -_WEIGHT[clue.rule.role], -min(line.others, 2), at, line.order, line.rank or 0


def _is_before(line: Line, other: Line) -> bool:
    """Whether it is known to have been written before."""
    if line.at is not None and other.at is not None:
        return line.at < other.at
    return bool(line.file) and line.file == other.file and line.order < other.order


def _summary(candidate: Candidate) -> str:
    best = candidate.clues[0]
    if not best.rule.meaning:
        return f"{candidate.cause.title}."
    return best.rule.meaning.format_map(defaultdict(str, best.named))


def _basis(role: Role, rivals: list[Candidate]) -> str:
    said = {
        "cause": "a line names it",
        "general": "a line names what went wrong at last, not what led to it",
        "echo": "only what others saw of it is known",
        "symptom": "only how it ended is known",
    }[role]
    return said + (f"; {rivals[0].cause.title.lower()} is told as clearly" if rivals else "")


def _beside(candidate: Candidate, first: Candidate) -> Candidate:
    mine, its = candidate.clues[0], first.clues[0]
    if _WEIGHT[mine.rule.role] < _WEIGHT[its.rule.role]:
        why = {"general": "an outer layer", "echo": "an echo", "symptom": "how it ended, not why"}[mine.rule.role]
    else:
        why = "came later" if _is_before(its.line, mine.line) else "told as clearly; which was first is not known"
    return Candidate(cause=candidate.cause, clues=candidate.clues, why_not=why)


def _unknown(causes: Mapping[str, Cause]) -> Diagnosis:
    cause = causes[UNKNOWN]
    return Diagnosis(
        cause=cause,
        summary="Nothing that is known of its end explains it.",
        confidence="none",
        why_so_sure="no rule knows any of its lines",
        evidence=(),
        actions=cause.actions,
        collect=_COLLECT,
    )
