"""The agent's loop: an event reaches whom it is about, and nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from bireme.agent.loop import READ, Loop


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
