"""The words for a job's state: long, short, and the lists people filter by (`-t PD,R`, `--state=cancelled`).

Used by squeue, sacct and scancel. Invariant: every state word of the API has a short form here.
"""

from __future__ import annotations

from bireme.slurm.errors import SlurmSyntaxError

JOB_STATES = {
    "PENDING": "PD",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "COMPLETED": "CD",
    "CANCELLED": "CA",
    "FAILED": "F",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "PREEMPTED": "PR",
    "BOOT_FAIL": "BF",
    "DEADLINE": "DL",
    "OUT_OF_MEMORY": "OOM",
    "COMPLETING": "CG",
    "CONFIGURING": "CF",
    "RESIZING": "RS",
    "RESV_DEL_HOLD": "RD",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "REVOKED": "RV",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
}
"""Long to short, in the order of Slurm's own list."""

LIVE_STATES = frozenset({
    "PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "RESV_DEL_HOLD", "REQUEUED",
    "REQUEUE_FED", "REQUEUE_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
})  # fmt: skip
"""What squeue shows when nobody asks for states."""

FAILED_STATES = frozenset({
    "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "PREEMPTED",
})  # fmt: skip

_BY_WORD = {short.lower(): state for state, short in JOB_STATES.items()} | {
    state.lower(): state for state in JOB_STATES
}


def compact_state(state: str) -> str:
    return JOB_STATES.get(state, state[:2])


def job_state(word: str) -> str | None:
    """The long form of a state's long or short name in any case; None when there is no such state."""
    return _BY_WORD.get(word.strip().lower())


def parse_job_states(text: str) -> frozenset[str] | None:
    """A comma list of states; None is "all". Empty words are skipped, as Slurm does."""
    states: set[str] = set()
    for word in text.split(","):
        if not word.strip():
            continue
        if word.strip().lower() == "all":
            return None
        state = job_state(word)
        if state is None:
            raise SlurmSyntaxError(
                f"Invalid job state specified: {word.strip()}\nValid job states include: {','.join(JOB_STATES)}"
            )
        states.add(state)
    return frozenset(states)
