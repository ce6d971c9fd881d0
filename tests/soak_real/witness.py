"""The rules of a soak, read from what jobs wrote down, from their locks and from /proc; then compared with the records.

Nothing here calls what decides. A broken rule is a sentence; all of them are collected, for they often explain each
other. Invariant: what is judged is what jobs saw, in the order in which the kernel wrote it.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.soak_real.jobs import LOCKS, LOG, RESERVATION, RESERVED_NODE, SoakJob

FINAL = {"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED"}


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a job saw: `begin`, `end` or `conflict`; or that people told: `release`."""

    place: int
    word: str
    token: str
    job: str = ""
    task: str = "-"
    restarts: int = 0
    node: str = ""
    at: float = 0.0
    rest: tuple[str, ...] = ()


def read_log(path: Path, first: int) -> list[Line]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [_line(first + place, text) for place, text in enumerate(lines[first:])]


def _line(place: int, text: str) -> Line:
    word, token, *facts = text.split()
    if not facts:
        return Line(place, word, token)
    job, task, restarts, node, at, *rest = facts
    return Line(place, word, token, job, task, int(restarts), node, float(at), tuple(rest))


class Judge:
    """Of one round: its jobs, what they wrote, and what the cluster says of them."""

    def __init__(self, jobs: Sequence[SoakJob], lines: Sequence[Line], records: Sequence[dict[str, Any]]) -> None:
        self.jobs = {job.token: job for job in jobs}
        self.lines = lines
        self.begins: dict[str, list[Line]] = {}
        for line in lines:
            if line.word == "begin":
                self.begins.setdefault(line.token, []).append(line)
        self.records: dict[str, list[dict[str, Any]]] = {}
        for record in records:
            self.records.setdefault(str(record["comment"]), []).append(record)

    def broken(
        self, drained: Sequence[tuple[str, float, float]], stories: dict[str, list[dict[str, Any]]]
    ) -> list[str]:
        """Every rule that was broken, with the job it happened to."""
        found = [*self._conflicts(), *self._starts(), *self._not_drained(drained, stories)]
        for job in self.jobs.values():
            found.extend(f"{job.token}: {words}" for words in self._of(job))
        return found

    def _of(self, job: SoakJob) -> Iterator[str]:
        yield from self._lost(job)
        yield from self._ends(job)
        yield from self._too_early(job)
        yield from self._place(job)

    def _conflicts(self) -> Iterator[str]:
        for line in self.lines:
            if line.word == "conflict":
                yield f"{line.token} (job {line.job}, restart {line.restarts}) on {line.node}: {line.rest} is taken"

    def _starts(self) -> Iterator[str]:
        begins = [line for lines in self.begins.values() for line in lines]
        for (job, restarts), count in Counter((line.job, line.restarts) for line in begins).items():
            if count > 1:
                yield f"job {job} ran {count} times as restart {restarts}"
        for line in begins:
            if line.token not in self.jobs:
                yield f"{line.token} ran, and nobody asked for it"

    def _lost(self, job: SoakJob) -> Iterator[str]:
        records = self.records.get(job.token, [])
        wanted = len(job.tasks) or 1
        if job.job_id and len(records) != wanted:
            yield f"accepted as job {job.job_id}, {wanted} records expected, there are {len(records)}"
        if not job.job_id and len(records) > wanted:
            yield f"asked for once, and there are {len(records)} records"
        if job.job_id and {str(record["array_job_id"] or record["job_id"]) for record in records} - {job.job_id}:
            yield f"it has another id than the one it was accepted with, {job.job_id}: {records}"

    def _ends(self, job: SoakJob) -> Iterator[str]:
        for record in self.records.get(job.token, []):
            mine = [line for line in self.begins.get(job.token, []) if line.job == str(record["job_id"])]
            state = record["state"]
            if state not in FINAL:
                yield f"job {record['job_id']} is {state}, and not at its end"
            if len(mine) > record["restarts"] + 1:
                yield f"job {record['job_id']} began {len(mine)} times with {record['restarts']} restarts"
            if state in ("COMPLETED", "FAILED"):
                if not mine:
                    yield f"job {record['job_id']} is {state} and never began"
                if record["exit_code"] != job.code or state != ("FAILED" if job.code else "COMPLETED"):
                    yield f"job {record['job_id']} is {state} with exit code {record['exit_code']}, it was {job.code}"
            if state == "CANCELLED" and not job.meddled and job.after is None:
                yield f"job {record['job_id']} was cancelled, and nobody asked for it"

    def _too_early(self, job: SoakJob) -> Iterator[str]:
        released = [line.place for line in self.lines if line.word == "release" and line.token == job.token]
        for line in self.begins.get(job.token, []):
            if job.options.get("hold") and (not released or line.place < released[0]):
                yield "it was held, and began before anybody released it"
            if job.begin_at is not None and line.at < job.begin_at:
                yield f"it began {job.begin_at - line.at:.3f} s before its begin time"
            if job.after is not None and not self._met(*job.after, line):
                yield f"it began although {job.after} was not met"

    def _met(self, word: str, target: str, begun: Line) -> bool:
        """By what the other wrote before: its good end, for afterok; for the others that it is over now."""
        ends = [line for line in self.lines if line.word == "end" and line.token == target and line.place < begun.place]
        record = (self.records.get(target) or [{}])[0]
        good = any(line.rest == ("0",) for line in ends)
        if word == "afterok":
            return good and record.get("state") == "COMPLETED"
        if word == "afternotok" and record.get("state") == "COMPLETED":
            return False
        later = [line for line in self.begins.get(target, []) if line.place > begun.place]
        return record.get("state") in FINAL and not later

    def _place(self, job: SoakJob) -> Iterator[str]:
        member = job.options.get("reservation") == RESERVATION
        for line in self.begins.get(job.token, []):
            if member and line.node != RESERVED_NODE:
                yield f"it belongs to the reservation of {RESERVED_NODE}, and began on {line.node}"
            if not member and line.node == RESERVED_NODE:
                yield f"it began on {RESERVED_NODE}, which is reserved for others"

    def _not_drained(
        self, drained: Sequence[tuple[str, float, float]], stories: dict[str, list[dict[str, Any]]]
    ) -> Iterator[str]:
        for job, story in stories.items():
            for event in story:
                if event["kind"] != "JobAllocated":
                    continue
                nodes = {share["node"] for share in event["data"]["allocation"]["shares"]}
                for node, since, until in drained:
                    if node in nodes and since < event["at"] < until:
                        yield f"job {job} was put on {node} while that was drained"


def strays(work: Path) -> dict[int, str]:
    """Processes that hold a lock, or the log, of any job: nobody else has these files open when all jobs are over."""
    found = {}
    for pid in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        try:
            opened = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended, or is somebody else's
        mine = sorted(Path(path).name for path in opened if path.startswith((f"{work}/{LOCKS}/", f"{work}/{LOG}")))
        if mine:
            found[int(pid)] = f"{pid} ({words.strip()}) holds {', '.join(mine)}"
    return found


def held_locks(work: Path) -> list[str]:
    """Locks that somebody holds whom /proc does not show."""
    found = []
    for path in sorted((work / LOCKS).iterdir()):
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(path.name)
    return found
