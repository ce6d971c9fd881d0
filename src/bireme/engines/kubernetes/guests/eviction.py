"""Takes others' pods from their nodes, through the eviction API: disruption budgets and the pods' own grace count.

`scheduler.py` calls it when a job of guests is to end. Invariant: it asks until the pod is gone or the API server
refuses for good; the end itself is told by whoever hears of it (`places`).
"""

from __future__ import annotations

import asyncio
import logging

from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi
from bireme.engines.kubernetes.guests import words
from bireme.engines.kubernetes.guests.places import Place, Places

log = logging.getLogger("bireme.engines.kubernetes")

_RETRY_S = 2.0
_GONE = 404


async def evict(api: KubernetesApi, places: Places, place: Place) -> None:
    """All that are left of a job."""
    place.leaving = True
    if not place.left:
        if not place.binding:  # whoever binds tells of its end
            places.over(place)
        return
    await asyncio.gather(*(_evict_one(api, places, place, name) for name in sorted(place.left)))


async def _evict_one(api: KubernetesApi, places: Places, place: Place, name: str) -> None:
    """Until it goes: a disruption budget may say "not now" (429) for as long as it likes."""
    path = f"/api/v1/namespaces/{place.namespace}/pods/{name}/eviction"
    body = words.eviction(place.namespace, name)
    while name in place.left:
        try:
            await api.ask("POST", path, body)
            return
        except ApiProblem as problem:
            if problem.status == _GONE:
                places.pod_over(place, name, None)
                return
            if not problem.passing:
                log.error("cannot evict %s/%s: %s", place.namespace, name, problem)
                return
            await asyncio.sleep(_RETRY_S)
