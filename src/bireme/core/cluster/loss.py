"""After a loss: events that were on disk are gone, and an operator said to go on without them, or a node found it out.

Agents know what the journal no longer does. So nothing starts before every node was heard (or kept silent for
SlurmdTimeout while the daemon was there) and what they hold of starts that the journal does not know is ended. A job
that the journal has waiting and that an agent saw to its end is over, with that end; one that still runs is ended, as
Slurm ends what its controller does not know, and comes back if it may be requeued. New starts get generations that no
lost one can have had.

Decides from the state alone; `apply` calls the handlers, the kernel asks `settled` and `found_over`.
Invariant: while `State.loss` is set nobody plans (`core/plan/unplanned.py`), so no job starts that may be running.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from bireme.core.model import commands as c
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.jobs import ArrayWaiting, Ending, Finished, Job, JobKind, Outcome, Pending
from bireme.core.model.nodes import Health, Node
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.state.state import Loss, State

NOTHING: tuple[c.Command, ...] = ()
ASKING = "events were lost from the journal: nothing starts before every node has said what it holds"
UNKNOWN = 1_000
"""So many jobs, and starts of one job, may have been lost that nobody can tell of."""


def events_lost(state: State, event: e.EventsLost, at: float) -> Sequence[c.Command]:
    state.next_job_id = max(state.next_job_id, event.next_job_id)
    before = state.loss.starts if state.loss is not None else 0
    state.loss = Loss(at, before + event.starts, event.whole_since)
    return NOTHING


def loss_settled(state: State, event: e.LossSettled, at: float) -> Sequence[c.Command]:
    """A start that was lost had at most so many before it: the next of each job is none of them."""
    assert state.loss is not None
    for job in state.pending.values():
        if not job.mirrored:
            job.generation += state.loss.starts
    state.loss = None
    return NOTHING


def why_nothing_starts(state: State) -> Reason | None:
    """For the planner: whoever waits may be running already, and so the nodes are asked first. None: all may start."""
    return None if state.loss is None else reason(ReasonKind.SYSTEM_FAILURE, why=ASKING)


def found_by_a_node(state: State, seen: o.NodeAnswered) -> list[e.Event]:
    """A node knows of starts that the journal has never made: an older copy of the whole home is in its place, mark
    and all, or the machine went back to an earlier day. Orders are given after they are on disk, so it is no chance."""
    if state.loss is not None:
        return []
    unknown = [(job_id, generation) for job_id, generation in (*seen.holds, *seen.past)
               if _never_made(state, job_id, generation)]  # fmt: skip
    if not unknown:
        return []
    newest = max(job_id for job_id, _ in unknown)
    words = ", ".join(f"{job_id} (start {generation})" for job_id, generation in sorted(unknown)[:10])
    note = f"node {seen.node} knows of jobs that the journal does not: {words}"
    next_job_id = max(state.next_job_id, newest + 1) + UNKNOWN
    return [e.EventsLost(state.seq + 1, state.seq, next_job_id, UNKNOWN, note=note, whole_since=state.awake_since)]


def _never_made(state: State, job_id: int, generation: int) -> bool:
    """Whether the journal knows nothing of such a start. Of a job that is over no matter: it does
    not start again, and its last start may have been lost before."""
    job = state.jobs.get(job_id)
    if job is None:
        return job_id >= state.next_job_id
    return not job.mirrored and not isinstance(job.phase, Finished) and generation > job.generation


def settled(state: State, now: float) -> list[e.Event]:
    """Says that starts may be made again after a loss, when they may."""
    if state.loss is None:
        return []
    unheard = tuple(name for name, node in state.nodes.items() if not _heard(node, state.loss))
    waits = unheard or state.leftovers or not state.nodes
    return [] if waits and now < patience_ends_at(state) else [e.LossSettled(unheard)]


def patience_ends_at(state: State) -> float:
    """When nodes that keep silent are given up, as those are that stop answering. While no daemon was there to hear
    them, which may be days after an operator's `recover`, nobody kept silent."""
    assert state.loss is not None
    return max(state.loss.at, state.awake_since) + (state.config.settings.slurmd_timeout_s or inf)


def _heard(node: Node, loss: Loss) -> bool:
    if node.health is Health.DOWN:
        return True
    return node.health is Health.UP and node.last_seen is not None and node.last_seen >= loss.at


def found_over(state: State, seen: o.BatchFinished, outcome: Outcome) -> list[e.Event]:
    """A start that was lost is over, says the node where it ran. `outcome`: what its end means."""
    job = state.pending.get(seen.job_id)
    if seen.job_id not in state.jobs or (job is not None and job.is_waiting_array):
        return _task_found_over(state, seen, outcome)
    if job is None:
        return _later_start_over(state, seen, outcome)
    if job.mirrored or _is_new(state, job) or seen.generation <= job.generation:
        return []
    if not seen.ordered:
        return [e.JobCancelled(job.id, outcome)]
    return [] if _comes_back(state, job) else [e.JobCancelled(job.id, _ended_with_loss())]


def _later_start_over(state: State, seen: o.BatchFinished, outcome: Outcome) -> list[e.Event]:
    """What the end of a lost start means for a job that the journal has running, or on its way back to the queue, with
    an earlier one. So the job does not come back when this one is."""
    job = state.holding.get(seen.job_id)
    if job is None or job.mirrored or _is_new(state, job) or seen.ordered or seen.generation <= job.generation:
        return []
    if isinstance(job.phase, Ending) and not job.phase.requeue:
        return []
    return [e.JobEnding(job.id, job.generation, outcome, kill_now=True)]


def _task_found_over(state: State, seen: o.BatchFinished, outcome: Outcome) -> list[e.Event]:
    """What the end of a lost start means for an array that the journal has waiting: the task gets a
    record of its own again, the last one the array's."""
    array_id, _, task_id = seen.label.partition("_")
    array = state.pending.get(int(array_id)) if array_id.isdigit() and task_id.isdigit() else None
    if array is None or not isinstance(array.array, ArrayWaiting) or int(task_id) not in array.array.waiting:
        return []
    if _is_new(state, array):
        return []
    if seen.ordered:
        if _comes_back(state, array):
            return []
        outcome = _ended_with_loss()
    own_id = seen.job_id if seen.job_id != array.id else state.next_job_id
    job_id = own_id if len(array.array.waiting) > 1 else array.id
    return [e.ArrayTaskSplit(array.id, int(task_id), job_id), e.JobCancelled(job_id, outcome)]


def _is_new(state: State, job: Job) -> bool:
    """Whether a job came after the loss and before a node told of it: a node that knows its id speaks of another."""
    since = state.loss.whole_since if state.loss is not None else None
    return since is not None and job.submitted_at >= since


def _ended_with_loss() -> Outcome:
    why = reason(ReasonKind.SYSTEM_FAILURE, why="its start was lost from the journal, and it was not to be requeued")
    return Outcome("NODE_FAIL", reason=why)


def _comes_back(state: State, job: Job) -> bool:
    assert isinstance(job.phase, Pending)
    wants = state.config.settings.job_requeue if job.spec.requeue is None else job.spec.requeue
    return wants and job.spec.kind is JobKind.BATCH
