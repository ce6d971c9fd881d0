"""The agent's loop: an event reaches whom it is about and nobody else, and a mistake stops nothing."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator

import pytest

from bireme.agent.connections import DaemonConnection
from bireme.agent.messages.lines import decode_line, encode_line
from bireme.agent.system.loop import READ, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield Loop()
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_event_of_a_closed_descriptor_does_not_reach_the_next_one_with_its_number(loop: Loop) -> None:
    pipes = [os.pipe() for _ in range(2)]
    stale: list[int] = []
    for number, (read_fd, write_fd) in enumerate(pipes):
        other = pipes[1 - number][0]

        def came(_events: int, read_fd: int = read_fd, other: int = other) -> None:
            for fd in (read_fd, other):
                loop.unwatch(fd)
            quiet, kept = os.pipe()
            os.dup2(quiet, other)
            loop.watch(other, READ, stale.append)
            loop.call_later(0, loop.stop)
            pipes.append((quiet, kept))

        loop.watch(read_fd, READ, came)
        os.write(write_fd, b"x")
    loop.run()
    assert stale == []
    for fd in {fd for pipe in pipes for fd in pipe}:
        os.close(fd)


def test_an_order_that_fails_unforeseen_makes_nobody_deaf(loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    obeyed: list[int] = []

    def obey(line: bytes) -> None:
        number = decode_line(line)["no"]
        if number == 0:
            raise RuntimeError("not foreseen")
        obeyed.append(number)
        if len(obeyed) == 12:
            loop.stop()

    theirs.setblocking(False)
    DaemonConnection(loop, theirs, obey, lambda _: loop.stop())
    with ours, theirs:
        ours.sendall(b"".join(encode_line({"no": number}) for number in range(13)))
        loop.call_later(5, loop.stop)
        loop.run()
    assert obeyed == list(range(1, 13))


def test_orders_of_a_connection_that_is_closed_are_not_worked_off(loop: Loop) -> None:
    """The next daemon says again what is to be done, with numbers of its own."""
    ours, theirs = socket.socketpair()
    obeyed: list[int] = []

    def obey(line: bytes) -> None:
        obeyed.append(decode_line(line)["no"])
        if len(obeyed) == 3:
            daemon.close()

    theirs.setblocking(False)
    daemon = DaemonConnection(loop, theirs, obey, lambda _: None)
    with ours, theirs:
        daemon.receive(b"".join(encode_line({"no": number}) for number in range(30)))
        loop.call_later(0, lambda: loop.call_later(0, loop.stop))  # behind what would come of the rest
        loop.run()
    assert obeyed == [0, 1, 2]
