"""Which replica answers, what waits, what is tried again, and what the daemon hears of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.routing import PATIENCE_S, Client, ReplicaServer, Router, request, running, until

from bireme.router import messages
from bireme.router.messages import Replica, Service, Timeouts

MakeReplica = Callable[[str], ReplicaServer]


@pytest.fixture(scope="module", params=[1, 3], ids=["one worker", "three workers"])
def router(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with running(tmp_path_factory.mktemp("router") / "home", "--workers", str(request.param)) as started:
        yield started


@pytest.fixture
def replica() -> Iterator[MakeReplica]:
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(ReplicaServer(name))


def who(answer: tuple[int, bytes, bytes]) -> str:
    assert answer[0] == 200, answer
    return str(json.loads(answer[1])["replica"])


def error_of(answer: tuple[int, bytes, bytes]) -> str:
    return str(json.loads(answer[1])["error"]["code"])


def held(router: Router, *replicas: ReplicaServer) -> Client:
    """A client whose request a replica has and does not answer."""
    client = router.client()
    client.send(request("GET", "/chat/hold"))
    until(lambda: any(each.arrived.acquire(blocking=False) for each in replicas))
    return client


def test_the_one_with_the_fewest_requests_answers(router: Router, replica: MakeReplica) -> None:
    one, two = replica("one"), replica("two")
    router.push(Service(name="chat", replicas=(one.row(),)))
    several = [held(router, one) for _ in range(3)]  # one alone could be as many as what another worker is about to end
    router.push(Service(name="chat", replicas=(one.row(), two.row())))
    assert {who(router.get("/chat/x")) for _ in range(6)} == {"two"}
    one.gate.set()
    assert {who(each.answer()) for each in several} == {"one"}
    assert {who(router.get("/chat/x")) for _ in range(12)} == {"one", "two"}


def test_a_canary_has_its_part(router: Router, replica: MakeReplica) -> None:
    old, new = replica("old"), replica("new")
    rows = (old.row(revision=1), new.row(revision=2))
    router.push(Service(name="chat", replicas=rows, revision_weights={1: 80, 2: 20}))
    found = Counter(who(router.get("/chat/x")) for _ in range(200))
    assert 15 <= found["new"] <= 75
    router.push(Service(name="chat", replicas=rows, revision_weights={1: 100}))
    assert {who(router.get("/chat/x")) for _ in range(20)} == {"old"}
    router.push(Service(name="chat", replicas=rows[1:], revision_weights={1: 90, 2: 10}))
    assert who(router.get("/chat/x")) == "new", "nobody else is there"


def test_clients_stay_with_their_replica(router: Router, replica: MakeReplica) -> None:
    servers = [replica(f"r{number}") for number in range(4)]
    rows = tuple(server.row() for server in servers)
    router.push(Service(name="chat", replicas=rows, affinity_header="X-Session", affinity_cookie="sid"))
    homes = {name: who(router.get("/chat/x", X_Session=name)) for name in map(str, range(20))}
    assert len(set(homes.values())) > 1
    for name, home in homes.items():
        assert who(router.get("/chat/x", X_Session=name)) == home
        assert who(router.get("/chat/x", Cookie=f"a=b; sid={name}")) == home
    gone = homes["0"]
    router.push(
        Service(name="chat", replicas=tuple(row for row in rows if row.id != gone), affinity_header="X-Session")
    )
    for name, home in homes.items():
        assert (who(router.get("/chat/x", X_Session=name)) == home) == (home != gone)


def test_above_max_concurrency_requests_wait_in_order(router: Router, replica: MakeReplica) -> None:
    one = replica("one")
    router.push(Service(name="chat", replicas=(one.row(),), max_concurrency=1, queue=3))
    first = held(router, one)
    waiting = []
    for number in range(3):
        client = router.client()
        client.send(request("POST", f"/chat/echo?{number}", b"%d" % number))
        waiting.append(client)
        router.load_of("chat", lambda load, number=number: load.queued == number + 1)
    full = router.get("/chat/x")
    assert (full[0], error_of(full)) == (503, "queue_full")
    assert b"Retry-After: " in full[2]
    one.gate.set()
    assert who(first.answer()) == "one"
    assert [client.answer()[1] for client in waiting] == [b"0", b"1", b"2"]
    assert [head.split()[1] for head in one.heads] == [b"/hold", b"/echo?0", b"/echo?1", b"/echo?2"]
    router.load_of("chat", lambda load: load.refused == 0 and load.arrived >= 5 and not load.queued)


def queued_in(told: messages.AnyTold) -> int:
    """Requests that wait for the first service, as a Load says; -1 for what is none."""
    return told.services[0].queued if isinstance(told, messages.Load) and told.services else -1


def test_who_leaves_the_queue_is_forgotten(router: Router, replica: MakeReplica) -> None:
    one = replica("one")
    router.push(Service(name="chat", replicas=(one.row(),), max_concurrency=1))
    first = held(router, one)
    leaves, stays = router.client(), router.client()
    leaves.send(request("POST", "/chat/leaves", b"x" * 300_000)[:200_000])  # more than is read ahead
    router.load_of("chat", lambda load: load.queued == 1)
    stays.send(request("GET", "/chat/stays"))
    router.load_of("chat", lambda load: load.queued == 2)
    leaves.close()
    before = len(router.told)
    until(lambda: any(queued_in(told) == 1 for told in router.told[before:]))
    one.gate.set()
    assert who(first.answer()) == who(stays.answer()) == "one"
    assert not any(b"leaves" in head for head in one.heads)


def test_waiting_has_a_limit(router: Router, replica: MakeReplica) -> None:
    one = replica("one")
    timeouts = Timeouts(queue_s=0.5, wake_s=0.5)
    router.push(
        Service(name="chat", replicas=(one.row(),), max_concurrency=1, timeouts=timeouts),
        Service(name="asleep", timeouts=timeouts),
        Service(name="off", wakes=False),
    )
    busy = held(router, one)
    for service in ("chat", "asleep"):
        answer = router.get(f"/{service}/x")
        assert (answer[0], error_of(answer)) == (503, "queue_timeout")
    assert error_of(router.get("/off/x")) == "no_replica"
    busy.close()


def wakes_of(router: Router, service: str) -> int:
    return len([each for each in router.told if isinstance(each, messages.Wake) and each.service == service])


def test_from_zero(router: Router, replica: MakeReplica) -> None:
    router.push(Service(name="zero"))
    clients = [router.client() for _ in range(5)]
    for client in clients:
        client.send(request("POST", "/zero/echo", b"wake up"))
    assert router.heard(messages.Wake, lambda wake: wake.service == "zero")
    router.load_of("zero", lambda load: load.queued == 5 and load.waiting > 0)
    clients.pop().close()
    router.load_of("zero", lambda load: load.queued == 4)
    one = replica("one")
    router.push(Service(name="zero", replicas=(one.row(),)))
    assert [client.answer()[1] for client in clients] == [b"wake up"] * 4
    assert wakes_of(router, "zero") == 1
    assert len(one.heads) == 4
    router.push(Service(name="zero"))
    late = router.client()
    late.send(request("GET", "/zero/x"))
    until(lambda: wakes_of(router, "zero") == 2)
    late.close()


def test_a_large_body_that_waited_is_sent_and_its_connection_goes_on(router: Router, replica: MakeReplica) -> None:
    """More than is read ahead: the client is held back meanwhile, and read again then."""
    router.push(Service(name="sleepy"))
    sent = [b"a" * 100_000, b"b" * 900_000]
    clients = [router.client() for _ in sent]
    for client, body in zip(clients, sent, strict=True):
        threading.Thread(target=client.send, args=(request("POST", "/sleepy/echo", body),)).start()
    router.load_of("sleepy", lambda load: load.queued == 2)
    one = replica("one")
    router.push(Service(name="sleepy", replicas=(one.row(),)))
    for client, body in zip(clients, sent, strict=True):
        assert client.answer()[:2] == (200, body)
        client.send(request("GET", "/sleepy/x"))
        assert who(client.answer()) == "one"


def test_a_service_that_is_taken_away_is_told_to_who_waits(router: Router) -> None:
    router.push(Service(name="fleeting"))
    with router.client() as client:
        client.send(request("GET", "/fleeting/x"))
        router.heard(messages.Wake, lambda wake: wake.service == "fleeting")
        router.push()
        assert client.answer()[0] == 404


def test_a_replica_that_is_not_there_is_told_and_another_answers(router: Router, replica: MakeReplica) -> None:
    dead, alive = replica("dead"), replica("alive")
    dead.stop()
    router.push(Service(name="chat", replicas=(dead.row(), alive.row())))
    for number in range(10):
        with router.client() as client:
            client.send(request("POST", "/chat/echo", b"%d" % number))
            assert client.answer()[1] == b"%d" % number
    trouble = router.heard(messages.Trouble)
    assert (trouble.service, trouble.replica) == ("chat", "dead")
    assert "refused" in trouble.why


def test_where_nobody_can_be_reached(router: Router, replica: MakeReplica) -> None:
    dead = replica("dead")
    dead.stop()
    router.push(Service(name="chat", replicas=(dead.row(),), timeouts=Timeouts(connect_s=0.5)))
    answer = router.get("/chat/x")
    assert (answer[0], error_of(answer)) == (502, "unreachable")


def test_who_cannot_reach_a_replica_gets_the_one_that_comes(router: Router, replica: MakeReplica) -> None:
    dead, alive = replica("dead"), replica("alive")
    dead.stop()
    router.push(Service(name="chat", replicas=(dead.row(),)))
    with router.client() as client:
        client.send(request("POST", "/chat/echo", b"x"))
        router.heard(messages.Trouble)
        router.push(Service(name="chat", replicas=(alive.row(),)))
        assert client.answer()[:2] == (200, b"x")


def test_only_what_is_safe_is_sent_again(router: Router, replica: MakeReplica) -> None:
    one = replica("one")
    router.push(Service(name="chat", replicas=(one.row(),)))
    answer = router.get("/chat/die")
    assert (answer[0], error_of(answer)) == (502, "broken")
    assert len(one.heads) == 3
    with router.client() as client:
        client.send(request("PUT", "/chat/die", b"again"))
        assert client.answer()[0] == 502
    assert one.bodies[3:] == [b"again"] * 3
    with router.client() as client:
        client.send(request("POST", "/chat/die", b"once"))
        assert client.answer()[0] == 502
    assert one.bodies[6:] == [b"once"]


def test_a_draining_replica_ends_what_it_has(router: Router, replica: MakeReplica) -> None:
    old, new = replica("old"), replica("new")
    router.push(Service(name="chat", replicas=(old.row(),)))
    first = held(router, old)
    router.push(Service(name="chat", replicas=(old.row(state="draining"), new.row())))
    assert {who(router.get("/chat/x")) for _ in range(6)} == {"new"}
    router.load_of("chat", lambda load: any(each.state == "draining" and each.in_flight == 1 for each in load.replicas))
    assert not [each for each in router.told if isinstance(each, messages.Drained)]
    old.gate.set()
    assert who(first.answer()) == "old"
    assert router.heard(messages.Drained).replica == "old"
    router.connect()
    assert router.heard(messages.Drained).replica == "old", "a daemon that comes back hears it again"


def test_a_replica_without_requests_is_drained_at_once(router: Router, replica: MakeReplica) -> None:
    old = replica("old")
    router.push(Service(name="chat", replicas=(old.row(state="draining"),)))
    assert router.heard(messages.Drained).replica == "old"


def test_what_hangs_on_a_replica_that_is_gone_is_asked_of_another(router: Router, replica: MakeReplica) -> None:
    """A node that was lost resets nothing: the table says so."""
    lost, alive = replica("lost"), replica("alive")
    router.push(Service(name="chat", replicas=(lost.row(),)))
    client = held(router, lost)
    alive.gate.set()
    router.push(Service(name="chat", replicas=(alive.row(),)))
    assert who(client.answer()) == "alive"


def test_load_is_told(router: Router, replica: MakeReplica) -> None:
    one = replica("one")
    router.push(Service(name="counted", replicas=(one.row(),)))
    clients = [router.client() for _ in range(3)]
    for client in clients:
        client.send(request("POST", "/counted/hold", b"12345"))
    seen = router.load_of("counted", lambda load: load.in_flight == 3 and load.concurrency > 2.5)
    assert seen.replicas[0].in_flight == 3
    one.gate.set()
    for client in clients:
        assert client.answer()[0] == 200
    done = router.load_of("counted", lambda load: load.counts.requests[1] == 3)
    (row,) = done.replicas
    assert done.in_flight == row.in_flight == 0
    assert (done.arrived, row.counts.bytes_in) == (3, 15)
    assert row.counts.latency[-1] == row.counts.ttfb[-1] == 3
    assert row.counts.latency_sum_s >= row.counts.ttfb_sum_s > 0
    router.load_of("counted", lambda load: load.counts.requests[1] == 3 and load.concurrency == 0)


def test_numbers_for_prometheus(router: Router, replica: MakeReplica) -> None:
    one = replica("one")
    router.push(Service(name="numbered", replicas=(one.row(),)))
    assert router.get("/numbered/x")[0] == 200
    router.load_of("numbered", lambda load: load.counts.requests[1] == 1)
    router.say(messages.AskNumbers(id=7))
    text = router.heard(messages.Numbers, lambda numbers: numbers.id == 7).text
    assert 'bireme_replica_requests_total{service="numbered",replica="one",status="2xx"} 1\n' in text
    assert 'bireme_replica_latency_seconds_bucket{service="numbered",replica="one",le="+Inf"} 1\n' in text
    assert 'bireme_replica_in_flight{service="numbered",replica="one"} 0\n' in text
    client = Client.__new__(Client)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(router.home / messages.SOCKET))
        client.socket, client.reader = sock, sock.makefile("rb")
        client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        status, body, _ = client.answer()
    assert status == 200
    assert b"bireme_router_table_serial" in body


def test_a_table_that_cannot_be_gone_by_is_refused(router: Router, replica: MakeReplica) -> None:
    one = replica("one")
    router.push(Service(name="chat", replicas=(one.row(),)))
    for service in (
        Service(name="v1"),
        Service(name="a/b"),
        Service(name="a", replicas=(Replica(id="x", host="127.0.0.1", port=0),)),
        Service(name="a", keys=(messages.Key(id="k", sha256="short"),)),
    ):
        router.serial += 1
        serial = router.serial
        router.say(messages.Table(serial=serial, services=(service,)))
        assert router.heard(messages.Refused, lambda refused, serial=serial: refused.serial == serial).why
    assert who(router.get("/chat/x")) == "one"


def test_a_worker_that_dies_is_replaced(router: Router, replica: MakeReplica) -> None:
    one = replica("one")
    router.push(Service(name="chat", replicas=(one.row(),), max_concurrency=5))
    before = router.workers()
    cut_off = held(router, one)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert cut_off.is_closed()
    assert who(router.get("/chat/x")) == "one"
    until(lambda: len(router.workers()) == len(before))
    assert not set(router.workers()) & set(before)
    router.push(Service(name="chat", replicas=(one.row(state="draining"),)))
    router.heard(messages.Drained)  # what the dead had in flight counts no more


def test_the_router_goes_on_without_a_daemon_and_knows_its_table_when_it_is_started_again(
    tmp_path: Path, replica: MakeReplica
) -> None:
    one = replica("one")
    router = Router(tmp_path / "home", "--workers", "1")
    try:
        router.push(Service(name="chat", replicas=(one.row(),)))
        router.hang_up()
        assert who(router.get("/chat/x")) == "one"
        table = tmp_path / "home" / "table"
        assert table.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "home" / messages.SOCKET).stat().st_mode & 0o777 == 0o600
        router.stop()
        router.start()
        assert router.heard(messages.Welcome).serial == 1
        router.heard(messages.Took)
        assert who(router.get("/chat/x")) == "one"
        router.stop()
        table.write_bytes(table.read_bytes()[:-9])
        router.start()
        assert router.heard(messages.Welcome).serial == 0
    finally:
        router.stop()


def test_there_is_one_router_of_a_home_and_one_on_a_port(tmp_path: Path) -> None:
    def start(home: Path, port: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bireme.router", "--home", str(home), "--port", str(port)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)

    with running(tmp_path / "home", "--workers", "1") as router:
        second = start(tmp_path / "home", 0)
        assert second.returncode == 1
        assert "another router serves" in second.stderr
        taken = start(tmp_path / "other", router.port)
        assert taken.returncode == 1
        assert "is taken by another program" in taken.stderr


def test_a_router_that_is_ended_lets_requests_end(tmp_path: Path, replica: MakeReplica) -> None:
    one = replica("one")
    with running(tmp_path / "home", "--workers", "1") as router:
        router.push(Service(name="chat", replicas=(one.row(),)))
        idle = router.client()
        idle.send(request("GET", "/chat/x"))
        assert who(idle.answer()) == "one"
        one.arrived.acquire()
        client = held(router, one)
        router.process.send_signal(signal.SIGTERM)
        assert idle.is_closed()
        one.gate.set()
        answer = client.answer()
        assert who(answer) == "one"
        assert b"Connection: close" in answer[2]
        assert router.process.wait(PATIENCE_S) == 0


def test_many_at_once_through_a_narrow_service(router: Router, replica: MakeReplica) -> None:
    """Every request is answered, and no replica has more than it may, as far as workers can see each other."""
    servers = [replica("one"), replica("two")]
    router.push(Service(name="chat", replicas=tuple(each.row() for each in servers), max_concurrency=2))
    answers: list[str] = []

    def ask() -> None:
        with router.client() as client:
            for _ in range(10):
                client.send(request("GET", "/chat/x"))
                answers.append(who(client.answer()))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(answers) == 200
    assert set(answers) == {"one", "two"}


class Load:
    """Clients that ask without a pause, on kept connections, and what they were answered."""

    def __init__(self, router: Router, clients: int) -> None:
        self.answers: Counter[int] = Counter()
        self._router = router
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        method = "POST" if number % 2 else "GET"
        with self._router.client() as client:
            while not self._stop.is_set():
                client.send(request(method, "/chat/x", b"body" if method == "POST" else b""))
                self.answers[client.answer()[0]] += 1

    def goes_on(self) -> None:
        """Until some more were answered."""
        wanted = self.answers.total() + 40
        until(lambda: self.answers.total() >= wanted)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def test_a_rolling_update_fails_no_request(router: Router, replica: MakeReplica) -> None:
    rows = {each.name: each.row() for each in (replica("a"), replica("b"), replica("c"))}
    router.push(Service(name="chat", replicas=tuple(rows.values())))
    load = Load(router, 6)
    for name, new in (("a", replica("d")), ("b", replica("e")), ("c", replica("f"))):
        load.goes_on()
        rows[new.name] = new.row()
        rows[name] = Replica(id=name, host=rows[name].host, port=rows[name].port, state="draining")
        router.push(Service(name="chat", replicas=tuple(rows.values())))
        router.heard(messages.Drained, lambda drained, name=name: drained.replica == name)
        del rows[name]
        router.push(Service(name="chat", replicas=tuple(rows.values())))
    load.goes_on()
    load.stop()
    assert set(load.answers) == {200}


def test_a_replica_that_is_killed_fails_only_what_it_has_and_cannot_be_repeated(
    router: Router, replica: MakeReplica
) -> None:
    servers = [replica("a"), replica("b"), replica("c")]
    router.push(Service(name="chat", replicas=tuple(each.row() for each in servers)))
    load = Load(router, 6)
    load.goes_on()
    servers[0].stop()
    load.goes_on()
    load.stop()
    assert load.answers[200] == load.answers.total() - load.answers[502]
    assert load.answers[502] <= 3, "the requests of the three clients that post"
