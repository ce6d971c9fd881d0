"""A step's streams under load and the client's side of them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import DEADLINE_S, AgentProcess, DaemonEnd, job_environment

from bireme.agent.messages import protocol
from bireme.agent.stdio import stream_client
from bireme.agent.stdio.stream_client import Fences, Frame, StepStreams

MEGABYTES = 20


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonEnd]:
    agent = AgentProcess(tmp_path)
    with agent.connect() as connection:
        connection.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
        connection.expect("prepared")
        yield connection
    agent.close()


def run_step(daemon: DaemonEnd, program: str, tasks: int = 1) -> StepStreams:
    each = [{"id": rank, "env": {"SLURM_PROCID": str(rank)}} for rank in range(tasks)]
    env = job_environment(daemon.agent, 1)
    order = {"op": "step", "job": 1, "gen": 1, "step": 0, "key": "k", "cwd": "/", "env": env, "tasks": each}
    daemon.send(**order, argv=["bash", "-c", program])
    daemon.expect("step_began")
    return StepStreams(1, 0, "k", {"n1": f"unix:{daemon.agent.directory}/agent.sock"}, fences=None)


def frames_of(streams: StepStreams) -> Iterator[Frame]:
    deadline = time.monotonic() + DEADLINE_S
    while not streams.finished:
        assert time.monotonic() < deadline, "the streams did not end"
        yield from streams.poll(1.0)[0]


def test_a_task_that_writes_more_than_anybody_reads_loses_nothing(daemon: DaemonEnd) -> None:
    with run_step(daemon, f"head -c {MEGABYTES}000000 /dev/zero") as streams:
        streams.connect()
        received = sum(len(frame.payload) for frame in frames_of(streams) if frame.kind == protocol.STDOUT)
    assert received == MEGABYTES * 1000000
    assert daemon.expect("step_ended")["status"]["code"] == 0


def test_stdin_larger_than_any_buffer_arrives_whole(daemon: DaemonEnd) -> None:
    with run_step(daemon, "sleep 0.2; wc -c") as streams:
        streams.connect()
        for _ in range(MEGABYTES):
            streams.send_stdin(bytes(1000000))
        streams.send_stdin(b"")
        output = b"".join(frame.payload for frame in frames_of(streams) if frame.kind == protocol.STDOUT)
    assert int(output) == MEGABYTES * 1000000


def test_stdin_for_one_task_reaches_only_that_one(daemon: DaemonEnd) -> None:
    with run_step(daemon, 'read line; echo "$line"', tasks=2) as streams:
        streams.connect()
        streams.send_stdin(b"for one\n", task=1)
        streams.send_stdin(b"")
        lines = {frame.task: frame.payload for frame in frames_of(streams) if frame.kind == protocol.STDOUT}
    assert lines == {0: b"\n", 1: b"for one\n"}


def test_a_signal_from_the_client_reaches_the_tasks(daemon: DaemonEnd) -> None:
    with run_step(daemon, "sleep 1000", tasks=2) as streams:
        streams.connect()
        streams.send_signal(15)
        exits = {frame.task: frame.value() for frame in frames_of(streams) if frame.kind == protocol.TASK_EXITED}
    assert exits == {rank: {"code": 0, "signal": 15, "oom": False} for rank in (0, 1)}


def test_a_signal_overtakes_input_that_no_task_reads(daemon: DaemonEnd) -> None:
    with run_step(daemon, "sleep 1000") as streams:
        streams.connect()
        sent = give_all_there_is_room_for(streams)
        streams.send_signal(15)
        exits = [frame.value()["signal"] for frame in frames_of(streams) if frame.kind == protocol.TASK_EXITED]
    assert exits == [15]
    assert sent < 1 << 20, "more would make the agent deaf"


def test_input_goes_on_when_tasks_read_it(daemon: DaemonEnd) -> None:
    with run_step(daemon, "trap 'wc -c; exit' USR1; while :; do sleep 0.01; done") as streams:
        streams.connect()
        sent = give_all_there_is_room_for(streams)
        streams.send_signal(10)
        output = b""
        while not streams.finished:
            if sent < MEGABYTES * 1000000 and streams.input_room():
                streams.send_stdin(bytes(50_000))
                sent += 50_000
                if sent >= MEGABYTES * 1000000:
                    streams.send_stdin(b"")
            output += b"".join(frame.payload for frame in streams.poll(0.01)[0] if frame.kind == protocol.STDOUT)
    assert int(output) == sent


def give_all_there_is_room_for(streams: StepStreams) -> int:
    """Until the node has said nothing of more room for a while."""
    sent = patience = 0
    while patience < 20:
        patience += 1
        while streams.input_room():
            streams.send_stdin(bytes(50_000))
            sent, patience = sent + 50_000, 0
        streams.poll(0.01)
    return sent


def test_a_client_that_leaves_does_not_stop_the_task(daemon: DaemonEnd) -> None:
    with run_step(daemon, f"read line; head -c {MEGABYTES}000000 /dev/zero; exit 3") as streams:
        streams.connect()
        streams.send_stdin(b"go\n")
    assert daemon.expect("step_ended")["status"]["code"] == 3


def test_the_agents_death_shows_as_a_lost_node(daemon: DaemonEnd) -> None:
    with run_step(daemon, "sleep 1000") as streams:
        streams.connect()
        while not any(frame.kind == protocol.TASKS_STARTED for frame in streams.poll(1.0)[0]):
            pass
        daemon.agent.kill()
        assert [frame.kind for frame in frames_of(streams)] == [stream_client.LOST]
    daemon.agent.start()  # which ends the task that was left


def test_an_unreachable_node_is_lost_from_the_start(tmp_path: Path) -> None:
    with StepStreams(1, 0, "k", {"n1": f"unix:{tmp_path}/nobody.sock"}, fences=None) as streams:
        streams.connect()
        frames = list(frames_of(streams))
    assert [(frame.node, frame.kind) for frame in frames] == [("n1", stream_client.LOST)]


@pytest.mark.parametrize(("fences", "answers"), [(Fences(), 1), (None, 0)], ids=["srun", "a bystander"])
def test_a_fence_is_answered_by_srun_alone(tmp_path: Path, fences: Fences | None, answers: int) -> None:
    """Every client hears of it. One that knows part of the world only, or comes late, must not open it."""
    endpoints = {}
    listeners = []
    for node in ("n1", "n2"):
        listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listeners[-1].bind(str(tmp_path / node))
        listeners[-1].listen()
        endpoints[node] = f"unix:{tmp_path / node}"
    with StepStreams(1, 0, "k", endpoints, fences) as streams:
        streams.connect()
        first, second = (listener.accept()[0] for listener in listeners)
        with first, second:
            first.sendall(protocol.encode_json_frame(protocol.FENCE, protocol.ALL_TASKS, {"a": "1"}))
            second.sendall(protocol.encode_json_frame(protocol.FENCE, protocol.ALL_TASKS, {"b": "2"}))
            second.sendall(protocol.encode_frame(protocol.STEP_ENDED, protocol.ALL_TASKS))
            while streams.open_nodes != {"n1"}:
                streams.poll(1.0)
            first.shutdown(socket.SHUT_WR)
            assert [frame.kind for frame in frames_of(streams)] == [stream_client.LOST]
            said = b"".join(iter(lambda: first.recv(1 << 16), b""))
    for listener in listeners:
        listener.close()
    frames = protocol.FrameSplitter().feed(said.partition(b"\n")[2])
    expected = (protocol.FENCE_RESULT, protocol.ALL_TASKS, b'{"a":"1","b":"2"}')
    assert [(kind, task, payload.replace(b" ", b"")) for kind, task, payload in frames] == [expected] * answers


def test_a_socket_deep_in_the_file_system_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    agent = AgentProcess(deep)
    with agent.connect() as daemon:
        assert daemon.welcome["node"] == "n1"
    agent.close()
