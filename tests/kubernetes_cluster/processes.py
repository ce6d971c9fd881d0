"""Long-lived processes of a test cluster, held by a keeper (`keeper.py`) that ends them when this process is gone.

A `Keeper` runs beside us, or in new PID, mount, network and UTS namespaces (`isolated=True`, needs root), where it is
process 1. Not a supervisor: nothing is restarted by itself.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

KEEPER = Path(__file__).resolve().parent / "keeper.py"
_NAMESPACES = ("unshare", "--pid", "--mount", "--net", "--uts", "--fork", "--kill-child=KILL", "--mount-proc")
_STOP_S = 20.0


class Keeper:
    """Starts and signals processes by name; `close` ends all of them."""

    def __init__(self, logs: Path, *, isolated: bool = False) -> None:
        self.logs = logs
        self._one_at_a_time = threading.Lock()
        self._process = subprocess.Popen(
            [*(_NAMESPACES if isolated else ()), sys.executable, "-I", str(KEEPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the test run, which then closes us
        )
        self.isolated = isolated

    @property
    def pid(self) -> int:
        """Of the keeper itself, as seen from here: the process whose namespaces `inside` enters."""
        if not self.isolated:
            return self._process.pid
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(wait_for(lambda: children.read_text().split(), "the node's first process")[0])

    def start(self, name: str, *argv: str, env: dict[str, str] | None = None) -> int:
        """Its output goes to `log(name)`, after what an earlier one of that name wrote. Returns its pid in there."""
        return int(self._ask(do="start", name=name, argv=list(argv), log=str(self.log(name)), env=env)["pid"])

    def signal(self, name: str, number: Signals) -> None:
        self._ask(do="signal", name=name, number=int(number))

    def exit_code(self, name: str) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        code = self._ask(do="status", name=name)["code"]
        return None if code is None else int(code)

    def end(self, name: str, how: Signals = SIGTERM) -> None:
        """Signals it and waits for its end; kills it when that takes too long."""
        self.signal(name, how)
        try:
            wait_for(lambda: self.exit_code(name) is not None, f"the end of {name}", within_s=_STOP_S)
        except TimeoutError:
            self.signal(name, SIGKILL)
            wait_for(lambda: self.exit_code(name) is not None, f"the end of {name}", within_s=_STOP_S)

    def inside(self, *argv: str, stdin: bytes | None = None) -> str:
        """Runs a command in the keeper's namespaces and returns its output; raises with what it said when it fails."""
        entered = (
            ("nsenter", f"--target={self.pid}", "--mount", "--net", "--uts", "--pid", "--") if self.isolated else ()
        )
        return run(*entered, *argv, stdin=stdin)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def close(self) -> None:
        """Ends everything at once: the state of a test cluster is of no use to anybody."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the keeper of the test cluster's processes is gone")
        answered: dict[str, Any] = json.loads(line)
        if "error" in answered:
            raise RuntimeError(answered["error"])
        return answered


def run(*argv: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> str:
    """A short command's output; raises with what it said when it fails."""
    done = subprocess.run(argv, input=stdin, env=env, capture_output=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise RuntimeError(f"{' '.join(argv[:6])}: exit {done.returncode}: {said}")
    return done.stdout.decode(errors="replace")


def wait_for(good: Callable[[], Any], what: str, within_s: float = 60.0, every_s: float = 0.05) -> Any:
    """Polls until `good()` is true and returns its value; `what` names it in the error."""
    deadline = time.monotonic() + within_s
    while not (value := good()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_s:g} s")
        time.sleep(every_s)
    return value


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
