"""A workload as the simulator replays it: jobs in order of submission, and the rows that could not be used.

Readers (one module per format) turn each row into a `TraceJob` or the reason why it is none; `gather` makes a
`Workload` of that, or refuses. Not here: how a job becomes a JobSpec (`sim/specs.py`).
Invariant: a workload's jobs are in order of submission, have positive run times and ask for something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    submit: float
    """Seconds since the epoch."""
    run_s: float
    nodes: int | None = None
    """None: as many as its GPUs need."""
    cpus: int | None = None
    """Of all nodes together; None: not known."""
    gpus: int = 0
    """Of all nodes together."""
    gpu_milli: int = 1000
    """Less: a part of one GPU."""
    gpu_types: tuple[str, ...] = ()
    """Any of these; empty: whatever there is."""
    memory_mib: int | None = None
    """On each node."""
    limit_s: int | None = None
    """The user's own; None: not known."""
    user: str = "user"
    account: str = ""
    partition: str = ""
    """Empty: the cluster's default."""
    qos: str = ""
    name: str = "job"
    exit_code: int = 0
    waited_s: float | None = None
    """How long it waited where the trace was taken."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that is no job of this simulation, and why."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


Row = tuple[int, TraceJob | str]
"""(line, the job or why the row is none)."""


class BadTraceError(ValueError):
    """A workload cannot be used as it is. The text names file, line and reason of the first problems."""

    def __init__(
        self, problems: Iterable[Problem], hint: str = "--skip-bad leaves such rows out and counts them"
    ) -> None:
        self.problems = tuple(problems)
        more = len(self.problems) - SHOWN_PROBLEMS
        lines = [str(problem) for problem in self.problems[:SHOWN_PROBLEMS]]
        if more > 0:
            lines.append(f"... and {more} more")
        super().__init__("\n".join([*lines, hint] if hint else lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    source: str
    jobs: tuple[TraceJob, ...]
    problems: tuple[Problem, ...] = ()
    cluster_hint: str = ""
    """A one-line cluster that the trace itself names (SWF: MaxNodes); empty if it names none."""
    remarks: tuple[str, ...] = field(default=())
    """What a reader of the report must know about how the trace was read."""

    @property
    def span_s(self) -> float:
        return self.jobs[-1].submit - self.jobs[0].submit if self.jobs else 0.0

    def skipped(self) -> dict[str, int]:
        """How many rows were left out, by reason."""
        return dict(Counter(problem.reason for problem in self.problems).most_common())


def gather(
    source: str, rows: Iterator[Row], *, skip_bad: bool, cluster_hint: str = "", remarks: tuple[str, ...] = ()
) -> Workload:
    """Raises BadTraceError if a row is bad and is not to be skipped, or if no job is left."""
    jobs: list[TraceJob] = []
    problems: list[Problem] = []
    for line, row in rows:
        if isinstance(row, TraceJob):
            reason = _unusable(row)
            if not reason:
                jobs.append(row)
                continue
            row = reason
        problems.append(Problem(source, line, row))
    if problems and not skip_bad:
        raise BadTraceError(problems)
    if not jobs:
        raise BadTraceError([*problems, Problem(source, 0, "there is no job in it")], hint="")
    jobs.sort(key=lambda job: job.submit)
    return Workload(
        source=source, jobs=tuple(jobs), problems=tuple(problems), cluster_hint=cluster_hint, remarks=remarks
    )


def _unusable(job: TraceJob) -> str:
    if job.run_s <= 0:
        return "the run time is negative" if job.run_s < 0 else "the run time is zero"
    if job.submit < 0:
        return "the submit time is negative"
    if job.gpus < 0 or (job.cpus or 0) < 0 or (job.nodes or 0) < 0:
        return "it asks for a negative number of GPUs, CPUs or nodes"
    if not job.gpus and not job.cpus and not job.nodes:
        return "it asks for no GPU, no CPU and no node"
    if job.limit_s is not None and job.limit_s <= 0:
        return "the time limit is zero or negative"
    return ""
