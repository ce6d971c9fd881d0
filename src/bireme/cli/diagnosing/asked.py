"""What the daemon says of a job that is to be diagnosed: its lines of evidence, and which files it wrote.

Invariant: a line that came over the API keeps the source that the daemon gave it; files read here are only ever output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bireme.client.transport import ApiError, Transport
from bireme.commands.paths import path_of
from bireme.commands.voice import CommandFailure, refused_by_daemon
from bireme.core.diagnosis.model import Line
from bireme.evidence.reading import Output
from bireme.evidence.wire import line_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job, and all that is known of its end without its output."""

    job: str
    job_id: int
    name: str
    user: str
    state: str
    owner: int
    start: float | None
    end: float | None
    outputs: list[Output]
    lines: list[Line]
    absent: list[str]
    """What is not known, in sentences."""
    rules: str
    """The folder of the site's rules, where the daemon has one."""


def asked_of(transport: Transport, job: str) -> Asked:
    try:
        told: dict[str, Any] = transport.get(path_of("jobs", job, "evidence"))
    except ApiError as error:
        if error.code == "ESLURM_INVALID_JOB_ID":
            raise CommandFailure(f"there is no job {job}; `sacct` lists those that were") from error
        raise refused_by_daemon("", error) from error
    if told["state"] == "PENDING" and not told["lines"]:  # else it waits again: what is told is of its latest start
        raise CommandFailure(f"job {job} has not started: `bireme why {job}` says why it waits")
    others = told.get("left_out", 0)
    more = [f"{job} is an array: this is {told['job']}, one of {others + 1}; ask for another by its number"]
    return Asked(
        job=told["job"],
        job_id=told["job_id"],
        name=told["name"],
        user=told["user"],
        state=told["state"],
        owner=told["owner_uid"],
        start=told["start"],
        end=told["end"],
        outputs=[
            Output(path=each["path"], rank=each["rank"], node=each["node"], stream=each["stream"])
            for each in told["outputs"]
        ],
        lines=[line for each in told["lines"] if (line := line_from(each)) is not None],
        absent=[*told["absent"], *(more if others else [])],
        rules=told.get("rules") or "",
    )
