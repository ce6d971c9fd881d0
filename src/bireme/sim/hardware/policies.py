"""What is done about failures: by people, by Slurm's requeue and a health check, by Bireme. Each time has a source.

`heal`'s are what `make bench` and docs/healing.md say of the product; `requeue`'s are Slurm's usual settings and its
measured requeue; a person's are assumed, and can be said otherwise (`bireme sim faults --person`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    name: str
    about: str
    requeues: bool
    """A lost node's jobs are queued again (JobRequeue)."""
    heals: bool = False
    detects_s: float | None = None
    """Until a broken part is known that tells of itself; None: nobody looks."""
    hang_s: float = 600.0
    """Until a job that hangs is ended: NCCL's own time, or the detector's."""
    again_s: float | None = None
    """Until the script of a job that failed has queued itself again; None: it does not."""
    judges_s: float = 1.0
    person_s: float = 1_800.0
    most_restarts: int = 1_000
    """A day: the rule's default of 5 is for jobs of a few nodes."""


POLICIES = {
    "nothing": Policy(
        name="nothing", about="people start jobs again, and drain what they died of twice", requeues=False
    ),
    "requeue": Policy(
        name="requeue",
        about="jobs queue themselves again, a health check every five minutes drains",
        requeues=True,
        detects_s=150.0,
        again_s=16.0,
    ),
    "heal": Policy(
        name="heal",
        about="Bireme detects, fences, and starts again from the checkpoint",
        requeues=True,
        heals=True,
        detects_s=1.0,
        hang_s=60.0,
    ),
}
