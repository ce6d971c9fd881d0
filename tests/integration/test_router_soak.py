"""Clients and replicas that do everything they should not, at random by seed: in the end nothing is left in flight."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from pathlib import Path

import pytest
from tests.support.routing import PATIENCE_S, ReplicaServer, Router, request, running

from bireme.router import messages
from bireme.router.messages import Service, Timeouts

_ROUNDS = 120


def rude(router: Router, chance: random.Random) -> None:
    """One connection, and something that goes wrong with it."""
    with contextlib.suppress(OSError, ValueError, EOFError, IndexError), router.client() as client:
        client.socket.settimeout(2.0)
        for _ in range(chance.randrange(1, 4)):
            target = chance.choice(["x", "echo", "die", "raw", "stream", "early", "bytes/2000000", "socket"])
            body = chance.choice([b"", b"a", b"b" * 300_000])
            fields = {"Connection": "Upgrade", "Upgrade": "websocket"} if target == "socket" else {}
            wire = request(chance.choice(["GET", "POST", "PUT"]), f"/chat/{target}", body, **fields)
            if chance.random() < 0.3:
                wire = b"POST /v1/x HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + chance.choice(
                    [b'10\r\n{"model":"chat"}\r\n0\r\n\r\n', b"5\r\nabc", b"zz\r\n"]
                )
            client.send(wire[: chance.choice([len(wire), len(wire), chance.randrange(len(wire))])])
            what = chance.random()
            if what < 0.5:
                client.answer()
            elif what < 0.7:
                client.socket.recv(100)
            elif what < 0.8:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset
                return
            else:
                return


@pytest.mark.parametrize(("seed", "workers"), [(1, 1), (2, 2)])
def test_nothing_is_left_of_a_rude_crowd(tmp_path: Path, seed: int, workers: int) -> None:
    chance = random.Random(seed)
    timeouts = Timeouts(connect_s=2, first_byte_s=2, idle_s=1, queue_s=2, wake_s=2)
    with running(tmp_path / "home", "--workers", str(workers), "--pace-s", "1", "--head-s", "1") as router:
        servers = [ReplicaServer(f"r{number}") for number in range(3)]
        for server in servers:
            server.script = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"
        threads: list[threading.Thread] = []
        for number in range(_ROUNDS):
            thread = threading.Thread(target=rude, args=(router, random.Random(chance.random())))
            thread.start()
            threads.append(thread)
            if number % 10 == 5:
                rows = tuple(
                    server.row(state=chance.choice(["ready", "ready", "draining"]))
                    for server in servers
                    if chance.random() < 0.8
                )
                limit = chance.choice([0, 1, 3])
                router.push(Service(name="chat", replicas=rows, max_concurrency=limit, timeouts=timeouts))
        for thread in threads:
            thread.join(PATIENCE_S)
        fresh = ReplicaServer("fresh")
        router.push(Service(name="chat", replicas=(fresh.row(), *(each.row(state="draining") for each in servers))))
        for server in servers:
            router.heard(messages.Drained, lambda drained, server=server: drained.replica == server.name)
        serial = router.serial
        last = router.heard(
            messages.Load,
            lambda load: load.serial == serial and not any(each.in_flight or each.queued for each in load.services),
        )
        load = last.services[0]
        assert load.arrived > 0
        assert router.get("/chat/x")[0] == 200
