"""Jobs that are not planned for, and what is said of them: asked by the kernel, which knows no job of its queue.

Another scheduler's jobs wait in its queue: what the planner would do with them is not what will be done, and what that
scheduler says of them stands. After events were lost nobody is planned for (`core/cluster/loss.py`).
Invariant: the verdict of a job that another scheduler places never comes from a plan.
"""

from __future__ import annotations

from bireme.core.cluster.loss import why_nothing_starts
from bireme.core.plan.decisions import BEHIND, Plan
from bireme.core.plan.standby import waiting_for_cpus
from bireme.core.state.state import State, Verdict


def without_a_pass(state: State) -> dict[int, Verdict] | None:
    """All verdicts, where no pass is to be made; None: the queue is to be planned."""
    why = why_nothing_starts(state)
    if why is not None:
        nobody = Verdict((why,))
        return _of_others(state) | {job_id: nobody for job_id, job in state.pending.items() if not job.mirrored}
    if all(job.mirrored for job in state.pending.values()) and not waiting_for_cpus(state):
        return _of_others(state)
    return None


def take_verdicts(state: State, plan: Plan) -> None:
    """What the plan says of jobs that wait here; of a heterogeneous job some may be over."""
    pending = state.pending
    own = {job_id: said for job_id, said in plan.judged.items() if job_id in pending and not pending[job_id].mirrored}
    state.verdicts.update(dict.fromkeys(plan.behind, BEHIND))
    state.verdicts.update(own)


def _of_others(state: State) -> dict[int, Verdict]:
    """What is said of jobs in another scheduler's queue."""
    verdicts, pending = state.verdicts, state.pending
    return {job_id: verdicts[job_id] for job_id in verdicts if job_id in pending and pending[job_id].mirrored}
