"""What may happen to a service, to a revision of it and to a replica: three tables (law 4). Read them top to bottom.

A replica's job has its own table (`core/jobs/table.py`); here a replica is only made, drained and gone.
"""

from __future__ import annotations

from operator import attrgetter

from bireme.core.kinds.life import Absent, Key, Life, Phase, Rows
from bireme.core.model import events as e
from bireme.core.model.serving.services import ReplicaLife, RevisionLife, ServiceLife
from bireme.core.state.state import State

_UP, _STOPPING = ServiceLife.UP, ServiceLife.STOPPING
_SERVICE: Rows = {
    (Absent, e.ServiceDeployed): (_UP,),
    (_UP, e.ServiceDeployed): (_UP,),
    (_UP, e.ServiceScaled): (_UP,),
    (_UP, e.ServiceKeyAdded): (_UP,),
    (_UP, e.ServiceKeyRevoked): (_UP,),
    (_UP, e.ReplicaAdded): (_UP,),
    (_UP, e.ServiceStopping): (_STOPPING,),
    (_STOPPING, e.ServiceKeyRevoked): (_STOPPING,),
    (_STOPPING, e.ServiceRemoved): (Absent,),
}

_ROLLING, _CANARY, _SERVING = RevisionLife.ROLLING, RevisionLife.CANARY, RevisionLife.SERVING
_RETIRED, _FAILED = RevisionLife.RETIRED, RevisionLife.FAILED
_REVISION: Rows = {
    (Absent, e.ServiceDeployed): (_ROLLING, _CANARY),
    (_ROLLING, e.RevisionSettled): (_SERVING,),
    (_ROLLING, e.RevisionFailed): (_FAILED,),
    (_ROLLING, e.RevisionRetired): (_RETIRED,),
    (_ROLLING, e.RevisionBackedOff): (_ROLLING,),
    (_ROLLING, e.ReplicaAdded): (_ROLLING,),
    (_CANARY, e.RevisionChosen): (_ROLLING,),
    (_CANARY, e.RevisionShifted): (_CANARY,),
    (_CANARY, e.RevisionFailed): (_FAILED,),
    (_CANARY, e.RevisionRetired): (_RETIRED,),
    (_CANARY, e.RevisionBackedOff): (_CANARY,),
    (_CANARY, e.ReplicaAdded): (_CANARY,),
    (_SERVING, e.RevisionRetired): (_RETIRED,),
    (_SERVING, e.RevisionBackedOff): (_SERVING,),
    (_SERVING, e.ReplicaAdded): (_SERVING,),
    (_RETIRED, e.RevisionChosen): (_ROLLING,),
    (_FAILED, e.RevisionChosen): (_ROLLING,),
}

_ORDERED, _LIVING, _DRAINING = ReplicaLife.ORDERED, ReplicaLife.LIVING, ReplicaLife.DRAINING
_REPLICA: Rows = {
    (Absent, e.ReplicaAdded): (_ORDERED, _LIVING),
    (_ORDERED, e.ReplicaQueued): (_LIVING,),
    (_ORDERED, e.ReplicaDraining): (_DRAINING,),
    (_ORDERED, e.ReplicaGone): (Absent,),
    (_LIVING, e.ReplicaHealthChanged): (_LIVING,),
    (_LIVING, e.ReplicaDraining): (_DRAINING,),
    (_LIVING, e.ReplicaGone): (Absent,),
    (_DRAINING, e.ReplicaQueued): (_DRAINING,),
    (_DRAINING, e.ReplicaHealthChanged): (_DRAINING,),
    (_DRAINING, e.ReplicaWithdrawn): (_DRAINING,),
    (_DRAINING, e.ReplicaEnding): (_DRAINING,),
    (_DRAINING, e.ReplicaGone): (Absent,),
}


def _service_phase(state: State, name: Key) -> Phase:
    service = state.services.get(name)
    return Absent if service is None else service.phase


def _revision_phase(state: State, key: Key) -> Phase:
    service = state.services.get(key[0])
    revision = service.revisions.get(key[1]) if service is not None else None
    return Absent if revision is None else revision.phase


def _replica_phase(state: State, key: Key) -> Phase:
    service = state.services.get(key[0])
    replica = service.replicas.get(key[1]) if service is not None else None
    return Absent if replica is None else replica.phase


SERVICE = Life("service", _SERVICE, {event: (attrgetter("name"),) for _, event in _SERVICE}, _service_phase)
REVISION = Life(
    "revision",
    _REVISION,
    {event: (attrgetter("name", "number"),) for _, event in _REVISION}
    | {e.ReplicaAdded: (attrgetter("name", "revision"),)},
    _revision_phase,
    lambda state, key: f"{key[0]}@{key[1]}",
)
REPLICA = Life(
    "replica",
    _REPLICA,
    {event: (attrgetter("name", "replica"),) for _, event in _REPLICA},
    _replica_phase,
    lambda state, key: f"{key[0]}/{key[1]}",
)
