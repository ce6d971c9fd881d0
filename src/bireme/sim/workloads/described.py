"""A workload in one line, job by job: `jobs:2x8 for 12h at 00:00, 10x1 for 30min at 06:00, 1x4 for 1h at 1-09:00`.

Two jobs with 8 GPUs each that run for twelve hours and come at midnight, ten with one each at six, one on the day after
(`at` may be left out: midnight). For small cases whose outcome can be worked out by hand, and for a cluster's usual
day; a workload that is drawn is `generator`. Invariant: the same text is the same jobs, none of them drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bireme.sim.workloads.trace import TraceJob, Workload

PREFIX = "jobs:"
START = 1_735_776_000.0
"""Thursday 2 January 2025, 00:00 UTC."""
MOST_JOBS = 1_000_000
_GROUP = re.compile(
    r"(?P<jobs>[1-9][0-9]*)x(?P<gpus>[1-9][0-9]*) +for +(?P<run>[0-9]+(?:\.[0-9]+)?)(?P<unit>s|min|m|h|d)"
    r"(?: +at +(?:(?P<day>[0-9]+)-)?(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2}))?"
)
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_MEANT = "a group of jobs is written JOBSxGPUS for TIME [at HH:MM], like 2x8 for 12h at 06:00"


class BadDescriptionError(ValueError):
    """A group that is none; the text says what would be one."""


def read(text: str) -> Workload:
    """Raises BadDescriptionError."""
    groups = [each.strip() for each in text.removeprefix(PREFIX).split(",")]
    jobs = sorted((job for group in groups for job in _jobs_of(group)), key=lambda job: job.submit)
    numbered = (replace(job, line=line) for line, job in enumerate(jobs, start=1))
    return Workload(source=text, jobs=tuple(numbered))


def _jobs_of(group: str) -> Iterator[TraceJob]:
    found = _GROUP.fullmatch(group)
    if found is None:
        raise BadDescriptionError(f"{group!r}: {_MEANT}")
    hour, minute = int(found["hour"] or 0), int(found["minute"] or 0)
    run_s, count = float(found["run"]) * _UNITS[found["unit"]], int(found["jobs"])
    if hour > 23 or minute > 59:
        raise BadDescriptionError(f"{group!r}: {found['hour']}:{found['minute']} is no time of the day")
    if not run_s or count > MOST_JOBS:
        raise BadDescriptionError(f"{group!r}: a job runs for more than 0 s, and there are at most {MOST_JOBS:,}")
    at = START + int(found["day"] or 0) * 86_400.0 + hour * 3600.0 + minute * 60.0
    for _ in range(count):
        yield TraceJob(submit=at, run_s=run_s, gpus=int(found["gpus"]))
