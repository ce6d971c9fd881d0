"""What the watchdogs of all ranks say together: who did not arrive, or who called something else. Pure.

A rank that reports a collective that timed out is one that waited. Who lags is the rank that is behind the others in
the count of collectives, or that reports nothing. Asked by `judging`, which names that rank instead of the loudest.
Invariant: clues go out as they came in, but for the meaning and the cause of those of watchdogs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bireme.core.diagnosis.model import Clue

TIMEOUT = "nccl_timeout"
MISMATCH = "collective_mismatch"
_MOST_NAMED = 8
_MOST_RANKS = 1 << 16


@dataclass(slots=True)
class _Report:
    """What one rank's watchdog said."""

    sequence: int
    operation: str = ""
    enqueued: int | None = None


def reread(clues: Sequence[Clue]) -> list[Clue]:
    """The clues, where those of watchdogs also say what the reports of all ranks mean together."""
    reports = _reports(clues)
    if len(reports) < 2:
        return list(clues)
    differing = _differing(reports)
    said = differing or _lagging(reports) or _silent(reports)
    if not said:
        return list(clues)
    return [_with(clue, said, is_mismatch=bool(differing)) if clue.rule.cause == TIMEOUT else clue for clue in clues]


def _is_watchdog(clue: Clue) -> bool:
    return clue.named.get("rank", "").isdigit() and clue.named.get("seq", "").isdigit()


def _reports(clues: Sequence[Clue]) -> dict[int, _Report]:
    """By rank: the first collective that each says it waited in."""
    reports: dict[int, _Report] = {}
    for clue in sorted((each for each in clues if _is_watchdog(each)), key=lambda each: int(each.named["seq"])):
        rank = int(clue.named["rank"])
        report = reports.setdefault(rank, _Report(int(clue.named["seq"])))
        if report.sequence == int(clue.named["seq"]):
            report.operation = report.operation or clue.named.get("op", "")
        if clue.named.get("enqueued", "").lstrip("-").isdigit():
            report.enqueued = int(clue.named["enqueued"])
    return reports


def _differing(reports: Mapping[int, _Report]) -> str:
    by_operation: dict[str, list[int]] = {}
    for rank, report in sorted(reports.items()):
        if report.operation:
            by_operation.setdefault(report.operation, []).append(rank)
    if len({report.sequence for report in reports.values()}) > 1 or len(by_operation) < 2:
        return ""
    each = "; ".join(f"rank {_named(ranks)} in {operation}" for operation, ranks in sorted(by_operation.items()))
    return f"At the same collective the ranks were in different calls: {each}."


def _lagging(reports: Mapping[int, _Report]) -> str:
    known = {rank: report.enqueued for rank, report in reports.items() if report.enqueued is not None}
    counts = known if len(known) > 1 else {rank: report.sequence for rank, report in reports.items()}
    least, most = min(counts.values()), max(counts.values())
    if least == most:
        return ""
    behind = [rank for rank in sorted(counts) if counts[rank] == least]
    return (
        f"Rank {_named(behind)} did not arrive: it was at collective {least} when others were at {most}. "
        "What it did then is why; the others only waited."
    )


def _silent(reports: Mapping[int, _Report]) -> str:
    highest = max(reports)
    missing = [rank for rank in range(min(highest, _MOST_RANKS)) if rank not in reports]
    if not missing or len(missing) >= len(reports):
        return ""
    return (
        f"All ranks that say so waited in the same collective; rank {_named(missing)} said nothing of it and did not "
        "arrive."
    )


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return ", ".join(str(rank) for rank in ranks[:_MOST_NAMED]) + more


def _with(clue: Clue, said: str, *, is_mismatch: bool) -> Clue:
    rule = replace(clue.rule, meaning=said.replace("{", "").replace("}", ""))
    if is_mismatch:
        rule = replace(rule, cause=MISMATCH, role="general", sure="medium")
        return replace(clue, rule=rule, sure="medium")
    return replace(clue, rule=rule)
