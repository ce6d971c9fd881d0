"""What all workers did, added up: for the daemon's autoscaler (`Load`) and for Prometheus.

Kept by the supervisor. Counters only grow while the process lives; those of services and replicas that are gone are
forgotten with them. An average or rate is a worker's own, of the time that this worker told of, and holds until it
tells again: workers and the supervisor never look at quite the same moment, and a Load may follow another at once.
Invariant: what is in flight and waits is read from the board, and so is true when it is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bireme.exposition import Page
from bireme.router.board import Board
from bireme.router.inner import Did, replica_name, service_name
from bireme.router.messages import BUCKETS_S, STATUS_CLASSES, Counts, Load, ReplicaLoad, ServiceLoad, Table
from bireme.router.rules.tally import Tally

Cells = dict[str, int]


class _Sum:
    """The load of one service or replica, added up over all workers."""

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
        page = Page()
        page.tell("bireme_router_table_serial", "gauge", "The table that is gone by.", [({}, table.serial)])
        page.tell("bireme_router_workers", "gauge", "Worker processes.", [({}, len(connections))])
        what = "Clients' connections, a second ago at most."
        page.tell("bireme_router_connections", "gauge", what, [({}, sum(connections))])
        what = "Requests that could not be read."
        page.tell("bireme_router_unread_requests_total", "counter", what, [({}, self.unread)])
        for service in table.services:
            self._numbers_of(service.name, [each.id for each in service.replicas], board, cells, page)
        return page.text()

    def _numbers_of(self, name: str, ids: list[str], board: Board, cells: Cells, page: Page) -> None:
        total, labels = self._services[name], {"service": name}
        queued = board.total(cells[service_name(name)])
        page.tell("bireme_service_queued", "gauge", "Requests that wait for a replica.", [(labels, queued)])
        page.tell("bireme_service_arrived_total", "counter", "Requests that came.", [(labels, total.arrived)])
        what = "Requests refused by the router."
        page.tell("bireme_service_refused_total", "counter", what, [(labels, total.refused)])
        counts = total.tally.counts()
        _histogram(page, "bireme_service_latency_seconds", _TO_THE_END, labels, counts.latency, counts.latency_sum_s)
        for replica in ids:
            where = {"service": name, "replica": replica}
            cell = cells.get(replica_name(replica))
            in_flight = board.total(cell) if cell is not None else 0
            page.tell("bireme_replica_in_flight", "gauge", "Requests in flight.", [(where, in_flight)])
            _tell_counts(page, where, self._replicas[name][replica].tally.counts())


_TO_THE_END = "From a head to its answer's end."


def _tell_counts(page: Page, where: dict[str, str], counts: Counts) -> None:
    """Of a replica."""
    what = "Requests that ended, by class of status."
    by_status = zip(STATUS_CLASSES, counts.requests, strict=True)
    requests = [({**where, "status": status}, count) for status, count in by_status]
    page.tell("bireme_replica_requests_total", "counter", what, requests)
    _histogram(page, "bireme_replica_latency_seconds", _TO_THE_END, where, counts.latency, counts.latency_sum_s)
    what = "To an answer's first byte."
    _histogram(page, "bireme_replica_ttfb_seconds", what, where, counts.ttfb, counts.ttfb_sum_s)
    page.tell("bireme_replica_received_bytes_total", "counter", "Of requests' bodies.", [(where, counts.bytes_in)])
    page.tell("bireme_replica_sent_bytes_total", "counter", "Of answers' bodies.", [(where, counts.bytes_out)])


def _histogram(
    page: Page, name: str, what: str, labels: dict[str, str], counted: Sequence[int], total_s: float
) -> None:
    """`counted`: up to each bound, and in all; empty before the first."""
    buckets = counted or (0,) * (len(BUCKETS_S) + 1)
    family = page.family(name, "histogram", what)
    for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), buckets, strict=True):
        family.add(count, {**labels, "le": bound}, "_bucket")
    family.add(total_s, labels, "_sum")
    family.add(buckets[-1], labels, "_count")
