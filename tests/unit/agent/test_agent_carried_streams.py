"""Streams that somebody carries between srun and the agent: they break, and go on where they broke off."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from agent_process import DEADLINE_S, AgentProcess, DaemonEnd, job_environment

from bireme.agent.messages import protocol
from bireme.agent.stdio import carried_streams, stream_client
from bireme.agent.stdio.resumption import Heard, Kept
from bireme.agent.stdio.stream_client import AWAY, BACK, LOST, Fences, Frame, StepStreams


class Ferry:
    """Carries connections from a crossing to agents, byte by byte, and may sink at any of them."""

    def __init__(self, folder: Path, agents: dict[str, str]) -> None:
        self.folder, self._agents = folder, agents
        self.folder.mkdir()
        self.sink_after: Callable[[], int] = lambda: 1 << 60
        """How many bytes of one direction a connection lives for."""
        self.refuses = ""
        self.crossings = 0
        self._listener: socket.socket | None = None
        self._carried: list[socket.socket] = []
        self.sail()

    def address(self, peer: str) -> str:
        return f"unix:{self.folder}/{peer}.sock"

    def sail(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        (self.folder / protocol.CROSSING).unlink(missing_ok=True)
        self._listener.bind(str(self.folder / protocol.CROSSING))
        self._listener.listen()
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def sink(self) -> None:
        """What was on the way is lost; nobody answers any more."""
        assert self._listener is not None
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._carried:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                here, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(here,), daemon=True).start()

    def _carry(self, here: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\n"):
            line += here.recv(1)
        if self.refuses:
            here.sendall(protocol.encode_frame(protocol.REFUSED, protocol.ALL_TASKS, self.refuses.encode()))
            here.close()
            return
        there = protocol.connect_endpoint(self._agents[json.loads(line)["peer"]], DEADLINE_S)
        there.settimeout(None)
        self.crossings += 1
        self._carried += [here, there]
        for one, other in ((here, there), (there, here)):
            threading.Thread(target=self._pump, args=(one, other, self.sink_after()), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left > 0 and (data := one.recv(min(left, 1 << 16))):
                other.sendall(data)
                left -= len(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonEnd]:
    agent = AgentProcess(tmp_path)
    with agent.connect() as connection:
        connection.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
        connection.expect("prepared")
        yield connection
    agent.close()


@pytest.fixture
def ferry(daemon: DaemonEnd, tmp_path: Path) -> Iterator[Ferry]:
    made = Ferry(tmp_path / "nodes", {"1.1.n1": f"unix:{daemon.agent.directory}/agent.sock"})
    yield made
    made.sink()


def run_step(daemon: DaemonEnd, ferry: Ferry, program: str, tasks: int = 1) -> StepStreams:
    each = [{"id": rank, "env": {"SLURM_PROCID": str(rank)}} for rank in range(tasks)]
    env = job_environment(daemon.agent, 1)
    order = {"op": "step", "job": 1, "gen": 1, "step": 0, "key": "k", "cwd": "/", "env": env, "tasks": each}
    daemon.send(**order, argv=["bash", "-c", program])
    daemon.expect("step_began")
    return StepStreams(1, 0, "k", {"n1": ferry.address("1.1.n1")}, Fences())


def frames_of(streams: StepStreams) -> Iterator[Frame]:
    deadline = time.monotonic() + DEADLINE_S
    while not streams.finished:
        assert time.monotonic() < deadline, "the streams did not end"
        yield from streams.poll(1.0)[0]


def text(frames: list[Frame]) -> bytes:
    return b"".join(frame.payload for frame in frames if frame.kind == protocol.STDOUT)


@pytest.mark.parametrize("seed", range(4))
def test_output_and_input_arrive_once_over_however_many_connections(
    daemon: DaemonEnd, ferry: Ferry, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken at any byte, a frame's header among them."""
    for pause in ("_RETRY_S", "_MAX_RETRY_S"):
        monkeypatch.setattr(stream_client, pause, 0.001)
    chance = random.Random(seed)
    ferry.sink_after = lambda: chance.choice((5, 700, 90_000, 300_000))
    said = b"".join(b"line %d\n" % number for number in range(100_000))
    with run_step(daemon, ferry, "cat; exit 3") as streams:
        streams.connect()
        frames: list[Frame] = []
        for start in range(0, len(said), 65_536):
            streams.send_stdin(said[start : start + 65_536])
            while not streams.input_room():
                frames += streams.poll(1.0)[0]
        streams.send_stdin(b"")
        frames += frames_of(streams)
    assert text(frames) == said
    kinds = [frame.kind for frame in frames if frame.kind not in (protocol.STDOUT, AWAY, BACK)]
    assert kinds == [protocol.TASKS_STARTED, protocol.TASK_EXITED, protocol.STEP_ENDED]
    assert ferry.crossings > 3, "it was never broken"
    assert daemon.expect("step_ended")["status"]["code"] == 3


def test_a_signal_overtakes_input_that_no_task_reads(daemon: DaemonEnd, ferry: Ferry) -> None:
    """Given while nobody carries: all of it crosses at once, afterwards."""
    with run_step(daemon, ferry, "trap 'wc -c; exit' USR1; echo ready; while :; do sleep 0.01; done") as streams:
        streams.connect()
        frames: list[Frame] = []
        while b"ready" not in text(frames):
            frames += streams.poll(1.0)[0]
        ferry.sink()
        sent = 0
        while streams.input_room():
            streams.send_stdin(bytes(50_000))
            sent += 50_000
        streams.send_signal(10)
        ferry.sail()
        while sent < 3_000_000:
            frames += streams.poll(1.0)[0]
            while streams.input_room():
                streams.send_stdin(bytes(50_000))
                sent += 50_000
        streams.send_stdin(b"")
        frames += frames_of(streams)
    assert text(frames) == b"ready\n%d\n" % sent


def test_signals_input_and_ends_wait_until_somebody_carries_again(daemon: DaemonEnd, ferry: Ferry) -> None:
    program = "trap 'echo got usr1' USR1; echo ready; while ! read line; do :; done; echo $line; exit 4"
    with run_step(daemon, ferry, program) as streams:
        streams.connect()
        frames: list[Frame] = []
        while b"ready" not in text(frames):
            frames += streams.poll(1.0)[0]
        ferry.sink()
        streams.send_signal(10)
        streams.send_stdin(b"after the break\n")
        streams.poll(0.05)
        ferry.sail()
        frames += frames_of(streams)
    assert text(frames) == b"ready\ngot usr1\nafter the break\n"
    assert [frame.value()["code"] for frame in frames if frame.kind == protocol.TASK_EXITED] == [4]


def test_a_step_that_ends_meanwhile_is_told_afterwards(daemon: DaemonEnd, ferry: Ferry, tmp_path: Path) -> None:
    program = f"until test -e {tmp_path}/go; do sleep 0.01; done; echo last words; exit 5"
    with run_step(daemon, ferry, program) as streams:
        streams.connect()
        while not any(frame.kind == protocol.TASKS_STARTED for frame in streams.poll(1.0)[0]):
            pass
        ferry.sink()
        (tmp_path / "go").touch()
        assert daemon.expect("step_ended")["status"]["code"] == 5
        ferry.sail()
        frames = list(frames_of(streams))
    assert text(frames) == b"last words\n"
    assert [frame.value()["code"] for frame in frames if frame.kind == protocol.TASK_EXITED] == [5]


def test_a_task_waits_in_its_write_while_its_output_is_kept(daemon: DaemonEnd, ferry: Ferry) -> None:
    """Nothing is dropped, and nothing grows without bound."""
    with run_step(daemon, ferry, "read line; head -c 8000000 /dev/zero") as streams:
        streams.connect()
        while not any(frame.kind == protocol.TASKS_STARTED for frame in streams.poll(1.0)[0]):
            pass
        streams.send_stdin(b"go\n")
        ferry.sink()
        ferry.sail()
        frames = list(frames_of(streams))
    assert len(text(frames)) == 8_000_000


def test_a_client_that_leaves_does_not_stop_the_task(daemon: DaemonEnd, ferry: Ferry) -> None:
    with run_step(daemon, ferry, "read line; head -c 8000000 /dev/zero; exit 3") as streams:
        streams.connect()
        streams.send_stdin(b"go\n")
    assert daemon.expect("step_ended")["status"]["code"] == 3


def test_an_agent_that_is_gone_is_a_lost_node_once_somebody_says_so(daemon: DaemonEnd, ferry: Ferry) -> None:
    with run_step(daemon, ferry, "sleep 1000") as streams:
        streams.connect()
        while not any(frame.kind == protocol.TASKS_STARTED for frame in streams.poll(1.0)[0]):
            pass
        ferry.sink()
        assert streams.poll(0.3)[0] == []
        ferry.refuses = "its pod is gone"
        ferry.sail()
        assert [(frame.kind, frame.payload) for frame in frames_of(streams)] == [(LOST, b"its pod is gone")]


def test_a_break_that_lasts_is_told_and_so_is_its_end(
    daemon: DaemonEnd, ferry: Ferry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_client, "_TELL_AWAY_S", 0.2)
    with run_step(daemon, ferry, "read line") as streams:
        streams.connect()
        while not any(frame.kind == protocol.TASKS_STARTED for frame in streams.poll(1.0)[0]):
            pass
        ferry.sink()
        told: list[int] = []
        while AWAY not in told:
            told += [frame.kind for frame in streams.poll(1.0)[0]]
        ferry.sail()
        streams.send_stdin(b"\n")
        told += [frame.kind for frame in frames_of(streams)]
    assert told == [AWAY, BACK, protocol.TASK_EXITED, protocol.STEP_ENDED]


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ({"heard": 5, "client": "who"}, "its output was not kept for so long"),
        ({"heard": 5, "client": "who", "step": 7}, "step 1.7 is over on node n1"),
        ({"client": "who", "key": "wrong"}, "Access denied"),
    ],
)
def test_whoever_cannot_go_on_is_told_why(daemon: DaemonEnd, ferry: Ferry, hello: dict[str, object], why: str) -> None:
    run_step(daemon, ferry, "read line").close()
    connection = protocol.connect_endpoint(f"unix:{daemon.agent.directory}/agent.sock", DEADLINE_S)
    asked = {"hello": "stream", "job": 1, "step": 0, "key": "k", **hello}
    connection.sendall(json.dumps(asked).encode() + b"\n")
    splitter = protocol.FrameSplitter()
    received: list[tuple[int, int, bytes]] = []
    while data := connection.recv(65_536):
        received += splitter.feed(data)
    ((kind, _, payload),) = received
    assert kind == protocol.REFUSED
    assert why in payload.decode()


def test_a_client_is_given_up_only_while_it_could_have_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with looks that come at once: else it takes two minutes."""
    from bireme.agent.stdio.holdings import Holdings
    from bireme.agent.stdio.streams import Arrival, StepEvents, StreamHub
    from bireme.agent.system.loop import Loop

    monkeypatch.setattr(carried_streams, "_LOOK_S", 0.0)
    loop = Loop()
    hub = StreamHub(loop, StepEvents(lambda *_: None, lambda _: None))
    looks = 0

    def has_daemon() -> bool:
        nonlocal looks
        looks += 1
        return looks > 20

    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    arrival = Arrival(theirs, b"", lambda: None)
    carried_streams.CarriedClient(hub, arrival, Holdings(1, 1).open(0), "who", has_daemon)
    ours.close()

    def check() -> None:
        if "who" in hub.late_clients:
            loop.stop()
        else:
            loop.call_later(0.001, check)

    check()
    loop.run()
    assert looks == 22, "twenty looks without a daemon, one with, and another"
    assert hub.client_named("who") is None


def test_positions() -> None:
    kept, heard = Kept(), Heard()
    frames = [protocol.encode_frame(protocol.STDOUT, 0, b"x" * size) for size in (1, 2, 3)]
    for frame in frames:
        kept.add(frame)
    heard.take(b"x")
    said = protocol.decode_position(protocol.FrameSplitter().feed(heard.confirmation())[0][2])
    assert kept.since(said) == frames[1] + frames[2]
    for wrong in (0, 10_000):
        with pytest.raises(protocol.ProtocolError):
            kept.since(wrong)
