"""Who may come in at the agent's socket when one person comes as many users. Real sockets; the test says the uids."""

from __future__ import annotations

import itertools
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bireme.agent import door as module
from bireme.agent.door import Door
from bireme.agent.lines import encode_line
from bireme.agent.loop import Loop
from bireme.agent.protocol import Message

HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture
def loop() -> Iterator[Loop]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield Loop()
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_silent_connections_of_however_many_uids_are_so_many_and_the_newest_stay(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = itertools.count(100_000)
    monkeypatch.setattr(module, "peer_uid", lambda connection: next(uids))

    def greeted(connection: socket.socket, uid: int, hello: Message, rest: bytes) -> bool:
        loop.stop()
        connection.close()
        return False

    door = Door(loop, str(tmp_path / "sock"), greeted)
    door.most_silent = 8
    with ExitStack() as held:
        knocking = [held.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]
        for sock in knocking:
            sock.connect(str(tmp_path / "sock"))
        knocking[-1].sendall(encode_line({"hello": "daemon"}))  # behind all the others
        loop.run()
        for sock in knocking:
            sock.setblocking(False)
        assert [sock.recv(1) for sock in (*knocking[:12], knocking[-1])] == [b""] * 13
        for sock in knocking[12:-1]:
            with pytest.raises(BlockingIOError):
                sock.recv(1)
    assert (len(door._all_silent), len(door._silent)) == (7, 7)
