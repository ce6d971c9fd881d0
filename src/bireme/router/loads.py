"""What all workers did, added up: for the daemon's autoscaler (`Load`) and for Prometheus.

Kept by the supervisor. Counters only grow while the process lives; those of services and replicas that are gone are
forgotten with them. An average or rate is a worker's own, of the time that this worker told of, and holds until it
tells again: workers and the supervisor never look at quite the same moment, and a Load may follow another at once.
Invariant: what is in flight and waits is read from the board, and so is true when it is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from bireme.router.board import Board
from bireme.router.inner import Did, replica_name, service_name
from bireme.router.messages import BUCKETS_S, STATUS_CLASSES, Counts, Load, ReplicaLoad, ServiceLoad, Table
from bireme.router.rules.tally import Tally

Cells = dict[str, int]


class _Sum:
    """Of a service or of a replica."""

    __slots__ = ("arrived", "averages", "rates", "refused", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self.arrived = self.refused = 0
        self.averages: dict[int, float] = {}
        """By worker: requests in flight (of a service: that waited) at once."""
        self.rates: dict[int, float] = {}
        """By worker: requests that came in a second."""

    @property
    def average(self) -> float:
        return round(sum(self.averages.values()), 6)

    @property
    def rate(self) -> float:
        return round(sum(self.rates.values()), 6)

    def forget(self, worker: int) -> None:
        self.averages.pop(worker, None)
        self.rates.pop(worker, None)


class Loads:
    """All sums of one router."""

    def __init__(self) -> None:
        self.unread = 0
        """Requests that could not be read: nobody knows for which service they were."""
        self._services: defaultdict[str, _Sum] = defaultdict(_Sum)
        self._replicas: defaultdict[str, defaultdict[str, _Sum]] = defaultdict(lambda: defaultdict(_Sum))
        self._lately: defaultdict[int, list[_Sum]] = defaultdict(list)
        """By worker: what it told averages of."""
        self._seconds = 0.0

    def add(self, worker: int, did: Did) -> None:
        """What a worker says of its latest second, or of more when it was held up."""
        self.forget(worker)
        self.unread += did.unread
        self._seconds = max(self._seconds, did.seconds)
        for part in did.parts:
            service = self._services[part.service]
            service.tally.add(part.tally)
            service.arrived += part.arrived
            service.refused += part.refused
            place = self._replicas[part.service][part.replica] if part.replica else service
            place.averages[worker] = max(part.area / did.seconds, 0.0)
            place.rates[worker] = part.arrived / did.seconds
            self._lately[worker].append(place)
            if place is not service:
                place.tally.add(part.tally)

    def forget(self, worker: int) -> None:
        """It has nothing in flight any more that it told of before, or is gone. Its counts stay."""
        for place in self._lately.pop(worker, ()):
            place.forget(worker)

    def load(self, table: Table, board: Board, cells: Cells, at: float) -> Load:
        """As the workers told last."""
        services = tuple(self._of(service.name, table, board, cells) for service in table.services)
        self._forget(table, services)
        seconds, self._seconds = self._seconds or 1.0, 0.0
        return Load(serial=table.serial, at=at, seconds=seconds, services=services)

    def _of(self, name: str, table: Table, board: Board, cells: Cells) -> ServiceLoad:
        total = self._services[name]
        states = {
            each.id: each.state for service in table.services if service.name == name for each in service.replicas
        }
        replicas = []
        for replica in dict.fromkeys([*states, *self._replicas[name]]):
            cell = cells.get(replica_name(replica))
            part = self._replicas[name][replica]
            replicas.append(
                ReplicaLoad(
                    id=replica,
                    in_flight=board.total(cell) if cell is not None else 0,
                    concurrency=part.average,
                    counts=part.tally.counts(),
                    state=states.get(replica, "gone"),
                )
            )
        return ServiceLoad(
            name=name,
            in_flight=sum(each.in_flight for each in replicas),
            queued=board.total(cells[service_name(name)]),
            concurrency=sum(each.concurrency for each in replicas),
            waiting=total.average,
            rate=total.rate,
            arrived=total.arrived,
            refused=total.refused,
            counts=total.tally.counts(),
            replicas=tuple(replicas),
        )

    def _forget(self, table: Table, services: tuple[ServiceLoad, ...]) -> None:
        """Who is gone and has nothing in flight was told of for the last time."""
        for service in services:
            for replica in service.replicas:
                if replica.state == "gone" and not replica.in_flight:
                    del self._replicas[service.name][replica.id]
        names = {service.name for service in table.services}
        for name in [each for each in self._services if each not in names]:
            del self._services[name]
            self._replicas.pop(name, None)

    def numbers(self, table: Table, board: Board, cells: Cells, connections: list[int]) -> str:
        """What Prometheus reads. `connections`: of clients, by worker."""
        samples = _Samples()
        samples.add("bireme_router_table_serial", "gauge", "The table that is gone by.", {}, table.serial)
        samples.add("bireme_router_workers", "gauge", "Worker processes.", {}, len(connections))
        what = "Clients' connections, a second ago at most."
        samples.add("bireme_router_connections", "gauge", what, {}, sum(connections))
        what = "Requests that could not be read."
        samples.add("bireme_router_unread_requests_total", "counter", what, {}, self.unread)
        for service in table.services:
            self._numbers_of(service.name, [each.id for each in service.replicas], board, cells, samples)
        return samples.text()

    def _numbers_of(self, name: str, ids: list[str], board: Board, cells: Cells, samples: _Samples) -> None:
        total = self._services[name]
        labels = {"service": name}
        queued = board.total(cells[service_name(name)])
        samples.add("bireme_service_queued", "gauge", "Requests that wait for a replica.", labels, queued)
        samples.add("bireme_service_arrived_total", "counter", "Requests that came.", labels, total.arrived)
        samples.add("bireme_service_refused_total", "counter", "Requests refused by the router.", labels, total.refused)
        counts = total.tally.counts()
        samples.histogram("bireme_service_latency_seconds", "From a head to its answer's end.", labels, counts)
        for replica in ids:
            where = {"service": name, "replica": replica}
            cell = cells.get(replica_name(replica))
            in_flight = board.total(cell) if cell is not None else 0
            samples.add("bireme_replica_in_flight", "gauge", "Requests in flight.", where, in_flight)
            samples.of_counts(where, self._replicas[name][replica].tally.counts())


class _Samples:
    """Prometheus' text, family by family."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, what: str, labels: dict[str, str], value: float) -> None:
        family = self._families.setdefault(name, [f"# HELP {name} {what}", f"# TYPE {name} {kind}"])
        family.append(f"{name}{_labels(labels)} {value}")

    def of_counts(self, labels: dict[str, str], counts: Counts) -> None:
        for status, count in zip(STATUS_CLASSES, counts.requests, strict=True):
            what = "Requests that ended, by class of status."
            self.add("bireme_replica_requests_total", "counter", what, labels | {"status": status}, count)
        self.histogram("bireme_replica_latency_seconds", "From a head to its answer's end.", labels, counts)
        self.histogram("bireme_replica_ttfb_seconds", "To an answer's first byte.", labels, counts, is_ttfb=True)
        self.add("bireme_replica_received_bytes_total", "counter", "Of requests' bodies.", labels, counts.bytes_in)
        self.add("bireme_replica_sent_bytes_total", "counter", "Of answers' bodies.", labels, counts.bytes_out)

    def histogram(self, name: str, what: str, labels: dict[str, str], counts: Counts, *, is_ttfb: bool = False) -> None:
        buckets = (counts.ttfb if is_ttfb else counts.latency) or (0,) * (len(BUCKETS_S) + 1)
        family = self._families.setdefault(name, [f"# HELP {name} {what}", f"# TYPE {name} histogram"])
        for bound, count in zip(_bounds(), buckets, strict=True):
            family.append(f"{name}_bucket{_labels(labels | {'le': bound})} {count}")
        family.append(f"{name}_sum{_labels(labels)} {counts.ttfb_sum_s if is_ttfb else counts.latency_sum_s}")
        family.append(f"{name}_count{_labels(labels)} {buckets[-1]}")

    def text(self) -> str:
        return "\n".join(line for family in self._families.values() for line in family) + "\n"


def _bounds() -> Iterator[str]:
    yield from map(str, BUCKETS_S)
    yield "+Inf"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
