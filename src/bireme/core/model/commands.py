"""What the inside tells an engine to do. Imperative, idempotent, each with the allocation's generation.

`apply` returns them; `outstanding(state)` derives again those that nothing has confirmed, after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.model.jobs import Job, JobSpec, Owner
from bireme.core.model.resources import Allocation
from bireme.core.model.steps import Step


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """Start the gang: prepare every node, then the batch script on the first one. All or nothing."""

    job: Job
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class TerminateJob:
    """End what is left of this generation on its nodes: SIGCONT, SIGTERM, `grace_s`, SIGKILL; then clear them."""

    job_id: int
    generation: int
    nodes: tuple[str, ...]
    grace_s: int
    cause: str = ""
    """What the job's stderr is told, in Slurm's words: TIME LIMIT, JOB REQUEUE ..."""
    given_up: tuple[str, ...] = ()
    """Those of the nodes that are not waited for while they do not answer; they are told when they are back."""


@dataclass(frozen=True, slots=True)
class SignalJob:
    job_id: int
    generation: int
    nodes: tuple[str, ...]
    signal: int
    scope: str


@dataclass(frozen=True, slots=True)
class SuspendJob:
    job_id: int
    generation: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResumeJob:
    job_id: int
    generation: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaunchStep:
    job: Job
    allocation: Allocation
    step: Step


@dataclass(frozen=True, slots=True)
class SignalStep:
    job_id: int
    generation: int
    step_id: int
    nodes: tuple[str, ...]
    signal: int


@dataclass(frozen=True, slots=True)
class TerminateStep:
    job_id: int
    generation: int
    step_id: int
    nodes: tuple[str, ...]
    grace_s: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class FindJob:
    """The engine's own queue does not list this job any more: find out how it ended, and report it (`JobSeen`)."""

    job: Job


@dataclass(frozen=True, slots=True)
class SubmitReplica:
    """Bring a service's replica into the engine's own queue, and report its number (`ReplicaSubmitted`).

    Answered the same however often it is said: `key` names this replica and no other, ever.
    """

    service: str
    replica: int
    spec: JobSpec
    key: str
    qos_if_there: str = ""
    """The QOS of services, where the service named none: it has this one if the queue lets its owner have it."""


@dataclass(frozen=True, slots=True)
class EndReplica:
    """End the job of a service's replica in the engine's own queue, as its owner. Its end is seen as any job's is."""

    service: str
    replica: int
    job_id: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class TellJob:
    """Write a line into the output of a job that runs: of its script, or where it has none of its steps. Said twice, it
    is written once; the same words of another time are another line."""

    job_id: int
    generation: int
    nodes: tuple[str, ...]
    text: str
    at: float
    """When there was a reason to say it."""


Command = (
    LaunchJob
    | TerminateJob
    | SignalJob
    | SuspendJob
    | ResumeJob
    | LaunchStep
    | SignalStep
    | TerminateStep
    | FindJob
    | SubmitReplica
    | EndReplica
    | TellJob
)
