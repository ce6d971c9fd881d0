"""The judgement: which of the causes that clues tell is the one, how sure that is, and why not the others. Pure.

What counts, in this order: what the program did not outlive; a line that names a cause before one that only names an
outer layer of it, before an echo, before a mere symptom, before a warning; a cause before what it leads to; hardware
that several jobs met before what one program says; then what was first in time (or first in its file, where no time is
known), however often the others were written.
Invariants: the order in which clues of different files come changes nothing; a cause is `high` only if a line that
everybody vouches for names it and nothing as specific contradicts it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bireme.core.diagnosis.collectives import reread
from bireme.core.diagnosis.model import (
    COMPLETED,
    SIGNS,
    UNKNOWN,
    Candidate,
    Cause,
    Clue,
    Confidence,
    Diagnosis,
    Line,
    Role,
)
from bireme.core.diagnosis.outliving import is_mild, is_near_the_end, outlived

_WEIGHT: Mapping[Role, int] = {"cause": 4, "general": 3, "exception": 3, "echo": 2, "symptom": 1}
_MILD_WEIGHT = 0
_WELL = "COMPLETED"
"""Slurm's word."""
_CERTAINTY: Mapping[Role, Confidence] = {
    "cause": "high",
    "general": "medium",
    "exception": "medium",
    "echo": "medium",
    "symptom": "low",
}
_CONFIDENCES: tuple[Confidence, ...] = ("none", "low", "medium", "high")
_LESS: Mapping[Role, str] = {
    "general": "an outer layer",
    "exception": "an outer layer",
    "echo": "an echo",
    "symptom": "how it ended, not why",
}
_LONG_BEFORE_LINES = 200
_LONG_BEFORE_S = 60.0
_ONE_BREATH_LINES = 25
_ONE_BREATH_S = 5.0
_MOST_QUOTED = 8
_MOST_OTHERS = 5
_COLLECT = (
    "keep the output of every rank: srun --output=%x-%j-%t.out",
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 for hangs, NCCL_DEBUG=WARN for the network",
    "PYTHONFAULTHANDLER=1 for crashes without a traceback",
)
_EMPTY = re.compile(r" ?\(\s*\)| +(?=[ .,:;)])|(?<=:) *(?=$)| +$")


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A clue, and what it weighs."""

    clue: Clue
    weight: int
    is_outlived: bool
    is_surely_outlived: bool = False


@dataclass(frozen=True, slots=True)
class _Contender:
    """A cause with all clues that tell it, the one that counts most first."""

    cause: Cause
    told: tuple[_Weighed, ...]

    @property
    def best(self) -> _Weighed:
        return self.told[0]

    @property
    def line(self) -> Line:
        return self.told[0].clue.line


def judge(clues: Iterable[Clue], causes: Mapping[str, Cause]) -> Diagnosis:
    """`causes`: the published list."""
    contenders = _contenders(reread(list(clues)), causes)
    standing = _of_those(contenders)
    left_out = tuple(_why_left_out(each) for each in contenders if each not in standing)[:_MOST_OTHERS]
    if not standing:
        return _unknown(causes, left_out)
    ranked = sorted(standing, key=lambda each: _place(each, standing))
    first, rest = ranked[0], ranked[1:]
    rivals = [each for each in rest if each.best.weight == first.best.weight and not _leads(first, each)]
    sure = _confidence(first, rivals, rest)
    best = first.best.clue
    return Diagnosis(
        cause=first.cause,
        summary=_summary(first),
        confidence=sure,
        why_so_sure=_basis(first, rivals),
        evidence=tuple(each.clue.line for each in first.told[:_MOST_QUOTED]),
        actions=best.rule.actions or first.cause.actions,
        others=tuple(_beside(each, first) for each in rest[:_MOST_OTHERS]),
        ruled_out=left_out,
        collect=() if sure == "high" else _COLLECT,
    )


def _of_those(contenders: Sequence[_Contender]) -> list[_Contender]:
    """Those that may be why: what was not outlived. Where that says no more than that it is over, also what was only
    likely outlived: output that was written late looks like progress after an error."""
    standing = [each for each in contenders if not each.best.is_outlived and not _is_only_a_warning(each)]
    if all(each.best.weight <= _WEIGHT["symptom"] for each in standing):
        doubted = (each for each in contenders if each.best.is_outlived and not each.best.is_surely_outlived)
        standing += [each for each in doubted if each.best.weight >= _WEIGHT["general"]]
    return standing


def _contenders(clues: Sequence[Clue], causes: Mapping[str, Cause]) -> list[_Contender]:
    gone = outlived(clues)
    known = {clue.line for clue in clues if clue.rule.role not in (*SIGNS, "exception")}
    by_cause: dict[str, list[_Weighed]] = defaultdict(list)
    for place, clue in enumerate(clues):
        if clue.rule.role not in SIGNS and not (clue.rule.role == "exception" and clue.line in known):
            weight = _MILD_WEIGHT if is_mild(clue) else _WEIGHT[clue.rule.role]
            is_outlived = place in gone.likely or place in gone.surely
            by_cause[clue.rule.cause].append(_Weighed(clue, weight, is_outlived, place in gone.surely))
    return [_Contender(causes[name], tuple(sorted(told, key=_standing))) for name, told in sorted(by_cause.items())]


def _standing(weighed: _Weighed) -> tuple[object, ...]:
    """The rank of a clue among those of one cause: the smaller, the more it counts."""
    clue = weighed.clue
    return (
        weighed.is_outlived,
        -weighed.weight,
        -_CONFIDENCES.index(clue.sure),
        -min(clue.line.others, 2),
        *_moment(clue.line),
        clue.rule.id,
    )


def _place(contender: _Contender, among: Sequence[_Contender]) -> tuple[object, ...]:
    """The rank of a cause among all: the smaller, the more it counts."""
    is_explained = any(_leads(each, contender) for each in among)
    weight = 0 if is_explained else contender.best.weight
    is_met_by_others = contender.cause.is_hardware and contender.line.others > 0
    return (-weight, not is_met_by_others, *_moment(contender.line), contender.cause.id)


def _moment(line: Line) -> tuple[bool, float, int, str, int]:
    """When a line was written, as far as it is known. What a scheduler records comes after what led to it."""
    at = line.at if line.at is not None else float("inf")
    return line.source == "record", at, line.order, line.file, line.rank if line.rank is not None else -1


def _leads(cause: _Contender, effect: _Contender) -> bool:
    """Whether the one explains the other: it is known to, it is told as clearly or was before, and not long after."""
    if effect.cause.id not in cause.cause.leads_to or cause.best.is_outlived > effect.best.is_outlived:
        return False
    if cause.best.weight >= effect.best.weight:
        return not _is_long_before(effect.line, cause.line)
    if not _is_before(cause.line, effect.line):
        return False
    # A warning just before an error of which it is a known reason is that reason.
    is_warned = cause.best.weight == _MILD_WEIGHT and not _is_apart(cause.line, effect.line)
    return is_warned or cause.best.weight >= _WEIGHT["general"]


def _is_before(line: Line, other: Line) -> bool:
    """Whether it is known to have been written before."""
    if line.at is not None and other.at is not None:
        return line.at < other.at
    if other.source == "record" != line.source:
        return True
    return bool(line.file) and line.file == other.file and line.order < other.order


def _is_long_before(line: Line, other: Line) -> bool:
    if line.at is not None and other.at is not None:
        return other.at - line.at > _LONG_BEFORE_S
    return bool(line.file) and line.file == other.file and other.order - line.order > _LONG_BEFORE_LINES


def _is_another_story(contender: _Contender, first: _Contender) -> bool:
    """Something else went wrong too, not in the same breath, and the one does not explain the other."""
    if contender.best.weight < _WEIGHT["general"] or _leads(first, contender):
        return False
    return _is_apart(contender.line, first.line)


def _is_apart(line: Line, other: Line) -> bool:
    """Whether they were not written in the same breath, or nobody knows."""
    if line.at is not None and other.at is not None:
        return abs(line.at - other.at) > _ONE_BREATH_S
    return line.file != other.file or abs(line.order - other.order) > _ONE_BREATH_LINES


def _is_only_a_warning(contender: _Contender) -> bool:
    """One that does not even stand at the end."""
    return contender.best.weight == _MILD_WEIGHT and not is_near_the_end(contender.line)


def _confidence(first: _Contender, rivals: Sequence[_Contender], rest: Sequence[_Contender]) -> Confidence:
    clue = first.best.clue
    most = [_CERTAINTY[clue.rule.role], clue.sure]
    if any(_is_another_story(each, first) for each in rest):
        most.append("medium")
    if first.best.weight == _MILD_WEIGHT or first.best.is_outlived:
        most.append("low")
    if first.cause.family == "scheduler" and clue.line.source == "output":
        most.append("medium")  # of these the scheduler knows itself, and a program may print anything
    if rivals:
        most.append("medium" if clue.rule.role == "cause" else "low")
    return min(most, key=_CONFIDENCES.index)


def _summary(first: _Contender) -> str:
    best = first.best.clue
    if not best.rule.meaning:
        return f"{first.cause.title}."
    said = _EMPTY.sub("", best.rule.meaning.format_map(defaultdict(str, best.named))).strip()
    return said if said.endswith((".", "!", "?")) else f"{said}."


def _basis(first: _Contender, rivals: Sequence[_Contender]) -> str:
    best, is_doubted = first.best.clue, first.best.is_outlived
    said = {
        "cause": "a line names it",
        "general": "a line names what went wrong at last, not what led to it",
        "exception": "an exception that nobody caught, of a kind that no rule knows",
        "echo": "only what others saw of it is known",
        "symptom": "only how it ended is known",
    }[best.rule.role]
    if best.sure != best.rule.sure:
        said += ", in a file that anybody may have written"
    if is_doubted:
        said += ", but what looks like progress stands after it"
    return said + (f"; {rivals[0].cause.title.lower()} is told as clearly" if rivals else "")


def _beside(contender: _Contender, first: _Contender) -> Candidate:
    clues = tuple(each.clue for each in contender.told)
    return Candidate(cause=contender.cause, clues=clues, why_not=_why_not(contender, first))


def _why_not(contender: _Contender, first: _Contender) -> str:
    if _leads(first, contender):
        return "follows from it"
    if contender.best.weight < first.best.weight:
        if contender.best.weight == _MILD_WEIGHT:
            return "a warning"
        return _LESS[contender.best.clue.rule.role]
    return "came later" if _is_before(first.line, contender.line) else "told as clearly; which was first is not known"


def of_state(found: Diagnosis, state: str, causes: Mapping[str, Cause]) -> Diagnosis:
    """Of a job that ended well nothing is to be explained: what its lines would say of another is ruled out."""
    if state != _WELL:
        return found
    said = () if found.cause.id == UNKNOWN else (f"{found.cause.title}: it ended well all the same",)
    return Diagnosis(
        cause=causes[COMPLETED],
        summary="Its exit code is 0, and there is nothing to explain.",
        confidence="high",
        why_so_sure="the record of its end says so",
        evidence=(),
        actions=causes[COMPLETED].actions,
        ruled_out=(*said, *found.ruled_out),
    )


def _why_left_out(contender: _Contender) -> str:
    where = f" ({contender.line.file}:{contender.line.number})" if contender.line.number else ""
    why = "the program went on after it" if contender.best.is_outlived else "a warning long before the end"
    return f"{contender.cause.title}{where}: {why}"


def _unknown(causes: Mapping[str, Cause], left_out: tuple[str, ...]) -> Diagnosis:
    cause = causes[UNKNOWN]
    return Diagnosis(
        cause=cause,
        summary="Nothing that is known of its end explains it.",
        confidence="none",
        why_so_sure="what rules know of its lines, it outlived" if left_out else "no rule knows any of its lines",
        evidence=(),
        actions=cause.actions,
        ruled_out=left_out,
        collect=_COLLECT,
    )
