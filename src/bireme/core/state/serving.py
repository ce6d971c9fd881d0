"""What is known of services besides themselves: which changed, when each is next looked at, whose replica a job is.

An index, so that a turn costs nothing for services to which nothing happens. The kinds of `core/services` keep it.
Derived: after a snapshot is read it is made again, with every service as changed.
Invariant: `jobs` and `ports` name exactly the replicas that there are (`State.validate`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bireme.core.model.serving.services import Replica, Service


@dataclass(slots=True)
class Serving:
    changed: set[str] = field(default_factory=set)
    """Services to look at in this turn: something happened to them."""
    due: dict[str, float] = field(default_factory=dict)
    """Services that time alone will change -> when to look at them again."""
    jobs: dict[int, tuple[str, int]] = field(default_factory=dict)
    """job -> the service and the number of the replica that it is."""
    ports: dict[int, tuple[str, int]] = field(default_factory=dict)
    """port -> whose it is."""
    unwritten: dict[int, str] = field(default_factory=dict)
    """job of a replica -> what is known of it that takes it out of use, and could not be written. Between two turns
    only: the next one takes it in, or it is found out again."""

    def take_in(self, service: Service, replica: Replica) -> None:
        self.ports[replica.port] = (service.name, replica.number)
        if replica.job_id:
            self.jobs[replica.job_id] = (service.name, replica.number)

    def let_go(self, replica: Replica) -> None:
        del self.ports[replica.port]
        self.jobs.pop(replica.job_id, None)

    def to_look_at(self, now: float) -> list[str]:
        """The services that changed, or whose time has come."""
        if not self.changed and not self.due:  # asked in every turn
            return []
        return sorted({*self.changed, *(name for name, at in self.due.items() if at <= now)})


def make_serving(services: Iterable[Service]) -> Serving:
    serving = Serving()
    for service in services:
        serving.changed.add(service.name)
        for replica in service.replicas.values():
            assert replica.port not in serving.ports, f"port {replica.port} is shared"
            serving.take_in(service, replica)
    return serving
