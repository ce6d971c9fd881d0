"""The words users see, derived from what is stored: job states, node states. Nothing here is kept anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from bireme.core.model.jobs import Ending, Finished, Job, Pending, Phase, Running, Starting, Suspended
from bireme.core.model.nodes import Health, Node
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.state.state import State

FINAL_STATES = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "DEADLINE",
        "BOOT_FAIL",
    }
)


def job_state(job: Job) -> str:
    return phase_state(job.phase)


def phase_state(phase: Phase) -> str:
    if isinstance(phase, Pending):
        return _held_state(phase) if phase.held_by else "PENDING"
    if isinstance(phase, Starting):
        return "CONFIGURING"
    if isinstance(phase, Running):
        return "RUNNING"
    if isinstance(phase, Suspended):
        return "SUSPENDED"
    if isinstance(phase, Ending):
        return "COMPLETING"
    return phase.outcome.state


def _held_state(phase: Pending) -> str:
    """Slurm has states of their own for jobs held after a code of RequeueExitHold, or without their reservation."""
    kinds = {why.kind for why in phase.reasons}
    if ReasonKind.SPECIAL_EXIT in kinds:
        return "SPECIAL_EXIT"
    return "RESV_DEL_HOLD" if ReasonKind.RESERVATION_DELETED in kinds else "PENDING"


_FAILURES = ("FAILED", "OUT_OF_MEMORY", "TIMEOUT")


def base_state(phase: Phase) -> str:
    """While a job is completing: what it will be. Else the same as its state. Of one whose failure is looked into, or
    that is healed, the accounting does not know an end yet: who asks would take it for over."""
    if isinstance(phase, Ending) and (phase.awaits_verdict or (phase.requeue and phase.outcome.state in _FAILURES)):
        return "RUNNING"
    return phase.outcome.state if isinstance(phase, Ending | Finished) else phase_state(phase)


NOT_CONSIDERED = (reason(ReasonKind.NONE),)


def job_reasons(state: State, job: Job, phase: Phase | None = None) -> tuple[Reason, ...]:
    """Why it waits, or would if it were queued again, or how it ended.

    `phase`: of a phase it is about to enter, instead of its own.
    """
    phase = phase or job.phase
    if isinstance(phase, Pending):
        verdict = state.verdicts.get(job.id)
        return verdict.reasons if verdict else phase.reasons or NOT_CONSIDERED
    if isinstance(phase, Ending | Finished) and phase.outcome.reason is not None:
        return (phase.outcome.reason,)
    if job.held_on_return is not None:
        return (held(job.held_on_return),)
    return NOT_CONSIDERED


def held(by: str) -> Reason:
    return reason(ReasonKind.JOB_HELD_ADMIN if by == "admin" else ReasonKind.JOB_HELD_USER)


def node_base_state(state: State, node: Node) -> str:
    if node.health in (Health.DOWN, Health.LOST):
        return "DOWN"
    if node.health is Health.UNKNOWN:
        return "UNKNOWN"
    room = state.occupancy.room(node.name)
    if not room.jobs:
        return "IDLE"
    full = not room.cpus or room.whole_node_job is not None
    return "ALLOCATED" if full else "MIXED"


def node_flags(state: State, node: Node, reserved: Sequence[str] = ()) -> list[str]:
    """DRAIN, NOT_RESPONDING, COMPLETING: what stands beside the base state. `reserved`: by reservations."""
    flags = list(reserved)
    if node.drained or node.closed:
        flags.append("DRAIN")
    if node.health in (Health.LOST, Health.UNKNOWN):
        flags.append("NOT_RESPONDING")
    jobs = (state.jobs[job_id] for job_id in state.occupancy.room(node.name).jobs if job_id in state.jobs)
    if node.leftovers or any(isinstance(job.phase, Ending) for job in jobs):
        flags.append("COMPLETING")
    return flags
