"""What people send who mean no good: a clear status, nothing passed on that reads in two ways, others are served."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.routing import Client, ReplicaServer, Router, request, running, until
from tests.unit.router.test_router_heads import REFUSED, REFUSED_BODIES

from bireme.router import messages
from bireme.router.messages import Service

LIMITS = (
    "--workers", "1", "--head-s", "1", "--keep-alive-s", "2", "--pace-s", "1", "--most-connections", "400",
    "--most-of-one", "100",
)  # fmt: skip


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with running(tmp_path_factory.mktemp("router") / "home", *LIMITS) as started:
        yield started


@pytest.fixture
def replica(router: Router) -> Iterator[ReplicaServer]:
    with ReplicaServer() as server:
        router.push(Service(name="chat", replicas=(server.row(),)))
        yield server


def others_are_served(router: Router) -> bool:
    with Client(router.port, source="127.0.0.2") as client:
        client.send(request("GET", "/chat/x"))
        return client.answer()[0] == 200


@contextlib.contextmanager
def as_somebody_else() -> Iterator[None]:
    """Sockets that are made within are another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def memory_of(router: Router) -> int:
    (worker,) = router.workers()
    return int(Path(f"/proc/{worker}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("name", REFUSED)
def test_a_head_that_could_be_two_is_answered_and_nothing_is_passed_on(
    router: Router, replica: ReplicaServer, name: str
) -> None:
    head, status = REFUSED[name]
    behind = b"\r\n\r\n5\r\nGET /chat/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    with router.client() as client:
        client.send(head.replace(b" / ", b" /chat/x ", 1) + behind)
        answer = client.answer()
        assert answer[0] == status
        assert json.loads(answer[1])["error"]["code"] == "bad_request"
        assert client.is_closed()
    assert replica.heads == []


@pytest.mark.parametrize("name", REFUSED_BODIES)
def test_a_body_that_could_end_elsewhere_is_not_a_second_request(
    router: Router, replica: ReplicaServer, name: str
) -> None:
    with router.client() as client, contextlib.suppress(OSError):
        client.send(b"POST /chat/echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(REFUSED_BODIES[name] + b"GET /chat/smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.answer()[0] == 400
        assert client.is_closed()
    assert not any(b"smuggled" in head for head in replica.heads)
    assert replica.bodies == []


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_request_in_whatever_pieces_is_the_same(router: Router, replica: ReplicaServer, cut: int) -> None:
    wire = request("POST", "/chat/echo", b"hello", X_Field="value") + request("GET", "/chat/next")
    with router.client() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(wire), cut):
            client.send(wire[start : start + cut])
        assert client.answer()[:2] == (200, b"hello")
        assert client.answer()[0] == 200
    assert [head.split()[1] for head in replica.heads] == [b"/echo", b"/next"]


def test_an_endless_head(router: Router, replica: ReplicaServer) -> None:
    """As much as the router reads of a head of a gigabyte."""
    before = memory_of(router)
    with router.client() as client:
        client.send(b"GET /chat/x HTTP/1.1\r\nHost: a\r\n")
        with contextlib.suppress(OSError):
            for _ in range(1024):
                client.send(b"X-Long: " + b"a" * (1 << 20))
        with contextlib.suppress(ConnectionResetError):
            assert client.answer()[0] in (431, 0)
    assert others_are_served(router)
    assert memory_of(router) - before < 32 << 20
    with router.client() as client:
        client.send(b"GET /chat/x HTTP/1.1\r\nHost: a\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n")
        assert client.answer()[0] == 431
    with router.client() as client:
        client.send(b"G" * 20_000)
        assert client.answer()[0] == 414


def test_heads_that_never_end_are_ended(router: Router, replica: ReplicaServer) -> None:
    """Slowloris: a byte now and then does not buy time."""
    with router.client() as client:
        status = 0
        client.send(b"GET /chat/x HTTP/1.1\r\n")
        client.socket.settimeout(0.1)
        while not status:
            with contextlib.suppress(TimeoutError, ValueError, IndexError):
                status = int(client.socket.recv(4096).split(b" ")[1])
            with contextlib.suppress(OSError):
                client.send(b"X: y\r\n")
        assert status == 408


def test_who_says_nothing_is_not_kept(router: Router, replica: ReplicaServer) -> None:
    with router.client() as silent, router.client() as done:
        done.send(request("GET", "/chat/x"))
        assert done.answer()[0] == 200
        assert silent.is_closed()
        assert done.is_closed()


def test_a_body_that_does_not_come_is_not_waited_for(router: Router, replica: ReplicaServer) -> None:
    with router.client() as client:
        client.send(b"POST /chat/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nabc")
        status, said, _ = client.answer()
        assert (status, b"did not come in time" in said) == (408, True)
        assert client.is_closed()
    for address in (b"/chat/echo", b"/v1/chat"):  # it lies: less than it says, then nothing
        with router.client() as client:
            client.send(b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc" % address)
            client.socket.shutdown(socket.SHUT_WR)
            status, said, _ = client.answer()
            assert (status, b"ended before its length" in said) == (400, True)
            assert client.is_closed()
    assert replica.bodies == []
    router.load_of("chat", lambda load: load.in_flight == 0)
    assert others_are_served(router)


def test_who_sends_more_than_it_says_has_sent_another_request(router: Router, replica: ReplicaServer) -> None:
    with router.client() as client:
        client.send(b"POST /chat/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcdef\r\n\r\n")
        assert client.answer()[:2] == (200, b"abc")
        assert client.answer()[0] == 400
        assert client.is_closed()


def test_who_does_not_take_its_answer_is_cut_off(router: Router, replica: ReplicaServer) -> None:
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", router.port))
    slow.sendall(request("GET", f"/chat/bytes/{64 << 20}"))
    assert replica.arrived.acquire(timeout=30)
    router.load_of("chat", lambda load: load.in_flight == 1)
    router.load_of("chat", lambda load: load.in_flight == 0 and load.counts.requests[3] > 0)
    slow.close()


def test_who_asks_much_and_takes_nothing_is_not_asked_for_more(router: Router, replica: ReplicaServer) -> None:
    """Requests behind each other, each with a large answer: what is not taken is not made."""
    before = memory_of(router)
    greedy = router.client()
    greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    greedy.send(request("GET", f"/chat/bytes/{4 << 20}") * 500)
    assert greedy.is_closed() or greedy.socket.recv(1)
    assert others_are_served(router)
    assert memory_of(router) - before < 64 << 20
    assert len(replica.heads) < 20
    greedy.close()


def test_who_reads_a_byte_now_and_then_holds_neither_a_replica_nor_memory(
    router: Router, replica: ReplicaServer
) -> None:
    before = memory_of(router)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(120.0)
    slow.connect(("127.0.0.1", router.port))
    slow.sendall(request("GET", f"/chat/bytes/{64 << 20}"))
    assert replica.arrived.acquire(timeout=120)
    assert others_are_served(router)
    assert memory_of(router) - before < 32 << 20
    over = threading.Event()

    def sip() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.1) and slow.recv(1):
                pass

    reader = threading.Thread(target=sip, daemon=True)
    reader.start()
    router.load_of("chat", lambda load: load.in_flight == 0 and load.counts.requests[3] > 0)
    over.set()
    reader.join(120.0)
    slow.close()


def test_a_flood_of_a_service_that_sleeps_is_one_wake_and_a_bounded_queue(
    tmp_path: Path, replica: ReplicaServer
) -> None:
    with running(tmp_path / "home", "--workers", "1", "--most-connections", "400") as router:
        flood_of_a_service_that_sleeps(router, replica)


def flood_of_a_service_that_sleeps(router: Router, replica: ReplicaServer) -> None:
    router.push(Service(name="chat", replicas=(replica.row(),)), Service(name="asleep", queue=20))
    router.told.clear()
    crowd = []
    for number in range(300):
        client = Client(router.port, source=f"127.0.2.{number % 5}")
        client.send(request("GET", "/asleep/x"))
        crowd.append(client)
    refused: list[Client] = []

    def are_answered() -> bool:
        refused[:] = [each for each in crowd if select.select([each.socket], [], [], 0)[0]]
        return len(refused) == 280

    until(are_answered)
    for client in refused:
        status, body, head = client.answer()
        assert (status, json.loads(body)["error"]["code"]) == (503, "queue_full")
        assert b"Retry-After" in head
    assert others_are_served(router)
    assert len([each for each in router.told if isinstance(each, messages.Wake)]) == 1
    for client in crowd:
        client.close()
    router.load_of("asleep", lambda load: load.queued == 0 and load.arrived >= 300)


def test_chunks_of_a_byte_cost_others_nothing(router: Router, replica: ReplicaServer) -> None:
    """Ten that send nothing else, on both sides of the router: another's requests are answered meanwhile."""
    over = threading.Event()
    replica.script = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 2_000_000

    def send(address: bytes) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), router.client() as client:
                client.send(b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % address)
                while not over.is_set():
                    client.send(b"1\r\na\r\n" * 10_000)

    def take() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), router.client() as client:
                client.send(request("GET", "/chat/raw"))
                while not over.is_set() and client.socket.recv(1 << 20):
                    pass

    ways = [*[lambda: send(b"/v1/x"), lambda: send(b"/chat/x"), take] * 3, take]
    crowd = [threading.Thread(target=way, daemon=True) for way in ways]
    try:
        for thread in crowd:
            thread.start()
        for _ in range(20):
            assert others_are_served(router)
    finally:
        over.set()
    replica.stop()
    for thread in crowd:
        thread.join(120.0)


IMPOSTOR = """
import os, socket, sys
os.setuid(65534)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    near, _ = listener.accept()
    sys.stdout.write("stolen " if near.recv(65536) else "")
    sys.stdout.flush()
    near.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_who_took_a_replicas_port_as_another_user_gets_no_request(router: Router, replica: ReplicaServer) -> None:
    with subprocess.Popen([sys.executable, "-c", IMPOSTOR], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        quick = messages.Timeouts(connect_s=0.5)
        taken = messages.Replica(id="a", host="127.0.0.1", port=port, uid=4321)
        router.push(Service(name="chat", replicas=(taken,), timeouts=quick))
        status, body, _ = router.get("/chat/x", Authorization="Bearer secret")
        assert (status, json.loads(body)["error"]["code"]) == (502, "unreachable")
        assert "another user's program" in json.loads(body)["error"]["message"]
        router.heard(messages.Trouble, lambda told: "another user's program" in told.why)
        router.push(Service(name="chat", replicas=(taken, replica.row(uid=4321)), timeouts=quick))
        for _ in range(10):
            assert router.get("/chat/x")[0] == 200, "root's own is trusted, and the other one passed over"
        router.push(Service(name="chat", replicas=(messages.Replica(id="b", host="127.0.0.1", port=port, uid=65534),)))
        assert router.get("/chat/x")[0] == 200
        other.kill()
        assert other.stdout.read() == "stolen ", "but for the one that was its own"


def test_keys_cannot_be_guessed_and_guessing_costs_others_nothing(router: Router, replica: ReplicaServer) -> None:
    """No replica sees a guess, nothing is woken by it, and whoever has a key is let in from the same address."""
    digest = hashlib.sha256(b"the key").hexdigest()
    keyed = Service(name="chat", replicas=(replica.row(),), keys=(messages.Key(id="1", sha256=digest),))
    router.push(keyed, Service(name="asleep", keys=keyed.keys))
    router.told.clear()
    with router.client() as client:
        for number in range(1000):
            name = "asleep" if number % 2 else "chat"
            client.send(request("GET", f"/{name}/x", Authorization=f"Bearer the key{number}"))
            assert client.answer()[0] == 401
        client.send(request("GET", "/chat/x", Authorization=f"Bearer {digest}"))
        assert client.answer()[0] == 401, "what is stored is not what is shown"
        client.send(request("GET", "/chat/x", Authorization="Bearer the key"))
        assert client.answer()[0] == 200
    assert len(replica.heads) == 1
    assert b"the key" not in replica.heads[0]
    router.load_of("chat", lambda load: load.refused > 500)
    assert not [each for each in router.told if isinstance(each, messages.Wake)]


def test_ten_thousand_keys_and_many_hosts(router: Router, replica: ReplicaServer) -> None:
    def key(number: int) -> messages.Key:
        digest = hashlib.sha256(b"key %d" % number).hexdigest()
        return messages.Key(id=str(number), sha256=digest, requests_per_minute=2)

    keys = tuple(map(key, range(10_000)))
    hosts = tuple(f"h{number}.example.org" for number in range(3_000))
    router.push(Service(name="chat", replicas=(replica.row(),), keys=keys, hosts=hosts))
    with router.client() as client:
        for number in (0, 5_000, 9_999):
            answers = []
            for host in (hosts[number % 3_000], hosts[-1], hosts[0]):
                words = f"GET /x HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer key {number}\r\n\r\n"
                client.send(words.encode())
                answers.append(client.answer()[0])
            assert answers == [200, 200, 429]
    router.push(Service(name="chat", replicas=(replica.row(),)))
    assert others_are_served(router)


def test_more_keys_than_there_is_room_for_keep_nobody_out(router: Router, replica: ReplicaServer) -> None:
    """Their limits hold in each worker then, which is said."""
    keys = tuple(messages.Key(id=str(number), sha256=f"{number:064x}", concurrency=1) for number in range(40_000))
    mine = messages.Key(id="mine", sha256=hashlib.sha256(b"mine").hexdigest(), requests_per_minute=1)
    router.push(Service(name="greedy", keys=(*keys, mine)), Service(name="chat", replicas=(replica.row(),)))
    assert "has no room for" in router.heard(messages.Ails, lambda told: bool(told.why)).why
    assert others_are_served(router)
    router.push(Service(name="chat", replicas=(replica.row(),)))
    router.heard(messages.Ails, lambda told: not told.why)


def test_bodies_are_not_held_without_end(tmp_path: Path) -> None:
    with running(
        tmp_path / "home", "--workers", "1", "--held-bytes", "1000000", "--model-body-bytes", "800000"
    ) as router:
        router.push(Service(name="a"), Service(name="b"))
        first, second = router.client(), router.client()
        first.send(b"POST /v1/x HTTP/1.1\r\nHost: t\r\nContent-Length: 700000\r\n\r\n" + b" " * 600_000)
        second.send(b"POST /v1/x HTTP/1.1\r\nHost: t\r\nContent-Length: 700000\r\n\r\n" + b" " * 600_000)
        with router.client() as large:
            large.send(b"POST /v1/x HTTP/1.1\r\nHost: t\r\nContent-Length: 900000\r\n\r\n")
            assert large.answer()[0] == 413
        answers = []
        for client in (second, first):
            with contextlib.suppress(TimeoutError):
                client.socket.settimeout(1.0)
                answers.append(client.answer()[0])
        assert answers == [503]
        first.close()
        with router.client() as small:
            small.send(request("POST", "/v1/x", b'{"model": "c"}'))
            assert small.answer()[0] == 404


def test_a_request_that_comes_back_again_and_again_is_ended(router: Router, replica: ReplicaServer) -> None:
    router.push(Service(name="loop", replicas=(messages.Replica(id="self", host="127.0.0.1", port=router.port),)))
    assert router.get("/loop" * 20)[0] == 508


def test_one_user_cannot_have_all_connections(tmp_path: Path) -> None:
    with running(tmp_path / "home", *LIMITS) as router, ReplicaServer() as replica:
        router.push(Service(name="chat", replicas=(replica.row(),)))
        one_user_takes_all_connections(router, replica)


def one_user_takes_all_connections(router: Router, replica: ReplicaServer) -> None:
    """From whichever addresses of this machine. Those without a request make way for the next; where all are in use,
    the next is turned away."""
    idle = [Client(router.port, source=f"127.0.3.{number % 5 + 1}") for number in range(150)]
    with as_somebody_else():
        assert others_are_served(router)
    with router.client() as newest:
        newest.send(request("GET", "/chat/x"))
        assert newest.answer()[0] == 200
    for client in idle:
        client.close()
    busy = [Client(router.port, source=f"127.0.3.{number % 5 + 1}") for number in range(100)]
    for client in busy:
        client.send(request("GET", "/chat/hold"))
    until(lambda: len(replica.heads) >= 102)
    with router.client() as newest:
        status, body, head = newest.answer()
        assert status == 503
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        assert b"Retry-After" in head
    with as_somebody_else():
        assert others_are_served(router)
    replica.gate.set()
    for client in busy:
        assert client.answer()[0] == 200
        client.close()


def test_ten_thousand_connections(tmp_path: Path, replica: ReplicaServer) -> None:
    """As many as this machine lets one process open."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, hard - 1000)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd: list[socket.socket] = []
    try:
        with running(tmp_path / "home", "--workers", "1", "--most-of-one", "20000") as router:
            router.push(Service(name="chat", replicas=(replica.row(),)))
            for number in range(count):
                sock = socket.create_connection(
                    ("127.0.0.1", router.port), source_address=(f"127.0.1.{number % 50}", 0)
                )
                sock.sendall(b"GET /chat/x HT")
                crowd.append(sock)
                if number % 2000 == 0:
                    assert others_are_served(router)
            assert others_are_served(router)
            assert memory_of(router) < 400 << 20
            for sock in crowd:
                sock.close()
            assert others_are_served(router)
    finally:
        for sock in crowd:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_stranger_is_not_heard_at_the_routers_socket(router: Router) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(router.home / messages.SOCKET))
        sock.sendall(b"{]\n" + messages.encode(messages.Table(serial=99)) + messages.encode(messages.Ping(id=5)))
        lines = sock.makefile("rb")
        assert b"not JSON" in lines.readline()
        assert b"say hello first" in lines.readline()
        assert messages.read_told(lines.readline()) == messages.Pong(id=5)


def test_tls(tmp_path: Path, replica: ReplicaServer) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    with running(
        tmp_path / "home", "--workers", "1", "--tls-certificate", str(certificate), "--tls-key", str(key)
    ) as router:
        router.push(Service(name="chat", replicas=(replica.row(),)))
        context = ssl.create_default_context(cafile=str(certificate))
        with (
            socket.create_connection(("127.0.0.1", router.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            client = Client.__new__(Client)
            client.socket, client.reader = sock, sock.makefile("rb")
            client.send(request("POST", "/chat/echo", b"x" * 500_000))
            status, body, _ = client.answer()
            assert (status, len(body)) == (200, 500_000)
            assert b"X-Forwarded-Proto: https" in replica.heads[-1]
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert client.answer()[0] == 400
