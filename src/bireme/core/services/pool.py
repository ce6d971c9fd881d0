"""One pool for services and batch: the QOS that services have by default, so that batch makes way for them.

Where slurm.conf says nothing of preemption, jobs of this QOS alone may preempt (`Preemption.by` is "services"): batch
is requeued by its own rules of grace and checkpoint. Where slurm.conf does, its rules hold, and the QOS is one like
any other. Called when a service is deployed. Invariant: a QOS of that name that an operator has made is left alone.
"""

from __future__ import annotations

from bireme.core.accounts.membership import settled
from bireme.core.model import events as e
from bireme.core.model.accounts import NORMAL, Qos
from bireme.core.model.jobs import JobSpec
from bireme.core.model.refusals import Refusal
from bireme.core.state.state import State

DESCRIPTION = "services before batch"


def in_pool(state: State, job: JobSpec) -> tuple[JobSpec, list[e.Event]]:
    """What each replica is to ask for, with the QOS of services unless it names one; and the QOS, if there is none.

    Where the account book is enforced and does not let the owner have it, the owner's own default counts. (Who named
    it and may not have it was refused when the job was admitted.)
    """
    name = state.config.settings.service_qos
    if not name or job.qos.lower() not in ("", name.lower()):
        return job, []
    enforced = "qos" in state.config.settings.accounting_enforce
    if name not in state.accounts.qos:
        return (job, []) if enforced else (job.revised(qos=name), [e.AccountsChanged(qos=(_made(state, name),))])
    asked = job.revised(qos=name)
    return (asked if not enforced or _may_have(state, asked) else job), []


def _made(state: State, name: str) -> Qos:
    """It may preempt all that stand no higher than `normal`, and changes nobody's weight by its own."""
    known = state.accounts.qos
    usual = known[NORMAL].priority if NORMAL in known else 0
    below = tuple(sorted(each.name for each in known.values() if each.priority <= usual))
    highest = max((each.priority for each in known.values()), default=0)
    return Qos(id=state.accounts.next_qos_id, name=name, description=DESCRIPTION, priority=highest, preempt=below)


def _may_have(state: State, job: JobSpec) -> bool:
    names = job.partitions or tuple(each.name for each in state.partitions.values() if each.default)
    try:
        settled(state, job.revised(partitions=names))
    except Refusal:
        return False
    return True
