"""The router while its own processes change: its supervisor killed, other settings. Nobody notices."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.ports import free_port
from tests.support.routing import ReplicaServer, Router, request, router_workers, running, until
from tests.support.serving import steady_load

from bireme.router import messages
from bireme.router.messages import Service


@pytest.fixture
def replica() -> Iterator[ReplicaServer]:
    with ReplicaServer() as server:
        yield server


@pytest.fixture
def router(tmp_path: Path, replica: ReplicaServer) -> Iterator[Router]:
    with running(tmp_path / "home", "--workers", "2") as started:
        started.push(Service(name="chat", replicas=(replica.row(),)))
        yield started


def workers(router: Router) -> set[int]:
    return set(router_workers(router.home)) - {router.process.pid}


def kill_supervisor(router: Router) -> None:
    router.process.send_signal(signal.SIGKILL)
    router.process.wait()
    router.hang_up()


def remove(folder: Path) -> None:
    """Gone at once: what workers write while its files are unlinked one by one would keep the folder."""
    aside = folder.with_name(f"{folder.name}.removed")
    folder.rename(aside)
    shutil.rmtree(aside)


def url(router: Router) -> str:
    return f"http://127.0.0.1:{router.port}/chat/x"


def configure(router: Router, **changes: object) -> messages.Welcome:
    """Tells it, and waits until new workers answer."""
    asked = {"host": "127.0.0.1", "port": 0, "workers": 2} | changes
    router.told.clear()
    router.say(messages.Configure(**asked))  # type: ignore[arg-type]
    found = router.heard(messages.Welcome)
    router.port = found.port
    return found


def test_a_killed_supervisor_fails_no_request_and_the_next_one_has_its_workers(router: Router) -> None:
    before = workers(router)
    with steady_load(url(router)) as load:
        kill_supervisor(router)
        load.more(300)
        router.start()
        load.more(300)
        assert router.heard(messages.Welcome).serial == 1
        router.heard(messages.Took)
        router.load_of("chat", lambda told: told.counts.requests[1] > 0)
    assert workers(router) == before


def test_again_and_again(router: Router) -> None:
    with steady_load(url(router)) as load:
        for _ in range(3):
            kill_supervisor(router)
            router.start()
            load.more(50)


def test_what_is_in_flight_counts_for_the_next_supervisor(router: Router, replica: ReplicaServer) -> None:
    client = router.client()
    client.send(request("GET", "/chat/hold"))
    assert replica.arrived.acquire(timeout=120)
    kill_supervisor(router)
    router.start()
    router.push(Service(name="chat", replicas=(replica.row(state="draining"),)), Service(name="other"))
    router.heard(messages.Took, lambda told: told.serial == router.serial)
    assert not [told for told in router.told if isinstance(told, messages.Drained)]
    replica.gate.set()
    assert client.answer()[0] == 200
    router.heard(messages.Drained)


def test_who_waits_for_a_replica_is_answered_under_the_next_supervisor(router: Router, replica: ReplicaServer) -> None:
    router.push(Service(name="chat"))
    before, meanwhile = router.client(), router.client()
    before.send(request("GET", "/chat/x"))
    router.heard(messages.Wake)
    kill_supervisor(router)
    meanwhile.send(request("GET", "/chat/x"))
    router.start()
    router.heard(messages.Wake)
    router.push(Service(name="chat", replicas=(replica.row(),)))
    assert before.answer()[0] == meanwhile.answer()[0] == 200


def test_workers_know_what_is_not_on_disk(router: Router) -> None:
    kill_supervisor(router)
    (router.home / "table").unlink()
    router.start()
    assert router.heard(messages.Welcome).serial == 1
    assert router.get("/chat/x")[0] == 200


def test_a_worker_that_dies_with_its_supervisor_is_replaced(router: Router) -> None:
    dead, living = sorted(workers(router))
    kill_supervisor(router)
    os.kill(dead, signal.SIGKILL)
    port = router.port
    router.start()
    assert router.port == port
    until(lambda: len(workers(router)) == 2)
    assert living in workers(router)
    with steady_load(url(router)):
        pass


def test_workers_whose_folder_is_gone_end(tmp_path: Path) -> None:
    router = Router(tmp_path / "home", "--workers", "2")
    router.push(Service(name="chat"))
    kill_supervisor(router)
    remove(router.home)
    until(lambda: not router_workers(router.home))


def test_another_address_is_listened_at_before_the_one_before_is_let_go(router: Router, replica: ReplicaServer) -> None:
    streaming, kept, port = router.client(), router.client(), router.port
    streaming.send(request("GET", "/chat/stream"))
    assert streaming.head()[0] == 200
    kept.send(request("GET", "/chat/x"))
    assert kept.answer()[0] == 200
    assert configure(router, port=free_port()).port != port
    with steady_load(url(router)):
        kept.send(request("GET", "/chat/x"))
        status, _, head = kept.answer()
        assert (status, b"Connection: close" in head) == (200, True), "answered where it is, and told to go"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    replica.gate.set()
    assert b"data: 2\n" in [streaming.reader.readline() for _ in range(5)]


def test_the_same_port_at_all_addresses_is_not_another_programs(router: Router, replica: ReplicaServer) -> None:
    port = router.port

    def answers_at(address: str) -> bool:
        try:
            with socket.create_connection((address, port), timeout=120) as connection:
                connection.sendall(request("GET", "/chat/x"))
                return connection.recv(12) == b"HTTP/1.1 200"
        except ConnectionRefusedError:
            return False

    assert not answers_at("127.0.0.2")
    with steady_load(url(router), kept=False) as load:
        assert configure(router, host="0.0.0.0", port=port).port == port
        load.more(100)
        assert answers_at("127.0.0.2")
        assert configure(router, host="127.0.0.1", port=port).port == port
        load.more(100)
    until(lambda: not answers_at("127.0.0.2"))
    assert answers_at("127.0.0.1")
    with socket.socket() as other:  # who shares its port is asked no less
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.3", port))
        other.listen()
        router.told.clear()
        router.say(messages.Configure(host="0.0.0.0", port=port, workers=2))
        assert f"0.0.0.0:{port} is taken by another program" in router.heard(messages.Kept).why
    assert answers_at("127.0.0.1")


def test_at_the_same_address_no_connection_is_refused(router: Router, replica: ReplicaServer) -> None:
    before, port = workers(router), router.port
    held = router.client()
    held.send(request("GET", "/chat/hold"))
    with steady_load(url(router), kept=False) as load:
        assert configure(router, workers=3).port == port
        load.more(300)
        assert configure(router, workers=1).port == port
        load.more(300)
        assert before & workers(router), "who has a request in flight stays"
        replica.gate.set()
        assert held.answer()[0] == 200
        until(lambda: not before & workers(router))


def test_what_cannot_be_is_said_and_all_goes_on(router: Router, tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing.pem")
    with closing(socket.create_server(("127.0.0.1", 0))) as other, steady_load(url(router)):
        taken = other.getsockname()[1]
        cases = [
            (messages.Configure(host="127.0.0.1", port=taken), f"127.0.0.1:{taken} is taken by another program"),
            (messages.Configure(host="192.0.2.1", port=0), "192.0.2.1 is no address of this machine"),
            (messages.Configure(host="nowhere", port=0), "is an IP address"),
            (
                messages.Configure(host="127.0.0.1", port=0, tls_certificate=nothing, tls_key=nothing),
                f"{nothing}: No such file or directory",
            ),
        ]
        for order, why in cases:
            router.told.clear()
            router.say(order)
            assert why in router.heard(messages.Kept).why


def test_a_supervisor_killed_in_the_middle_of_a_change_is_followed_by_one_that_finishes_it(
    router: Router, replica: ReplicaServer
) -> None:
    held = router.client()
    held.send(request("GET", "/chat/hold"))
    assert replica.arrived.acquire(timeout=120)
    before = workers(router)
    with steady_load(url(router), kept=False):
        configure(router, workers=1)
        kill_supervisor(router)
        router.words = ("--workers", "1")
        router.start()
        assert len(before & workers(router)) == 1, "it has a request in flight"
    replica.gate.set()
    assert held.answer()[0] == 200
    until(lambda: len(workers(router)) == 1)


# -- what was removed, and who hangs ----------------------------------------------------------------------------------


def test_a_removed_folder_is_made_again_and_the_router_is_found_in_it(router: Router) -> None:
    before = workers(router)
    with steady_load(url(router)) as load:
        remove(router.home)
        sockets = [router.home / messages.SOCKET, *(router.home / f"worker-{row}.sock" for row in (0, 1))]
        until(lambda: all(path.exists() for path in (*sockets, router.home / "table", router.home / "lock")))
        router.connect()
        kill_supervisor(router)
        load.more(100)
        router.start()
        load.more(100)
    assert workers(router) == before


def test_workers_whose_sockets_were_removed_are_found_by_the_next_supervisor(router: Router) -> None:
    before = workers(router)
    with steady_load(url(router), kept=False) as load:
        for path in (*router.home.glob("worker-*.sock"), router.home / "table"):
            path.unlink()
        kill_supervisor(router)
        router.start()
        load.more(100)
        assert router.heard(messages.Welcome).serial == 1
    assert workers(router) == before


def test_a_folder_that_another_router_has_taken_is_left_to_it(tmp_path: Path, router: Router) -> None:
    os.kill(router.process.pid, signal.SIGSTOP)
    remove(router.home)
    with running(router.home, "--workers", "1") as other:
        os.kill(router.process.pid, signal.SIGCONT)
        router.process.wait(120)
        assert other.get("/-/health")[0] == 200


@pytest.mark.parametrize(("first", "then"), [(2, 3), (2, 4), (3, 2), (1, 3)])
def test_there_are_as_many_workers_as_were_asked_for(tmp_path: Path, first: int, then: int) -> None:
    with running(tmp_path / "home", "--workers", str(first)) as started:
        started.push(Service(name="chat"))
        assert configure(started, workers=then).workers == then
        until(lambda: len(workers(started)) == then)


def test_workers_that_have_no_row_yet_are_said_to_be_missing_and_come_when_others_have_ended(
    router: Router, replica: ReplicaServer
) -> None:
    client = router.client()
    client.send(request("GET", "/chat/hold"))
    assert replica.arrived.acquire(timeout=120)
    configure(router, workers=31)
    router.heard(messages.Ails, lambda told: "wait until those of earlier settings have ended" in told.why)
    replica.gate.set()
    assert client.answer()[0] == 200
    client.close()
    router.heard(messages.Ails, lambda told: not told.why)
    until(lambda: len(workers(router)) == 31)


def test_a_worker_that_hangs_is_replaced_and_said_to_be(router: Router) -> None:
    hung, other = sorted(workers(router))
    os.kill(hung, signal.SIGSTOP)
    router.heard(messages.Ails, lambda told: f"a worker (pid {hung}) hangs" in told.why)
    until(lambda: hung not in workers(router) and len(workers(router)) == 2)
    router.heard(messages.Ails, lambda told: not told.why)
    assert other in workers(router)
    router.push(Service(name="chat"), Service(name="other"))


def test_a_worker_that_hangs_when_its_supervisor_dies_is_replaced(router: Router) -> None:
    hung, other = sorted(workers(router))
    os.kill(hung, signal.SIGSTOP)
    kill_supervisor(router)
    router.start()
    until(lambda: hung not in workers(router) and len(workers(router)) == 2)
    assert other in workers(router)
    with steady_load(url(router), kept=False):
        pass
