"""Orders about jobs in another scheduler's queue are passed on to it, with the caller's identity.

The handlers of `jobs`, `steps` and `operations` ask here first; what is not passed on is decided by
the kinds of `core/`. Invariant: nothing is changed here: what the order did is seen when the queue is looked at again.
"""

from __future__ import annotations

from dataclasses import replace

from bireme.api.routing import Context
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.model.steps import step_label
from bireme.ports import Order


async def passed_on(api: Context, caller: Caller, target: Target, order: Order) -> bool:
    """Whether the job is in another scheduler's queue; the order is then obeyed there. Raises its refusal."""
    queue = api.cluster.engine.capabilities.queue
    jobs = requests.find(api.cluster.state, target) if queue is not None else []
    if queue is None or not any(job.mirrored for job in jobs):
        return False
    if not all(api.sees(caller, job.spec.owner.uid, job.spec.account) for job in jobs):
        raise Refusal(Why.INVALID_JOB_ID)
    await queue.obey(caller, replace(order, target=written(target)))
    await api.cluster.settled()
    return True


def _written_range(tasks: tuple[int, int, int]) -> str:
    first, last, step = tasks
    return str(first) if first == last else f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"


def check_own_book(api: Context) -> None:
    """Accounts, limits, priorities and reservations of a cluster that places by itself are in its book, not in ours."""
    queue = api.cluster.engine.capabilities.queue
    if queue is not None and queue.takes(()):
        raise Refusal(Why.OWN_COMMAND, "the cluster's own scheduler keeps this: use its own commands")


def written(target: Target) -> str:
    """A target as people write it."""
    text = str(target.job_id)
    if target.tasks:
        text += f"_[{','.join(map(_written_range, target.tasks))}]"
    elif target.task_id is not None:
        text += f"_{target.task_id}"
    elif target.het_offset is not None:
        text += f"+{target.het_offset}"
    return text if target.step_id is None else f"{text}.{step_label(target.step_id)}"
