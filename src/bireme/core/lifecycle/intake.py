"""Observations become events: what an engine reported, judged against what is known.

A report about an old generation, a repeated one, or one that the state has overtaken gives no events: engines may say
things late, twice and out of order. This is the only place that decides what a process's end means for its job.
"""

from __future__ import annotations

from bireme.core.lifecycle import mirroring
from bireme.core.lifecycle.components import with_companions
from bireme.core.lifecycle.due import node_failure
from bireme.core.lifecycle.loss import found_by_a_node, found_over
from bireme.core.lifecycle.state import State
from bireme.core.model import events as e
from bireme.core.model import observations as o
from bireme.core.model.jobs import Ending, Job, JobKind, Outcome, Running, Starting, Suspended
from bireme.core.model.reasons import Reason, ReasonKind, reason
from bireme.core.model.resources import ExitStatus, NodeShare
from bireme.core.model.steps import StepState

LAUNCH_BACKOFF_S = 5.0
"""Wait after a refused launch, doubled each time."""
LAUNCH_BACKOFF_MOST_S = 300.0
REQUEUE_DELAY_MOST_S = 120.0
"""Longest wait of a job that RequeueExit brings back: none at first, then 1 s, 3 s, 7 s ... Slurm always waits that."""
SPECIAL_EXIT_HELD = "SPECIAL_EXIT"
ABOUT_NO_RUN = (
    o.ClusterSeen,
    o.JobSeen,
    o.QueueSeen,
    o.NodeSeen,
    o.NodeSilent,
    o.NodeClosed,
    o.OthersSeen,
    o.GuardSeen,
)
"""Observations that name no start of a job."""


def interpret(state: State, seen: o.Observation, now: float) -> list[e.Event]:
    return with_companions(state, _judged(state, seen, now))


def _judged(state: State, seen: o.Observation, now: float) -> list[e.Event]:
    match seen:
        case o.ClusterSeen():
            return [e.ClusterConfigured(seen.config)] if seen.config != state.config else []
        case o.JobSeen():
            return [] if seen.past else mirroring.mirrored(state, seen.seen, now)
        case o.NodeSeen():
            return mirroring.node_events(state, seen.seen, seen.at)
        case o.QueueSeen():
            return []  # what it means is not journaled: the kernel takes the standings and asks after what is missing
        case o.NodeAnswered():
            return _node_answered(state, seen)
        case o.NodeSilent():
            known = state.nodes.get(seen.node)
            return [] if known is None or known.health != "UP" else [e.NodeLost(seen.node, seen.reason)]
        case o.NodeClosed():
            return _node_closed(state, seen)
        case o.OthersSeen():
            return _others_seen(state, seen)
        case o.JobUnkillable():  # also of a start that is over for its job: the node is what it is about
            return _drained(state, (seen.node,), f"Kill task failed ({seen.why})")
    cleared = _cleared_leftovers(state, seen)
    if cleared:
        return cleared
    job = state.jobs.get(seen.job_id)
    if state.loss is not None and isinstance(seen, o.BatchFinished) and not _held(state, seen.job_id, seen.generation):
        return found_over(state, seen, _verdict_on(state, seen.status, seen.note)[0])
    if job is None or job.generation != seen.generation or job.id not in state.holding:
        return []
    match seen:
        case o.JobLaunched():
            return [e.JobStarted(job.id, job.generation, seen.at)] if isinstance(job.phase, Starting) else []
        case o.JobRefused():
            return _refused(state, job, seen, now)
        case o.BatchFinished():
            return _batch_finished(state, job, seen)
        case o.JobCleared():
            ended = [*_ended(state, job, seen.at), *_left(seen)] if isinstance(job.phase, Ending) else []
            return [*ended, *_drained(state, seen.epilog_failed_on, "Epilog error")]
        case o.JobVanished():
            return _vanished(state, job, seen)
        case o.GuardSeen():
            news = isinstance(job.phase, Starting | Running | Ending) and job.guarded_by != seen.by
            return [e.JobGuarded(job.id, job.generation, seen.by)] if news else []
        case o.StepBegan():
            step = job.steps.get(seen.step_id)
            fresh = step is not None and step.state is StepState.STARTING
            return [e.StepStarted(job.id, job.generation, seen.step_id, seen.at)] if fresh else []
        case o.StepNodeFinished():
            return _step_node_finished(job, seen)


def stale_in(state: State, seen: o.Observation) -> list[tuple[int, int]]:
    """(job, generation) pairs that the engine speaks of and that the state does not hold and has not to clear."""
    if isinstance(seen, ABOUT_NO_RUN):
        return []
    named = seen.holds if isinstance(seen, o.NodeAnswered) else ((seen.job_id, seen.generation),)
    return [key for key in named if not _held(state, *key) and key not in state.leftovers]


def _held(state: State, job_id: int, generation: int) -> bool:
    job = state.holding.get(job_id)
    return job is not None and job.generation == generation


def _cleared_leftovers(state: State, seen: o.Observation) -> list[e.Event]:
    """Nothing is left there of a start that was over already: these nodes can be given to others."""
    if not isinstance(seen, o.JobCleared) or _held(state, seen.job_id, seen.generation):
        return []
    key = (seen.job_id, seen.generation)
    if state.leftovers.get(key, set()) <= set(seen.uncleared_on):
        return []
    return [e.LeftoverCleared(*key, seen.uncleared_on), *_drained(state, seen.epilog_failed_on, "Epilog error")]


def _node_answered(state: State, seen: o.NodeAnswered) -> list[e.Event]:
    """Jobs that should run there and that the node has never heard of are lost: its agent died and was replaced."""
    if seen.node not in state.nodes:
        return []
    events: list[e.Event] = [*found_by_a_node(state, seen), e.NodeRegistered(seen.node, seen.at, seen.agent)]
    holds = set(seen.holds)
    for job in state.holding.values():
        if not isinstance(job.phase, Running | Suspended) or seen.node not in job.phase.allocation.node_names:
            continue
        if not job.mirrored and (job.id, job.generation) not in holds:
            events.append(node_failure(job, seen.node, state.config.settings.job_requeue))
    events.extend(e.LeftoverFound(seen.node, *key) for key in seen.holds if not _held(state, *key))
    return events


def _node_closed(state: State, seen: o.NodeClosed) -> list[e.Event]:
    node = state.nodes.get(seen.node)
    if node is None or seen.why == (node.closed.text if node.closed else ""):
        return []
    return [e.NodeClosed(seen.node, seen.why)]


def _others_seen(state: State, seen: o.OthersSeen) -> list[e.Event]:
    node = state.nodes.get(seen.share.node)
    if node is None or _sizes(node.others) == _sizes(seen.share):
        return []
    return [e.OthersCounted(node.name, seen.share)]


def _sizes(share: NodeShare | None) -> tuple[object, ...]:
    """How much is held; no matter which CPUs and devices were chosen to stand for it."""
    if share is None:
        return (0, 0, {})
    return (share.cpus, share.memory_mib, {(each.name, each.type): each.count for each in share.gres})


def _refused(state: State, job: Job, seen: o.JobRefused, now: float) -> list[e.Event]:
    drained = _drained(state, seen.prolog_failed_on, "Prolog error")
    drained += _drained(state, seen.short_on, f"Launch failed: {seen.reason}")
    if isinstance(job.phase, Ending):
        return drained if seen.uncleared_on else [*_ended(state, job, seen.at), *drained]
    if not isinstance(job.phase, Starting):
        return drained
    tries = job.launch_failures + 1
    given_up = tries > state.config.settings.max_batch_requeue and not seen.passing
    hold = seen.permanent or given_up or _held_by_prolog(state, seen)
    why = reason(ReasonKind.LAUNCH_FAILED, why=seen.reason, tries=tries)
    if seen.fatal:
        return [e.JobEnding(job.id, job.generation, Outcome("FAILED", ExitStatus(code=1), why), kill_now=True)]
    if job.phase.allocation.first_node in seen.uncleared_on:
        return [_maybe_begun(job, why), *drained]
    if job.spec.kind is JobKind.INTERACTIVE:
        outcome = Outcome("FAILED", ExitStatus(code=1), why)
        ended = [e.JobEnding(job.id, job.generation, outcome), *_ended(state, job, seen.at)]
        return [*ended, *drained, *_left(seen)]
    again_at = now + min(LAUNCH_BACKOFF_MOST_S, LAUNCH_BACKOFF_S * 2 ** min(tries - 1, 10))
    return [e.JobLaunchFailed(job.id, job.generation, why, hold, again_at), *drained, *_left(seen)]


def _maybe_begun(job: Job, why: Reason) -> e.JobEnding:
    """Its script may run where nobody answers: before that is known to be over it must not be started again."""
    batch = job.spec.kind is JobKind.BATCH
    outcome = Outcome("REQUEUED", reason=why) if batch else Outcome("FAILED", ExitStatus(code=1), why)
    return e.JobEnding(job.id, job.generation, outcome, requeue=batch, kill_now=True)


def _left(seen: o.JobRefused | o.JobCleared) -> list[e.Event]:
    """Also on nodes that left the configuration: they may come back."""
    return [e.LeftoverFound(node, seen.job_id, seen.generation) for node in seen.uncleared_on]


def _held_by_prolog(state: State, seen: o.JobRefused) -> bool:
    return bool(seen.prolog_failed_on) and "nohold_on_prolog_fail" not in state.config.words("SchedulerParameters")


def _drained(state: State, nodes: tuple[str, ...], note: str) -> list[e.Event]:
    """A node whose prolog or epilog fails, or that can start nothing, gets no more jobs until somebody has looked."""
    fresh = (node for node in nodes if node in state.nodes and not state.nodes[node].drained)
    return [e.NodeUpdated(node, by_uid=0, drained=True, note=note) for node in fresh]


def _ended(state: State, job: Job, at: float, status: ExitStatus | None = None) -> list[e.Event]:
    """A script that asks again and again to be requeued (RequeueExit) comes back later each time."""
    if status is None and isinstance(job.phase, Ending):
        status = job.phase.outcome.status
    again_at = None
    if status is not None and job.restarts and status.code in state.config.settings.requeue_exit:
        again_at = at + min(REQUEUE_DELAY_MOST_S, 2.0 ** min(job.restarts, 10) - 1)
    return [e.JobEnded(job.id, job.generation, at, not_before=again_at)]


def _batch_finished(state: State, job: Job, seen: o.BatchFinished) -> list[e.Event]:
    events: list[e.Event] = []
    if isinstance(job.phase, Starting):  # it was so short that its end overtook its start
        events.append(e.JobStarted(job.id, job.generation, seen.at))
    if job.batch_status is None:
        events.append(e.BatchExited(job.id, job.generation, seen.status, seen.usage, seen.at))
    if not isinstance(job.phase, Ending):
        outcome, requeue, hold = _verdict_on(state, seen.status, seen.note)
        events.append(e.JobEnding(job.id, job.generation, outcome, requeue, hold))
    if seen.cleared:
        events.extend(_ended(state, job, seen.at, seen.status))
    return events


def _verdict_on(state: State, status: ExitStatus, note: str) -> tuple[Outcome, bool, bool]:
    """(outcome, requeue, hold) of a job whose script ended by itself."""
    settings = state.config.settings
    if status.code and status.code in settings.requeue_exit_hold:
        return Outcome(SPECIAL_EXIT_HELD, status, _why(status, note)), True, True
    if status.code and status.code in settings.requeue_exit:
        return Outcome("REQUEUED", status, _why(status, note)), True, False
    word = "COMPLETED" if status.ok else "OUT_OF_MEMORY" if status.out_of_memory else "FAILED"
    return Outcome(word, status, _why(status, note)), False, False


def _why(status: ExitStatus, note: str) -> Reason | None:
    if status.ok:
        return None
    facts = {"why": note} if note else {}
    if status.out_of_memory:
        return reason(ReasonKind.OUT_OF_MEMORY)
    if status.signal:
        return reason(ReasonKind.RAISED_SIGNAL, signal=status.signal, **facts)
    return reason(ReasonKind.NON_ZERO_EXIT, code=status.code, **facts)


def _vanished(state: State, job: Job, seen: o.JobVanished) -> list[e.Event]:
    if isinstance(job.phase, Ending):
        return []  # its TerminateJob is answered by the new agent
    return [node_failure(job, seen.node, state.config.settings.job_requeue, seen.reason)]


def _step_node_finished(job: Job, seen: o.StepNodeFinished) -> list[e.Event]:
    step = job.steps.get(seen.step_id)
    if step is None or step.state is StepState.ENDED or seen.node in step.ended_nodes:
        return []
    return [e.StepNodeEnded(job.id, job.generation, step.id, seen.node, seen.status, seen.usage, seen.at)]
