"""What one user does to the agent must not reach another: files that hold whoever opens them, locks, floods."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from agent_process import AgentProcess, DaemonEnd, connect_raw, is_running, job_environment, until

from bireme.agent.messages import lines, protocol


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    running = AgentProcess(tmp_path)
    yield running
    running.close()


@pytest.fixture
def daemon(agent: AgentProcess) -> Iterator[DaemonEnd]:
    with agent.connect() as connection:
        yield connection


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """Whoever opens the file waits until the block ends, or for as long as the kernel gives a holder (45 s)."""
    previous = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open(path, os.O_RDWR if path.stat().st_mode & stat.S_IWUSR else os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        yield
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, previous)


def is_awake(daemon: DaemonEnd) -> bool:
    """The agent answers; what else it says meanwhile is put back."""
    daemon.send(op="ping", id=7)
    others = []
    while (message := daemon.next()).get("re") != 7:
        others.append(message)
    daemon.put_back(others)
    return True


def start_step(agent: AgentProcess, daemon: DaemonEnd, tasks: list[dict[str, Any]], **changes: Any) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    order = {"op": "step", "job": 1, "gen": 1, "step": 0, "key": "k", "argv": ["true"], "cwd": "/", "umask": 0o022}
    daemon.send(**(order | {"env": job_environment(agent, 1), "tasks": tasks} | changes))


# --- files that hold whoever opens them ----------------------------------------------------------------------


def program(tmp_path: Path) -> Path:
    made = tmp_path / "program"
    made.write_bytes(Path("/bin/echo").read_bytes())
    made.chmod(0o755)
    return made


def test_a_lease_on_a_scripts_interpreter_holds_only_its_job(daemon: DaemonEnd, tmp_path: Path) -> None:
    interpreter = program(tmp_path)
    with leased(interpreter):
        daemon.start_job(1, f"#!{interpreter} words\n", tmp_path / "out")
        daemon.expect("launched")
        assert is_awake(daemon)
    assert daemon.expect("batch_ended")["status"]["code"] == 0
    assert (tmp_path / "out").read_text().startswith("words ")


def test_a_lease_on_a_steps_program_holds_only_its_step(agent: AgentProcess, daemon: DaemonEnd, tmp_path: Path) -> None:
    held = program(tmp_path)
    with leased(held):
        start_step(agent, daemon, [{"id": 0, "env": {}}], argv=[str(held), "hello"])
        assert is_awake(daemon)
    daemon.expect("step_began")
    assert daemon.expect("step_ended")["status"]["code"] == 0


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_lease_on_a_jobs_file_holds_only_that_job(daemon: DaemonEnd, tmp_path: Path, stream: str) -> None:
    held = tmp_path / "held"
    held.write_text("before\n")
    with leased(held):
        daemon.start_job(1, "#!/bin/bash\ncat\n", tmp_path / "out", batch={stream: str(held)})
        daemon.expect("launched")
        assert is_awake(daemon)
    assert daemon.expect("batch_ended")["status"]["code"] == 0


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_fifo_with_nobody_at_its_other_end_holds_only_its_job_which_can_be_ended(
    daemon: DaemonEnd, tmp_path: Path, stream: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    daemon.start_job(1, "#!/bin/bash\ncat\n", tmp_path / "out", batch={stream: str(tmp_path / "fifo")})
    daemon.expect("launched")
    assert is_awake(daemon)
    daemon.send(op="terminate", job=1, gen=1, grace_s=30)
    assert daemon.expect("batch_ended")["status"]["signal"] == signal.SIGTERM
    daemon.expect("cleared")


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_fifo_of_a_step_holds_only_that_step_which_can_be_ended(
    agent: AgentProcess, daemon: DaemonEnd, tmp_path: Path, stream: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    start_step(agent, daemon, [{"id": rank, "env": {}, stream: str(tmp_path / "fifo")} for rank in (0, 1)])
    assert is_awake(daemon)
    daemon.send(op="terminate_step", job=1, gen=1, step=0, grace_s=30)
    daemon.expect("step_began")
    assert daemon.expect("step_ended")["status"]["signal"] in (signal.SIGTERM, signal.SIGKILL)


def test_tasks_that_share_a_file_do_not_empty_or_overwrite_each_others_lines(
    agent: AgentProcess, daemon: DaemonEnd, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    tasks = [{"id": rank, "env": {"R": str(rank)}, "stdout": str(out), "stderr": str(out)} for rank in range(4)]
    start_step(agent, daemon, tasks, argv=["bash", "-c", "echo $R; echo $R >&2"])
    daemon.expect("step_began")
    daemon.expect("step_ended")
    assert sorted(out.read_text().split()) == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_what_is_said_of_a_cancelled_job_waits_for_nobody_who_reads_its_stderr(
    daemon: DaemonEnd, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    fill = "#!/bin/bash\ndd if=/dev/zero bs=4096 count=64 status=none >&2\n"
    daemon.start_job(1, fill, tmp_path / "out", batch={"stderr": str(tmp_path / "fifo")})
    daemon.expect("launched")
    until(lambda: fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) == _waiting(reader), "the FIFO to be full")
    daemon.send(op="terminate", job=1, gen=1, grace_s=30)
    daemon.expect("batch_ended")
    daemon.expect("cleared")
    os.close(reader)


def _waiting(fd: int) -> int:
    import array
    import termios

    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def test_a_process_that_writes_without_end_does_not_hold_its_steps_end(
    agent: AgentProcess, daemon: DaemonEnd, tmp_path: Path
) -> None:
    """It holds its task's pipe after the task ended; what it writes from then on is not followed."""
    start_step(agent, daemon, [{"id": 0, "env": {}}], argv=["bash", "-c", "yes & exit 0"])
    with connect_raw(agent) as client:
        client.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"}))
        splitter, kinds = protocol.FrameSplitter(), set()
        while protocol.STEP_ENDED not in kinds:
            kinds |= {kind for kind, _, _ in splitter.feed(client.recv(1 << 20))}
    daemon.expect("step_began")
    daemon.expect("step_ended")


# --- locks and files of a home -------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users around it who are not it")
def test_no_other_user_can_open_what_a_node_stays_up_by(agent: AgentProcess) -> None:
    """Whoever can open a file can lock it: then no agent could start here again."""
    agent.home.chmod(0o711)
    for parent in agent.home.parents:
        if parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    files = [str(file) for file in agent.directory.rglob("*") if file.is_file()]
    assert str(agent.directory / "agent.pid") in files
    attempt = 'for name; do head -c 1 "$name" >/dev/null 2>&1 && echo "$name"; done; true'
    command = ["/bin/sh", "-c", attempt, "sh", *files]
    done = subprocess.run(command, user=65534, group=65534, extra_groups=[], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_lock_file_that_was_open_to_all_is_closed_when_the_agent_starts(tmp_path: Path) -> None:
    directory = tmp_path / "agents" / "n1"
    directory.mkdir(parents=True)
    (directory / "agent.pid").touch(mode=0o644)
    agent = AgentProcess(tmp_path)
    try:
        assert stat.S_IMODE((directory / "agent.pid").stat().st_mode) == 0o600
    finally:
        agent.close()


# --- floods --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """One that has few descriptors, as where an administrator gave it few."""
    running = AgentProcess(tmp_path, prefix=["prlimit", "--nofile=512:512"])
    yield running
    running.close()


def test_silent_connections_keep_nobody_out_and_say_little(small_agent: AgentProcess, tmp_path: Path) -> None:
    with ExitStack() as held:
        for _ in range(400):
            held.enter_context(connect_raw(small_agent))
        with small_agent.connect() as daemon:
            daemon.start_job(1, "#!/bin/bash\nsleep 900\n", tmp_path / "out")
            daemon.expect("launched")
            for _ in range(400):
                held.enter_context(connect_raw(small_agent))
            daemon.send(op="terminate", job=1, gen=1, grace_s=0)
            daemon.expect("batch_ended")
            daemon.expect("cleared")
    assert len(small_agent.log().splitlines()) < 20


def test_streams_of_steps_that_never_come_are_counted_and_the_next_is_told_why(small_agent: AgentProcess) -> None:
    hello = lines.encode_line({"hello": "stream", "job": 99, "step": 0, "key": ""})
    with ExitStack() as held:
        answer = b""
        while not answer:  # the agent holds so many, and turns away the next
            client = held.enter_context(connect_raw(small_agent))
            client.sendall(hello)
            with small_agent.connect() as daemon:
                assert is_awake(daemon)
            client.setblocking(False)
            with suppress(BlockingIOError):
                answer = client.recv(1 << 16)
    assert b"Too many connections: user" in protocol.FrameSplitter().feed(answer)[0][2]


def attached(agent: AgentProcess, **hello: Any) -> socket.socket:
    """A client of the step that `start_step` starts, once the agent has let it in."""
    client = connect_raw(agent)
    client.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"} | hello))
    assert client.recv(1)
    return client


def beginning(kind: int, length: int) -> bytes:
    """A frame that says that it is so long, and does not go on."""
    return protocol.encode_frame(kind, 0)[:5] + length.to_bytes(4, "big")


def last_words(client: socket.socket) -> bytes:
    """All that the agent says before it closes the connection."""
    said = b""
    with suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            said += data
    return said


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("kind", [protocol.STDIN, protocol.SIGNAL, protocol.WINDOW_SIZE, protocol.LEAVE, 250])
def test_a_frame_that_is_longer_than_its_kind_may_be_is_refused_when_it_begins(
    agent: AgentProcess, daemon: DaemonEnd, kind: int
) -> None:
    start_step(agent, daemon, [{"id": 0, "env": {}}], argv=["sleep", "900"])
    with attached(agent) as client:
        client.sendall(beginning(kind, 50_000_000))
        assert b"of kind %d has 50000000 bytes: more than" % kind in last_words(client)
    assert is_awake(daemon)


def test_unfinished_frames_of_a_user_are_counted_together_and_given_back(
    agent: AgentProcess, daemon: DaemonEnd
) -> None:
    """Of frames that may be long: each within its bound, all of them more than a root's process should hold."""
    start_step(agent, daemon, [{"id": 0, "env": {}}], argv=["sleep", "900"])
    assert is_awake(daemon)
    before, largest = resident_bytes(agent.pid), protocol.CLIENT_FRAME_BYTES[protocol.FENCE_RESULT]
    with ExitStack() as held:
        clients = [held.enter_context(attached(agent)) for _ in range(24)]
        for client in clients:
            with suppress(BrokenPipeError):  # it may be the one that is given up
                client.sendall(beginning(protocol.FENCE_RESULT, largest) + bytes(largest - 1))
        assert is_awake(daemon)
        assert resident_bytes(agent.pid) - before < 9 * largest  # they would be 24
        assert b"bytes of unfinished frames" in b"".join(last_words(client) for client in clients[:12])
        assert is_awake(daemon)
    until(lambda: is_awake(daemon) and resident_bytes(agent.pid) - before < 2 * largest, "the memory to be given back")


def test_a_step_has_so_many_clients_and_who_went_away_makes_room(agent: AgentProcess, daemon: DaemonEnd) -> None:
    """One whose streams are carried is waited for after its connection broke, and its output is kept."""
    start_step(agent, daemon, [{"id": 0, "env": {}}], argv=["sleep", "900"])
    for number in range(100):
        attached(agent, client=f"away-{number}").close()
        assert is_awake(daemon)
    with attached(agent, client="away-99") as again:
        again.settimeout(5)
    with ExitStack() as held:
        clients = [held.enter_context(attached(agent)) for _ in range(64)]
        with connect_raw(agent) as late:
            late.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"}))
            assert b"Too many clients are attached to step 1.0" in last_words(late)
        clients[0].close()
        assert is_awake(daemon)
        attached(agent).close()


def test_tasks_leave_the_agent_descriptors_for_its_own_needs(small_agent: AgentProcess) -> None:
    """More tasks than it has descriptors for: those that are too many fail, and the next order is obeyed."""
    with small_agent.connect() as daemon:
        tasks = [{"id": rank, "env": {}} for rank in range(200)]
        start_step(small_agent, daemon, tasks, argv=["sleep", "900"])
        assert is_awake(daemon)
        daemon.send(op="terminate", job=1, gen=1, grace_s=0)
        events = [daemon.next() for _ in range(3)]
    assert [event["ev"] for event in events] == ["step_began", "step_ended", "cleared"]
    assert is_running(small_agent.pid)


NO_NUMBERS = ["1e999", "-1e999", "NaN", "1.0", "true", "null", '"1"', "[]", "9" * 30, "1" + "0" * 4000]


def test_what_is_no_whole_number_is_refused_in_words(agent: AgentProcess) -> None:
    """Of a connection's hello, every number; the agent goes on, and says no more than a line."""
    asked = 0
    for name in ("job", "step", "heard"):
        for value in NO_NUMBERS:
            fields = {"job": "1", "step": "0", "heard": "0", name: value}
            said = ",".join(f'"{each}":{number}' for each, number in fields.items())
            with connect_raw(agent) as client:
                client.sendall(b'{"hello":"stream","key":"\\ud800","client":"c",' + said.encode() + b"}\n")
                assert client.recv(1 << 16) == b"", (name, value)
            asked += 1
    with agent.connect() as daemon:
        assert is_awake(daemon)
    said = agent.log()
    assert "a connection said no proper hello: job must be a whole number" in said
    assert len(said.splitlines()) <= asked + 2
    assert "Traceback" not in said


def test_a_clients_frames_hold_whole_numbers_or_are_dropped(agent: AgentProcess, daemon: DaemonEnd) -> None:
    start_step(agent, daemon, [{"id": 0, "env": {}, "terminal": True}], argv=["cat"])
    daemon.expect("step_began")
    with connect_raw(agent) as client:
        client.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"}))
        for value in [*NO_NUMBERS, "65536"]:
            for kind, fields in (
                (protocol.SIGNAL, f'{{"signal":{value}}}'),
                (protocol.WINDOW_SIZE, f'{{"rows":{value},"columns":3}}'),
                (protocol.WINDOW_SIZE, f'{{"rows":3,"columns":{value}}}'),
                (protocol.FENCE_RESULT, value),
                (protocol.FENCE_RESULT, f'{{"a":{value}}}'.replace('"1"', "1")),
            ):
                client.sendall(protocol.encode_frame(kind, protocol.ALL_TASKS, fields.encode()))
        client.sendall(protocol.encode_frame(protocol.FENCE_RESULT, protocol.ALL_TASKS, b"[" * 100_000))
        client.sendall(protocol.encode_frame(protocol.SIGNAL, protocol.ALL_TASKS, b'{"signal":15}'))
        assert daemon.expect("step_ended")["status"]["signal"] == 15
    assert "Traceback" not in agent.log()
