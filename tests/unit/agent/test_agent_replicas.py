"""A service's replica on a real agent: its port, its probes, and what is told of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port
from tests.unit.agent.agent_process import AgentProcess, DaemonEnd, Message, is_running, until

SERVER = """#!{python}
import os, sys, time, threading, socketserver, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        code = int(open({folder!r} + self.path).read())
        self.send_response(code); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(({host!r}, int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path, address="127.0.1.7")
    yield agent
    agent.close()


def replica(port: int, **probes: Any) -> Message:
    quick = {"period_s": 0.1, "timeout_s": 10.0, "failure_threshold": 100_000}
    asked = {name: quick | probe for name, probe in probes.items()}
    return {"service": "chat", "revision": 1, "number": 1, "port": port, "probes": {"startup": quick} | asked}


def start(daemon: DaemonEnd, script: str, out: Path, about: Message, job: int = 1) -> None:
    env = {**os.environ, "PORT": str(about["port"]), "BIREME_JOB": f"{job}.1", "BIREME_HOME": str(daemon.agent.home)}
    daemon.start_job(job, script, out, replica=about, batch={"env": env})


def server(folder: Path, host: str = "0.0.0.0") -> str:
    folder.mkdir(exist_ok=True)
    return SERVER.format(python=sys.executable, folder=str(folder), host=host)


def answer(folder: Path, path: str, code: int) -> None:
    folder.mkdir(exist_ok=True)
    fresh = folder / "fresh"
    fresh.write_text(str(code))
    fresh.rename(folder / path)


def health(daemon: DaemonEnd, wanted: str) -> Message:
    """The next word about a replica's health, which must be this one."""
    while (said := daemon.next()).get("ev") != "probed":
        assert said.get("ev") in ("launched", "did", "cleared"), said
    assert said["health"] == wanted, said
    return said


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "127.0.1.7"), ("127.0.1.7", "127.0.1.7"), ("127.0.0.1", "127.0.0.1")]
)
def test_a_replica_is_found_wherever_it_listens(agent: AgentProcess, tmp_path: Path, host: str, address: str) -> None:
    answer(tmp_path / "answers", "health", 200)
    with agent.connect() as daemon:
        about = replica(free_port(), readiness={"path": "/health"})
        start(daemon, server(tmp_path / "answers", host), tmp_path / "out", about)
        said = health(daemon, "ready")
        assert (said["job"], said["gen"], said["address"]) == (1, 1, address)


def test_readiness_comes_and_goes_with_its_status_and_liveness_ends_it(agent: AgentProcess, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answer(answers, "ready", 204)
    answer(answers, "live", 302)
    with agent.connect() as daemon:
        three = {"failure_threshold": 3}
        about = replica(free_port(), readiness={"path": "/ready", **three}, liveness={"path": "/live", **three})
        start(daemon, server(answers), tmp_path / "out", about)
        health(daemon, "ready")
        answer(answers, "ready", 503)
        assert health(daemon, "unready")["why"] == "readiness probe: HTTP 503"
        answer(answers, "ready", 200)
        assert "why" not in health(daemon, "ready")
        answer(answers, "live", 500)
        assert health(daemon, "dead")["why"] == "liveness probe: HTTP 500 (3 times in a row)"


def test_a_daemon_that_comes_is_told_the_health_again(agent: AgentProcess, tmp_path: Path) -> None:
    answer(tmp_path / "answers", "health", 200)
    with agent.connect() as daemon:
        start(daemon, server(tmp_path / "answers"), tmp_path / "out", replica(free_port()))
        health(daemon, "ready")
    with agent.connect() as daemon:
        assert daemon.expect("launched")
        assert daemon.expect("probed")["health"] == "ready"


def test_a_port_that_is_taken_is_refused(agent: AgentProcess, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other, agent.connect() as daemon:
        start(daemon, "#!/bin/sh\ntouch began\n", tmp_path / "out", replica(other.getsockname()[1]))
        said = daemon.expect("refused")
        assert said["reason"].startswith(f"port taken: a program of user {os.getuid()} listens on ")
        daemon.send(op="ping", id=7)
        while (answered := daemon.next()).get("re") != 7:
            assert answered.get("ev") == "did"
        assert answered.get("jobs", 0) == 0
    assert not (tmp_path / "began").exists()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("cat /dev/zero", "what answers does not speak HTTP"),
        ("while printf 'HTTP/1.1 100 Continue\r\n\r\n'; do :; done", "it says no status"),
        ("sleep 1000", "no answer within 0.5 s"),
        ("printf 'HTTP/1.1 2'; sleep 1000", "no answer within 0.5 s"),
        ("true", "it closed the connection without an answer"),
        ("printf 'HTTP/1.1 999 odd\r\n\r\n'; cat /dev/zero", "HTTP 999"),
    ],
)
def test_a_hostile_replica_costs_its_own_health_alone(
    agent: AgentProcess, tmp_path: Path, script: str, why: str
) -> None:
    """It is dead after its threshold; the agent answers all the while, and holds no descriptor of it afterwards."""
    wild = f"""#!{sys.executable}
import os, socket, subprocess
listener = socket.create_server(("0.0.0.0", int(os.environ["PORT"])))
while True:
    peer, _ = listener.accept()
    subprocess.Popen(["sh", "-c", {script!r}], stdin=peer, stdout=peer, stderr=subprocess.DEVNULL)
    peer.close()
"""
    asked = {"path": "/health", "timeout_s": 0.5, "failure_threshold": 2}
    before = len(os.listdir(f"/proc/{agent.pid}/fd"))
    with agent.connect() as daemon:
        about = replica(free_port(), liveness=asked, readiness={"failure_threshold": 2})
        start(daemon, wild, tmp_path / "out", about)
        health(daemon, "ready")
        assert health(daemon, "dead")["why"] == f"liveness probe: {why} (2 times in a row)"
        daemon.send(op="terminate", job=1, gen=1, grace_s=0)
        while daemon.next().get("ev") != "cleared":
            pass
    until(lambda: len(os.listdir(f"/proc/{agent.pid}/fd")) <= before + 6, "its descriptors to be closed")


def test_a_command_beside_the_replica_is_asked_with_its_environment(agent: AgentProcess, tmp_path: Path) -> None:
    command = ["sh", "-c", 'echo "$PORT $PWD" >asked; echo "not yet"; test -e well']
    with agent.connect() as daemon:
        port = free_port()
        about = replica(port, startup={"command": command}, readiness={"command": command, "failure_threshold": 1})
        script = server(tmp_path / "answers", "127.0.0.1").replace("import", "open('well', 'w'); import", 1)
        start(daemon, script, tmp_path / "out", about)
        assert health(daemon, "ready")["address"] == "127.0.0.1"
        assert (tmp_path / "asked").read_text() == f"{port} {tmp_path}\n"
        (tmp_path / "well").unlink()
        assert health(daemon, "unready")["why"] == "readiness probe: exit code 1: not yet"


def test_a_command_that_hangs_is_killed_with_all_that_it_started(agent: AgentProcess, tmp_path: Path) -> None:
    command = ["sh", "-c", "setsid sleep 1000 & echo $! >children; sleep 1000"]
    with agent.connect() as daemon:
        startup = {"command": command, "timeout_s": 0.5, "failure_threshold": 1}
        start(daemon, "#!/bin/sh\nsleep 1000\n", tmp_path / "out", replica(free_port(), startup=startup))
        assert health(daemon, "dead")["why"] == "startup probe: did not end within 0.5 s"
        child = int((tmp_path / "children").read_text())
        until(lambda: not is_running(child), "the command's child to be killed")
        daemon.send(op="terminate", job=1, gen=1, grace_s=0)
        while daemon.next().get("ev") != "cleared":
            pass


def test_a_suspended_replica_is_not_asked(agent: AgentProcess, tmp_path: Path) -> None:
    """It could answer nothing, and would be dead by the time it is resumed."""
    answer(tmp_path / "answers", "health", 200)
    answer(tmp_path / "answers", "alive", 200)
    with agent.connect() as daemon:
        quick = {"timeout_s": 2.0, "failure_threshold": 1}
        about = replica(free_port(), readiness={"path": "/health", **quick}, liveness={"path": "/alive", **quick})
        start(daemon, server(tmp_path / "answers"), tmp_path / "out", about)
        health(daemon, "ready")
        daemon.send(op="suspend", job=1, gen=1, no=1)
        # Another job's probes go their ways meanwhile: its second verdict comes after many periods of the first's.
        other = replica(free_port(), readiness={"path": "/other", "failure_threshold": 50})
        answer(tmp_path / "answers", "other", 200)
        start(daemon, server(tmp_path / "answers"), tmp_path / "out2", other, job=2)
        assert health(daemon, "ready")["job"] == 2
        answer(tmp_path / "answers", "other", 500)
        assert health(daemon, "unready")["job"] == 2
        daemon.send(op="resume", job=1, gen=1, no=2)
        answer(tmp_path / "answers", "other", 200)
        assert health(daemon, "ready")["job"] == 2
        answer(tmp_path / "answers", "health", 500)
        assert health(daemon, "unready")["job"] == 1


def test_the_end_of_its_script_is_the_end_of_its_probes(agent: AgentProcess, tmp_path: Path) -> None:
    with agent.connect() as daemon:
        about = replica(free_port(), startup={"command": ["sleep", "1000"], "timeout_s": 1000})
        start(daemon, "#!/bin/sh\nsleep 1000\n", tmp_path / "out", about)
        daemon.expect("launched")
        daemon.send(op="terminate", job=1, gen=1, grace_s=10)
        ended = []
        while "cleared" not in ended:
            ended.append(daemon.next().get("ev", ""))
        assert "probed" not in ended


def listens_for_a_while(port: int) -> str:
    """A replica whose server ends when something is written to `in`; its job goes on."""
    serve = f"import socket; s = socket.create_server(('0.0.0.0', {port})); open('in').read()"
    return f'#!/bin/sh\nmkfifo in\n{sys.executable} -c "{serve}"\nsleep 1000\n'


def test_a_command_does_not_make_ready_what_does_not_listen(agent: AgentProcess, tmp_path: Path) -> None:
    with agent.connect() as daemon:
        well, port = {"command": ["true"], "failure_threshold": 1}, free_port()
        about = replica(port, startup={"command": ["true"]}, readiness=well, liveness=well)
        start(daemon, listens_for_a_while(port), tmp_path / "out", about)
        health(daemon, "ready")
        (tmp_path / "in").write_text("over")
        assert health(daemon, "unready")["why"] == "readiness probe: nothing listens on its port"


IMPOSTOR = """
import os, socket
os.setuid(65534)
print("there", flush=True)
while True:
    try:
        listener = socket.create_server(("0.0.0.0", {port}))
        break
    except OSError:
        pass
while True:
    listener.accept()[0].sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("readiness", [{}, {"command": ["true"]}], ids=["over its port", "by a command"])
def test_who_took_the_port_as_another_user_is_not_the_replica(
    agent: AgentProcess, tmp_path: Path, readiness: Message
) -> None:
    port = free_port()
    with agent.connect() as daemon:
        about = replica(port, readiness=readiness | {"failure_threshold": 30})  # it has the port long before the last
        start(daemon, listens_for_a_while(port), tmp_path / "out", about)
        health(daemon, "ready")
        with subprocess.Popen([sys.executable, "-c", IMPOSTOR.format(port=port)], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            try:
                other.stdout.readline()
                (tmp_path / "in").write_text("over")
                said = health(daemon, "unready")
            finally:
                other.kill()
        assert said["why"] == "readiness probe: another user's program listens on its port"
