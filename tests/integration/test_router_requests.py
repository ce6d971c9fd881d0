"""What a router does with requests: real processes, real sockets, every byte looked at."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.routing import Client, ReplicaServer, Router, request, running, until

from bireme.router import messages
from bireme.router.messages import Key, Service, Timeouts


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with running(tmp_path_factory.mktemp("router") / "home", "--workers", "1") as started:
        yield started


@pytest.fixture
def replica() -> Iterator[ReplicaServer]:
    with ReplicaServer() as server:
        yield server


@pytest.fixture
def chat(router: Router, replica: ReplicaServer) -> Router:
    """A router with one service of one replica."""
    router.push(Service(name="chat", replicas=(replica.row(),)))
    return router


def error_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def test_a_request_goes_to_its_service_without_the_prefix(chat: Router, replica: ReplicaServer) -> None:
    status, body, head = chat.get("/chat/health?deep=1", Connection="keep-alive, X-Hop", X_Hop="1", X_End="2")
    assert (status, json.loads(body)) == (200, {"replica": "r1", "target": "/health?deep=1"})
    assert b"Via: 1.1 bireme" in head
    (seen,) = replica.heads
    lines = seen.split(b"\r\n")
    assert lines[0] == b"GET /health?deep=1 HTTP/1.1"
    assert b"Host: test" in lines
    assert b"X-End: 2" in lines
    assert b"X-Forwarded-For: 127.0.0.1" in lines
    assert b"X-Forwarded-Proto: http" in lines
    assert b"X-Forwarded-Host: test" in lines
    assert b"X-Forwarded-Prefix: /chat" in lines
    assert b"Via: 1.1 bireme" in lines
    assert not any(line.lower().startswith((b"connection", b"x-hop", b"keep-alive")) for line in lines)


def test_connections_are_kept_on_both_sides(chat: Router, replica: ReplicaServer) -> None:
    with chat.client() as client:
        for number in range(5):
            client.send(request("GET", f"/chat/{number}"))
            assert client.answer()[0] == 200
    assert replica.connections == 1


def test_requests_behind_each_other_are_answered_in_order(chat: Router) -> None:
    with chat.client() as client:
        client.send(b"".join(request("POST", "/chat/echo", b"%d" % number) for number in range(50)))
        assert [client.answer()[1] for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_an_address_nobody_has(chat: Router) -> None:
    status, body, _ = chat.get("/caht/x")
    assert (status, error_of(body)) == (404, "unknown_service")
    assert "bireme services" in json.loads(body)["error"]["message"]


def test_the_router_says_that_it_is_well(chat: Router) -> None:
    assert chat.get("/-/health")[0] == 200


def test_by_host_name(router: Router, replica: ReplicaServer) -> None:
    router.push(Service(name="chat", hosts=("Chat.example",), replicas=(replica.row(),)), Service(name="other"))
    with router.client() as client:
        client.send(b"GET /v1/x HTTP/1.1\r\nHost: chat.EXAMPLE:80\r\n\r\n")
        assert json.loads(client.answer()[1])["target"] == "/v1/x"


def test_a_redirect_stays_below_the_prefix_by_which_its_service_was_asked(router: Router) -> None:
    with ReplicaServer() as replica:
        router.push(*(Service(name=name, replicas=(replica.row(id=name),)) for name in ("chat", "draw")))
        for rest in (b"Content-Length: 0\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"):
            replica.script = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://test/who?a=b\r\n" + rest
            for name in ("chat", "draw"):
                assert f"\r\nLocation: /{name}/who?a=b\r\n".encode() in router.get(f"/{name}/raw")[2] + b"\r\n"


def test_one_address_for_all_models(router: Router) -> None:
    first, second = ReplicaServer("a1"), ReplicaServer("b1")
    router.push(
        Service(name="a", replicas=(first.row(),)),
        Service(name="b", models=("org/model-b",), replicas=(second.row(),)),
    )
    for model, replica in (("a", "a1"), ("b", "b1"), ("org/model-b", "b1")):
        body = json.dumps({"messages": ["ü" * 70_000], "model": model}).encode()
        with router.client() as client:
            client.send(request("POST", "/v1/chat/completions", body, Content_Type="application/json"))
            status, answer, _ = client.answer()
        assert (status, json.loads(answer)) == (200, {"replica": replica, "target": "/v1/chat/completions"})
    assert second.bodies[-1] == body
    listed = json.loads(router.get("/v1/models")[1])
    assert [each["id"] for each in listed["data"]] == ["a", "org/model-b"]
    assert json.loads(router.get("/v1/models/org/model-b")[1])["owned_by"] == "b"
    assert router.get("/v1/models/c")[0] == 404
    for sent, code in ((b'{"model":"c"}', "model_not_found"), (b"{}", "model_missing"), (b"{", "bad_body")):
        with router.client() as client:
            client.send(request("POST", "/v1/completions", sent))
            status, answer, _ = client.answer()
        assert status in (400, 404)
        assert error_of(answer) == code


def test_a_chunked_body_is_read_for_its_model_and_passed_on(router: Router, replica: ReplicaServer) -> None:
    router.push(Service(name="a", replicas=(replica.row(),)), Service(name="b"))
    body = b'6\r\n{"mode\r\n6;x\r\nl":"a"\r\n1\r\n}\r\n0\r\nX-Sum: 1\r\n\r\n'
    with router.client() as client:
        client.send(b"POST /v1/x HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.head()[0] == 100
        client.send(body)
        assert client.answer()[0] == 200
    assert replica.bodies == [body]
    assert b"expect" not in replica.heads[0].lower()


def test_without_a_model_the_only_service_is_meant(chat: Router) -> None:
    with chat.client() as client:
        client.send(request("POST", "/v1/embeddings", b"{}"))
        assert client.answer()[0] == 200


def test_a_stream_comes_as_it_is_sent_with_its_trailers(chat: Router, replica: ReplicaServer) -> None:
    with chat.client() as client:
        client.send(request("GET", "/chat/stream"))
        status, head = client.head()
        assert status == 200
        assert b"Transfer-Encoding: chunked" in head
        assert client.reader.read(13) == b"8\r\ndata: 1\n\r\n"  # the replica holds the rest back
        replica.gate.set()
        rest = b"8;x=y\r\ndata: 2\n\r\n0\r\nX-Sum: 3\r\n\r\n"
        assert client.reader.read(len(rest)) == rest
        client.send(request("GET", "/chat/next"))
        assert client.answer()[0] == 200
    assert replica.connections == 1


def test_an_old_client_gets_a_stream_without_chunks(chat: Router, replica: ReplicaServer) -> None:
    replica.gate.set()
    with chat.client() as client:
        client.send(b"GET /chat/stream HTTP/1.0\r\n\r\n")
        status, head = client.head()
        assert status == 200
        assert b"chunked" not in head
        assert client.reader.read() == b"data: 1\ndata: 2\n"


def test_an_answer_without_a_length_ends_with_the_connection(chat: Router, replica: ReplicaServer) -> None:
    replica.script = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nas long as it takes"
    with chat.client() as client:
        client.send(request("GET", "/chat/raw"))
        status, head = client.head()
        assert status == 200
        assert b"Connection: close" in head
        assert client.reader.read() == b"as long as it takes"


def test_interim_answers_are_passed_on(chat: Router, replica: ReplicaServer) -> None:
    replica.script = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with chat.client() as client:
        client.send(request("GET", "/chat/raw"))
        assert client.head()[0] == 103
        assert client.answer()[:2] == (200, b"ok")


def test_a_client_that_waits_for_continue_gets_it_from_the_replica(chat: Router, replica: ReplicaServer) -> None:
    with chat.client() as client:
        client.send(b"POST /chat/echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert client.head()[0] == 100
        client.send(b"abc")
        assert client.answer()[:2] == (200, b"abc")


def test_a_body_of_chunks_is_passed_on_byte_for_byte(chat: Router, replica: ReplicaServer) -> None:
    body = b"3;a=b\r\nabc\r\n0000a\r\n0123456789\r\n0\r\nX-Trailer: yes\r\n\r\n"
    with chat.client() as client:
        client.send(b"POST /chat/x HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nTrailer: X-Trailer\r\n\r\n")
        for byte in body:
            client.send(bytes([byte]))
        assert client.answer()[0] == 200
    assert replica.bodies == [body]


def test_a_tunnel(chat: Router, replica: ReplicaServer) -> None:
    with chat.client() as client:
        client.send(request("GET", "/chat/socket", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Key="x"))
        status, head = client.head()
        assert status == 101
        assert b"Upgrade: websocket" in head
        client.send(b"hello\x00\xff")
        assert client.reader.read(7) == b"HELLO\x00\xff"
        chat.load_of("chat", lambda load: load.in_flight == 1)
    assert replica.gone.acquire(timeout=30)


def test_a_websocket_whose_replica_ends_is_told_so(chat: Router, replica: ReplicaServer) -> None:
    """Between two frames; in the middle of one, or of another protocol, there are no words for it."""
    goodbye = b"\x88\x18\x03\xe9The replica has ended."
    replica.script = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n"
    for sent, comes in ((b"\x81\x05hello", goodbye), (b"\x81\x09hello", b""), (b"\x88\x02\x03\xe8", b"")):
        replica.script = replica.script.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + sent
        with chat.client() as client:
            client.send(request("GET", "/chat/raw", Connection="Upgrade", Upgrade="websocket"))
            assert client.head()[0] == 101
            assert client.reader.read() == sent + comes


def test_a_websocket_that_is_open_when_the_router_ends_is_told_so(tmp_path: Path, replica: ReplicaServer) -> None:
    with running(tmp_path / "home", "--workers", "1", "--drain-s", "1") as router:
        router.push(Service(name="chat", replicas=(replica.row(),)))
        with router.client() as client:
            client.send(request("GET", "/chat/socket", Connection="Upgrade", Upgrade="websocket"))
            assert client.head()[0] == 101
            router.process.send_signal(signal.SIGTERM)
            assert client.reader.read() == b"\x88\x12\x03\xe9The router ends."


def test_an_offer_of_http_2_is_passed_over(chat: Router, replica: ReplicaServer) -> None:
    status, _, _ = chat.get("/chat/x", Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMAAABk")
    assert status == 200
    assert b"h2c" not in replica.heads[0]
    assert b"HTTP2" not in replica.heads[0]


def test_much_in_both_directions(chat: Router) -> None:
    """More than all buffers on the way: back-pressure holds, and every byte arrives."""
    size = 24 << 20
    data = bytes(range(256)) * (size // 256)
    with chat.client() as client:
        client.send(b"POST /chat/echo HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % size)
        client.send(data)
        status, body, _ = client.answer()
        assert status == 200
        assert hashlib.sha256(body).digest() == hashlib.sha256(data).digest()


def test_who_does_not_read_holds_neither_memory_nor_others(chat: Router) -> None:
    slow = chat.client()
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.send(request("GET", f"/chat/bytes/{256 << 20}"))
    (worker,) = chat.workers()
    until(lambda: bool(slow.socket.recv(1, socket.MSG_PEEK)))
    assert chat.get("/chat/x")[0] == 200
    resident = int(Path(f"/proc/{worker}/statm").read_text().split()[1]) * 4096
    assert resident < 128 << 20
    slow.close()
    chat.load_of("chat", lambda load: load.in_flight == 0 and sum(load.counts.requests) > 1)


def test_a_client_that_leaves_takes_its_request_along(chat: Router, replica: ReplicaServer) -> None:
    client = chat.client()
    client.send(request("GET", "/chat/stream"))
    assert client.head()[0] == 200
    client.close()
    assert replica.gone.acquire(timeout=30)


def test_an_answer_before_the_body_is_passed_on(chat: Router) -> None:
    with chat.client() as client:
        client.send(b"POST /chat/early HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\nabc")
        status, body, head = client.answer()
        assert (status, body) == (403, b"no")
        assert b"Connection: close" in head
        assert client.is_closed()


def test_heads_of_answers_that_lie_are_no_answers(chat: Router, replica: ReplicaServer) -> None:
    for script in (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\n b\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 70_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    ):
        replica.script = script
        with chat.client() as client:
            client.send(request("POST", "/chat/raw", b"x"))
            status, body, _ = client.answer()
        assert (status, error_of(body)) == (502, "bad_answer"), script


def test_an_answer_that_breaks_off_is_seen_to_be_broken(chat: Router, replica: ReplicaServer) -> None:
    replica.script = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nhalf"
    with chat.client() as client:
        client.send(request("GET", "/chat/raw"))
        assert client.head()[0] == 200
        assert client.reader.read() == b"half"
    assert chat.heard(messages.Trouble).replica == "r1"


def test_what_comes_after_an_answer_is_nobodys(chat: Router, replica: ReplicaServer) -> None:
    """A replica that says more than its answer is not believed: the next client would get it."""
    replica.script = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    for _ in range(3):
        status, body, _ = chat.get("/chat/raw")
        assert (status, body) == (200, b"ok")
        assert json.loads(chat.get("/chat/x")[1])["replica"] == "r1"


def test_heads_and_answers_without_bodies(chat: Router, replica: ReplicaServer) -> None:
    with chat.client() as client:
        client.send(request("HEAD", "/chat/bytes/512"))
        status, head = client.head()
        assert status == 200
        assert b"Content-Length: 512" in head
        replica.script = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"
        client.send(request("GET", "/chat/raw"))
        assert client.head()[0] == 304
        client.send(request("HEAD", "/nobody"))
        status, head = client.head()
        assert status == 404
        client.send(request("GET", "/chat/x"))
        assert client.answer()[0] == 200


def test_keys(router: Router, replica: ReplicaServer) -> None:
    text = "sk-secret"
    key = Key(id="k", sha256=hashlib.sha256(text.encode()).hexdigest(), requests_per_minute=3)
    router.push(Service(name="chat", replicas=(replica.row(),), keys=(key,)))
    for fields in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {text}"}, {"api_key": ""}):
        status, body, head = router.get("/chat/x", **fields)
        assert (status, error_of(body)) == (401, "invalid_api_key")
        assert b"WWW-Authenticate: Bearer" in head
    assert router.get("/v1/models")[1] == b'{"object": "list", "data": []}'
    for fields in ({"Authorization": f"Bearer {text}"}, {"api_key": text}, {"X_API_Key": text}):
        assert router.get("/chat/x", **fields)[0] == 200
        assert text.encode() not in replica.heads[-1]
    status, body, head = router.get("/chat/x", api_key=text)
    assert (status, error_of(body)) == (429, "rate_limit_exceeded")
    assert b"Retry-After: " in head


def test_a_key_has_so_many_requests_at_a_time(router: Router, replica: ReplicaServer) -> None:
    key = Key(id="k", sha256=hashlib.sha256(b"s").hexdigest(), concurrency=1)
    router.push(Service(name="chat", replicas=(replica.row(),), keys=(key,)))
    with router.client() as client:
        client.send(request("GET", "/chat/hold", api_key="s"))
        assert replica.arrived.acquire(timeout=30)
        status, body, _ = router.get("/chat/x", api_key="s")
        assert (status, error_of(body)) == (429, "concurrency_limit_exceeded")
        replica.gate.set()
        assert client.answer()[0] == 200
    assert router.get("/chat/x", api_key="s")[0] == 200


def test_a_key_of_somebody_else_is_passed_on(chat: Router, replica: ReplicaServer) -> None:
    assert chat.get("/chat/x", Authorization="Bearer theirs")[0] == 200
    assert b"Authorization: Bearer theirs" in replica.heads[0]


def test_a_key_of_another_service_is_not_passed_on(chat: Router, replica: ReplicaServer) -> None:
    """Clients send one key for all models at an address: it must not end with whoever names a model."""
    ours = "bireme-" + "k" * 43
    assert chat.get("/chat/x", Authorization=f"Bearer {ours}", x_api_key="theirs")[0] == 200
    assert ours.encode() not in replica.heads[0]
    assert b"theirs" in replica.heads[0]


def test_a_body_above_the_services_limit(router: Router, replica: ReplicaServer) -> None:
    router.push(Service(name="chat", replicas=(replica.row(),), body_limit=10))
    with router.client() as client:
        client.send(request("POST", "/chat/echo", b"0123456789"))
        assert client.answer()[0] == 200
        client.send(request("POST", "/chat/echo", b"0123456789a"))
        assert client.answer()[0] == 413
    with router.client() as client:
        client.send(b"POST /chat/x HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            client.send(b"5\r\nabcde\r\n")
        assert client.answer()[0] == 413


@pytest.mark.parametrize(
    ("timeouts", "target", "code"),
    [
        (Timeouts(first_byte_s=0.5), "/chat/hold", "first_byte_timeout"),
        (Timeouts(total_s=0.5), "/chat/hold", "total_timeout"),
    ],
)
def test_limits_of_time(router: Router, replica: ReplicaServer, timeouts: Timeouts, target: str, code: str) -> None:
    router.push(Service(name="chat", replicas=(replica.row(),), timeouts=timeouts))
    status, body, _ = router.get(target)
    assert (status, error_of(body)) == (504, code)


def test_no_limit_comes_before_its_time(router: Router, replica: ReplicaServer) -> None:
    limit_s = 0.4
    router.push(Service(name="chat", replicas=(replica.row(),), timeouts=Timeouts(first_byte_s=limit_s)))

    def ask(delay_s: float) -> float:
        time.sleep(delay_s)  # the router looks twice a second: each of these begins at another moment between two looks
        began = time.monotonic()
        assert router.get("/chat/hold")[0] == 504
        return time.monotonic() - began

    with ThreadPoolExecutor(5) as people:
        assert min(people.map(ask, (0.0, 0.1, 0.2, 0.3, 0.4))) >= limit_s


def test_a_stream_that_falls_silent_is_ended(router: Router, replica: ReplicaServer) -> None:
    router.push(Service(name="chat", replicas=(replica.row(),), timeouts=Timeouts(idle_s=0.5)))
    with router.client() as client:
        client.send(request("GET", "/chat/stream"))
        assert client.head()[0] == 200
        assert client.reader.read(13) == b"8\r\ndata: 1\n\r\n"
        assert client.is_closed()


def test_a_replica_that_does_not_read_is_not_waited_for(router: Router) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # the kernel takes connections, and nobody reads them
        row = messages.Replica(id="deaf", host="127.0.0.1", port=deaf.getsockname()[1])
        router.push(Service(name="chat", replicas=(row,), timeouts=Timeouts(idle_s=0.5)))
        with router.client() as client:
            client.send(b"POST /chat/x HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n")
            sender = threading.Thread(target=_sent, args=(client,))
            sender.start()
            status, body, _ = client.answer()
            assert (status, error_of(body)) == (504, "idle_timeout")
        sender.join()


def _sent(client: Client) -> None:
    with contextlib.suppress(OSError):
        client.send(b"x" * 100_000_000)


def test_a_service_without_keys_is_for_this_machine(tmp_path: Path, replica: ReplicaServer) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = asking.getsockname()[0]
    with running(tmp_path / "home", "--host", "0.0.0.0", "--workers", "1") as router:
        key = Key(id="k", sha256=hashlib.sha256(b"s").hexdigest())
        open_to_all = Service(name="keyed", replicas=(replica.row(id="r2"),), keys=(key,))
        router.push(Service(name="chat", replicas=(replica.row(),)), open_to_all)
        with socket.create_connection((address, router.port)) as sock:
            client = Client.__new__(Client)
            client.socket, client.reader = sock, sock.makefile("rb")
            client.send(request("GET", "/chat/x"))
            status, body, _ = client.answer()
            assert (status, error_of(body)) == (403, "loopback_only")
            client.send(request("GET", "/keyed/x", api_key="s"))
            assert client.answer()[0] == 200
            client.send(request("GET", "/v1/models", api_key="s"))
            assert [each["id"] for each in json.loads(client.answer()[1])["data"]] == ["keyed"]
