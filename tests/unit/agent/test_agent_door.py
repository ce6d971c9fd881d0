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
from bireme.agent.messages.lines import encode_line
from bireme.agent.messages.protocol import Message
from bireme.agent.system.loop import Loop

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


@pytest.mark.parametrize("put", [None, "a file"])
def test_a_socket_that_was_removed_is_made_again(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: str | None
) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    said: list[Message] = []

    def greeted(connection: socket.socket, uid: int, hello: Message, rest: bytes) -> bool:
        said.append(hello)
        connection.close()
        loop.stop()
        return False

    Door(loop, str(tmp_path / "sock"), greeted)
    with socket.socket(socket.AF_UNIX) as before, socket.socket(socket.AF_UNIX) as after:
        before.connect(str(tmp_path / "sock"))
        (tmp_path / "sock").unlink()
        if put is not None:
            (tmp_path / "sock").write_text(put)

        def knock_again() -> None:
            try:
                after.connect(str(tmp_path / "sock"))
            except OSError:
                loop.call_later(0.01, knock_again)
            else:
                after.sendall(encode_line({"hello": "after"}))

        loop.call_later(0.0, knock_again)
        loop.run()
    assert said == [{"hello": "after"}]


def test_an_agent_whose_folder_is_gone_says_so_once_and_goes_on(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    folder = tmp_path / "node"
    folder.mkdir()
    door = Door(loop, str(folder / "sock"), lambda *said: False)
    (folder / "sock").unlink()
    folder.rmdir()
    for _ in range(3):
        door._look()
    assert caplog.text.count("cannot be made again") == 1
    folder.mkdir()
    door._look()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(folder / "sock"))
