"""A process that starts others on request and takes them all with it when it ends. A program, not an import.

Run by `processes.py`, alone (control plane) or as process 1 of new namespaces (a node). Requests come as lines of JSON
on standard input, each answered by one line. When standard input ends, because whoever asked has closed it or has been
killed, so does everything: the kernel kills each child with its parent (PR_SET_PDEATHSIG), and as process 1 of a
PID namespace every descendant too. So no test run, however it ends, leaves a process behind. Needs only the standard
library: inside a node's namespaces nothing else may be assumed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl

started: dict[str, subprocess.Popen[bytes]] = {}
codes: dict[int, int] = {}
"""Exit codes by pid, negative for a signal: `reap` gathers them, so Popen itself never can."""


def start(name: str, argv: list[str], log: str, env: dict[str, str] | None) -> dict[str, Any]:
    with open(log, "ab") as output:
        started[name] = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    return {"pid": started[name].pid}


def send_signal(name: str, number: int) -> dict[str, Any]:
    if name in started and started[name].pid not in codes:
        os.kill(started[name].pid, number)
    return {}


def status(name: str) -> dict[str, Any]:
    reap()
    return {"code": codes.get(started[name].pid)} if name in started else {"code": -1}


def reap() -> None:
    """Orphans too: as process 1 of a namespace they are ours."""
    while True:
        try:
            pid, waited = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        codes[pid] = os.waitstatus_to_exitcode(waited)


def answer(line: bytes) -> dict[str, Any]:
    request = json.loads(line)
    try:
        match request.pop("do"):
            case "start":
                return start(**request)
            case "signal":
                return send_signal(**request)
            case _:
                return status(**request)
    except OSError as error:
        return {"error": str(error)}


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    buffered = b""
    while True:
        ready, _, _ = select.select([0], [], [], 1.0)
        reap()
        if not ready:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, buffered = (buffered + chunk).split(b"\n")
        for line in lines:
            sys.stdout.write(json.dumps(answer(line)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
