"""Gives others' pods their nodes: one binding and one event for each, all pods of a job at the same time.

`scheduler.py` calls it with every start of a job of guests. What came in the way since it was planned is found before
anything is bound. Invariant: a job whose pods could all not be bound is told as refused; if one could, it has started.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.engines.kubernetes.apiserver.api import ApiProblem
from bireme.engines.kubernetes.apiserver.insistence import Insistence
from bireme.engines.kubernetes.guests.places import Place, Places
from bireme.engines.kubernetes.guests.telling import Teller
from bireme.ports import Report

log = logging.getLogger("bireme.engines.kubernetes")

Object = Mapping[str, Any]

_TRIES = 5
_NAMED_MOST = 8


class Binder:
    def __init__(
        self,
        insist: Insistence,
        places: Places,
        pods: Mapping[str, Object],
        teller: Teller,
        report: Report,
        now: Callable[[], float],
        work: Callable[[Coroutine[Any, Any, None]], None],
        take: Callable[[Place], str],
        leave: Callable[[str], None],
    ) -> None:
        """`pods`: guests that have not ended, by namespace/name. `take` says what is in the way of a job, or nothing,
        and then its pods count where they are to be; `leave` is told of a pod (by uid) that will not be there.
        """
        self._insist, self._places, self._pods, self._teller = insist, places, pods, teller
        self._report, self._now, self._work, self._take, self._leave = report, now, work, take, leave

    async def bind(self, command: c.LaunchJob) -> None:
        """Reports what became of it."""
        place = self._places.hold(command.job, command.allocation)
        obstacle = self._take(place)
        if obstacle:
            self._refuse(place, obstacle)
            return
        place.binding = True
        problems = await asyncio.gather(*(self.bind_one(place, name, node) for name, node in place.nodes.items()))
        place.binding = False
        failed = [problem for problem in problems if problem]
        for problem in failed[:_NAMED_MOST]:
            log.warning("job %d: %s", place.job_id, problem)
        exist = any(place.full_name(name) in self._pods for name in place.nodes)
        if len(failed) == len(problems) and exist:
            self._refuse(place, failed[0])
            return
        # Pods that were all deleted before they had a place end their job: there is nothing to try again with.
        self._report([o.JobLaunched(*place.key, self._now())])
        spec = command.job.spec
        if spec.workload is not None and spec.workload.kind == "PodGroup" and not spec.het_component:
            await self._teller.group_bound(spec.workload.namespace, spec.name)
        if not place.left:
            self._places.over(place)

    def _refuse(self, place: Place, why: str) -> None:
        self._places.forget(place.key)
        self._report([o.JobRefused(*place.key, why, self._now())])

    async def bind_one(self, place: Place, name: str, node: str) -> str:
        """Empty when it is bound; else why not. What cannot be bound is left to whoever made it."""
        pod = self._pods.get(place.full_name(name))
        if pod is None:
            self._places.pod_over(place, name, None)
            return f"pod {name} is gone"
        if pod["spec"].get("nodeName"):
            return "" if pod["spec"]["nodeName"] == node else f"pod {name} is on {pod['spec']['nodeName']} already"
        tries = itertools.count(1)
        try:
            await self._insist.bind(pod, node, lambda: name in place.left and next(tries) < _TRIES)
        except ApiProblem as problem:
            self._leave(pod["metadata"]["uid"])
            self._places.pod_over(place, name, None)
            return f"pod {name} could not be bound to {node}: {problem}"
        self._work(self._teller.bound(pod, node))
        return ""
