"""A real agent process in a temporary folder, and a daemon's connection to it. For the tests of this folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bireme.agent.messages import lines, protocol

DEADLINE_S = 30.0
Message = dict[str, Any]


class AgentProcess:
    """Starts the agent of one node; `close` ends it and whatever it runs."""

    def __init__(self, home: Path, node: str = "n1", prefix: Sequence[str] = (), **settings: Any) -> None:
        """`prefix`: a command that runs the agent's."""
        self.home = home
        self._prefix = prefix
        self.node = node
        self.directory = home / "agents" / node
        self._settings = {"name": node, **settings}
        self.pid = 0
        self.start()

    def start(self) -> Message:
        launch = self.home / f"{self.node}.json"
        launch.write_text(json.dumps([self._settings]))
        command = [
            *self._prefix,
            sys.executable,
            "-m",
            "bireme.agent",
            "--home",
            str(self.home),
            "--launch",
            str(launch),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        answer = json.loads(done.stdout)
        self.pid = answer.get("pid", self.pid)
        return answer

    def connect(self) -> DaemonEnd:
        return DaemonEnd(self)

    def kill(self) -> None:
        """kill -9, and wait until the kernel has let go of its lock."""
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not is_running(self.pid), "the agent to die")

    def close(self) -> None:
        if is_running(self.pid):
            with self.connect() as daemon:
                daemon.send(op="exit")
            until(lambda: not is_running(self.pid), "the agent to exit")

    def log(self) -> str:
        return (self.directory / "agent.log").read_text()


class DaemonEnd:
    """What the daemon does with an agent: one connection, lines both ways."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self._socket = protocol.connect_endpoint(f"unix:{agent.directory}/agent.sock", DEADLINE_S)
        self._splitter = protocol.LineSplitter()
        self._lines: list[Message] = []
        self.send(hello="daemon")
        self.welcome = self.expect("welcome")

    def send(self, **message: Any) -> None:
        self.send_raw(lines.encode_line(message))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def next(self) -> Message:
        while not self._lines:
            data = self._socket.recv(1 << 20)
            if not data:
                raise EOFError("the agent closed the connection")
            self._lines += [json.loads(line) for line in self._splitter.feed(data)]
        return self._lines.pop(0)

    def put_back(self, messages: list[Message]) -> None:
        self._lines[:0] = messages

    def expect(self, event: str) -> Message:
        """The next message, which must be this event."""
        message = self.next()
        assert message.get("ev") == event, message
        return message

    def start_job(self, job: int, script: str, out: Path, **changes: Any) -> None:
        batch = {
            "script": script,
            "argv": [],
            "env": job_environment(self.agent, job, changes.get("gen", 1)),
            "cwd": str(out.parent),
            "stdout": str(out),
            "stderr": "",
            "stdin": "/dev/null",
            "umask": 0o022,
        } | changes.pop("batch", {})
        order = {"op": "start", "job": job, "gen": 1, "uid": os.getuid(), "gid": os.getgid(), "alone": True}
        self.send(**(order | changes), batch=batch)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> DaemonEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def job_environment(agent: AgentProcess, job: int, generation: int = 1) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "BIREME_JOB": f"{job}.{generation}",
        "BIREME_HOME": str(agent.home),
        "SLURMD_NODENAME": agent.node,
    }


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(condition: Any, what: str) -> None:
    """Waits for the machine, not for a time: polls, and fails after a generous deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def connect_raw(agent: AgentProcess) -> socket.socket:
    return protocol.connect_endpoint(f"unix:{agent.directory}/agent.sock", DEADLINE_S)
