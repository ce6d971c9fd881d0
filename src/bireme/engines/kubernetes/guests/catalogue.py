"""What others' pods are judged by besides nodes and other pods: priority classes, disruption budgets, volumes.

Copies of a few kinds of object, kept by watches; the engine runs the mirrors, `scheduler.py` asks.
"""

from __future__ import annotations

from collections.abc import Callable

from bireme.core.accounting.ranks import Rank
from bireme.engines.kubernetes.apiserver.api import KubernetesApi, Object
from bireme.engines.kubernetes.apiserver.mirror import Mirror
from bireme.engines.kubernetes.guests.volumes import Stock
from bireme.engines.kubernetes.priority_classes import USUAL

SERVICE = "service"
"""The QOS of services whose pods name no PriorityClass: just before batch, which makes way for it."""
_JUST_BEFORE_BATCH = 0.5


class Catalogue:
    def __init__(
        self,
        api: KubernetesApi,
        ranks_changed: Callable[[], None],
        budgets_changed: Callable[[], None],
        volumes_changed: Callable[[], None],
    ) -> None:
        self._classes = Mirror(api, "/apis/scheduling.k8s.io/v1/priorityclasses", _any(ranks_changed))
        self._budgets = Mirror(api, "/apis/policy/v1/poddisruptionbudgets", _any(budgets_changed))
        self._claims = Mirror(api, "/api/v1/persistentvolumeclaims", _any(volumes_changed))
        self._volumes = Mirror(api, "/api/v1/persistentvolumes", _any(volumes_changed))
        self._storage = Mirror(api, "/apis/storage.k8s.io/v1/storageclasses", _any(volumes_changed))
        self._csi_nodes = Mirror(api, "/apis/storage.k8s.io/v1/csinodes", _any(volumes_changed))
        self.mirrors = (self._classes, self._budgets, self._claims, self._volumes, self._storage, self._csi_nodes)

    @property
    def ranks(self) -> list[Rank]:
        found = [
            Rank(name.lower(), int(one["value"]), one.get("preemptionPolicy") != "Never")
            for name, one in sorted(self._classes.objects.items())
            if name != USUAL  # of jobs' pods towards kube-scheduler: nobody is to ask for it as a QOS
        ]
        return found if any(rank.name == SERVICE for rank in found) else [*found, Rank(SERVICE, _JUST_BEFORE_BATCH)]

    @property
    def budgets(self) -> list[Object]:
        return list(self._budgets.objects.values())

    @property
    def stock(self) -> Stock:
        volumes, nodes = self._volumes.objects, self._csi_nodes.objects
        return Stock(self._claims.objects, volumes, self._storage.objects, nodes)


def _any(changed: Callable[[], None]) -> Callable[[str, Object], None]:
    return lambda _kind, _object: changed()
