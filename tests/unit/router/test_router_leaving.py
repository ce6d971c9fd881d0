"""A worker that is to leave ends after everybody whose connection it has taken, on real sockets and its own loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import uvloop
from tests.support.routing import request

from bireme.own_certificate import ensure_certificate
from bireme.router import board, listening
from bireme.router.inner import Start
from bireme.router.settings import Settings
from bireme.router.worker import Worker

HEALTH = request("GET", "/-/health", Connection="close")


@contextmanager
def listening_at(loop: asyncio.AbstractEventLoop, certificate: tuple[int, ...] = ()) -> Iterator[tuple[Worker, int]]:
    """A worker, and the port at which it will listen."""
    (listener,) = listening.listeners("127.0.0.1", 0, 1, [])
    start = Start(
        settings=Settings(home="/nowhere"), row=0, workers=1, listeners=(listener.detach(),), channel=0, meeting=0,
        memory=board.new_memory(1), kicks=(0,), certificate=certificate,
    )  # fmt: skip
    with closing(socket.socket(fileno=start.listeners[0])) as kept:
        yield Worker(start, loop), int(kept.getsockname()[1])
        kept.detach()  # the worker closes it


def leaves_when_told(worker: Worker) -> socket.socket:
    """What is to be written to: its loop hears of it beside what else has come meanwhile."""
    order, told = socket.socketpair()

    def leave() -> None:
        worker.loop.remove_reader(told.fileno())
        told.close()
        worker.drain(0.0)

    worker.loop.add_reader(told.fileno(), leave)
    return order


def test_who_connected_just_before_is_answered_first() -> None:
    async def main() -> None:
        with listening_at(asyncio.get_running_loop()) as (worker, port):
            await worker.listen()
            client = socket.create_connection(("127.0.0.1", port))
            with closing(leaves_when_told(worker)) as order, closing(client):
                client.sendall(HEALTH)
                order.send(b"x")
                await worker.done
                client.setblocking(False)
                assert client.recv(65536).startswith(b"HTTP/1.1 200 "), "it is there when the process ends"

    uvloop.run(main())


def test_who_is_still_shaking_hands_is_answered_first(tmp_path: Path) -> None:
    file = tmp_path / "own.pem"  # with its key
    ensure_certificate(file)
    certificate = listening.read_certificate(str(file), str(file))
    context = ssl.create_default_context(cafile=str(file))
    context.check_hostname = False

    def ask(plain: socket.socket) -> bytes:
        with context.wrap_socket(plain) as client:
            client.sendall(HEALTH)
            return client.recv(65536)

    async def main() -> None:
        with listening_at(asyncio.get_running_loop(), certificate.fds) as (worker, port):
            await worker.listen()
            with closing(leaves_when_told(worker)) as order:
                client = socket.create_connection(("127.0.0.1", port))
                order.send(b"x")
                while not worker.is_draining:
                    await asyncio.sleep(0)
                assert not worker.done.done()
                assert (await asyncio.to_thread(ask, client)).startswith(b"HTTP/1.1 200 ")
                await worker.done

    uvloop.run(main())
    certificate.close()
