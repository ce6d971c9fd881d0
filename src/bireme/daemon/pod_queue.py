"""The runtime's queue as an engine sees it that brings jobs of its own: others' pods on Kubernetes.

Wired by `app`. Pods come from the API server, which has decided who may make them; to the queue they are jobs of their
namespace. Invariant: a job of pods can be made here only; the REST API refuses them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bireme.core.accounting.edits import BookError
from bireme.core.accounting.ranks import Rank, ranked
from bireme.core.explain.wording import sentence
from bireme.core.jobs.requests import Target, cancel
from bireme.core.model.events import AccountsChanged, Event
from bireme.core.model.jobs import HOLDING, Job, JobSpec, Pending
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.state.state import State
from bireme.ports import JournalError, QueueRefusal
from bireme.runtime.service import Runtime

log = logging.getLogger("bireme.daemon")

_PASSING = (Why.TOO_MANY_JOBS,)
_CALLER = Caller(uid=0, gid=0, user="root", group="root", admin=True)


class PodQueue:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def submit(self, specs: Sequence[JobSpec], key: str) -> tuple[int, int]:
        try:
            return await self._runtime.submit(_CALLER, specs, key), len(specs)
        except Refusal as refusal:
            raise QueueRefusal(refusal.hint or str(refusal), passing=refusal.why in _PASSING) from refusal
        except JournalError as error:
            raise QueueRefusal(str(error), passing=True) from error

    async def withdraw(self, job_id: int) -> bool:
        """Only what still waits: what has started ends with its pods."""
        out = True

        def decide(state: State, _now: float) -> list[Event]:
            nonlocal out
            job = state.jobs.get(job_id)
            waits = job is not None and isinstance(job.phase, Pending)
            out = job is None or not isinstance(job.phase, HOLDING)
            return cancel(state, _CALLER, Target(job_id)) if waits else []

        await self._runtime.do("pods withdrawn", decide)
        return out

    def workloads(self) -> Sequence[Job]:
        state = self._runtime.state
        alive = (*state.pending.values(), *state.holding.values())
        return [job for job in alive if job.spec.workload is not None]

    def why_waiting(self, job_id: int) -> str:
        verdict = self._runtime.state.verdicts.get(job_id)
        return "; ".join(dict.fromkeys(sentence(reason) for reason in verdict.reasons)) if verdict else ""

    async def keep_ranks(self, ranks: Sequence[Rank]) -> None:
        def decide(state: State, _now: float) -> list[Event]:
            try:
                change = ranked(state.accounts, ranks)
            except BookError as error:
                log.warning("the PriorityClasses of the cluster make no QOS: %s", error)
                return []
            return [change] if change != AccountsChanged() else []

        await self._runtime.do("priority classes", decide)

    def qos_named(self, name: str) -> str:
        return name.lower() if name.lower() in self._runtime.state.accounts.qos else ""
