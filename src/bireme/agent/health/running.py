"""Runs the checks of a machine side by side, each in a process of its own, and waits for none longer than is left.

Called by `bireme health`, and by whoever wants to know before a part comes back into service: `run_checks`. A check
that hangs (a dead file server, a driver) costs its own line: its process is killed and not waited for, since what hangs
in the kernel does not even die. One that had no turn, on a machine that is busy, has not looked: that is no failure.
Invariant: it returns within `limit_s`, whatever hangs. Its process must have no other threads.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from bireme.agent.health.checks import Check, Expected, Look, all_checks
from bireme.agent.system.processes import read_process

LIMIT_S = 4.0
_MOST_BYTES = 1 << 20


@dataclass(slots=True)
class _Child:
    name: str
    pid: int
    said: bytes = b""


def run_checks(expected: Expected, limit_s: float = LIMIT_S, looks: Mapping[str, Look] | None = None) -> list[Check]:
    """What each of them found, in their order."""
    looks = all_checks() if looks is None else looks
    deadline = time.monotonic() + limit_s
    children = {(begun := _begin(name, look, expected))[0]: begun[1] for name, look in looks.items()}
    answered = _heard(children, deadline)
    found: dict[str, list[Check]] = {}
    for file, child in children.items():
        os.close(file)
        found[child.name] = _read(child) if file in answered else [_unanswered(child, limit_s)]
        _end(child.pid)
    return [check for checks in found.values() for check in checks]


def _begin(name: str, look: Look, expected: Expected) -> tuple[int, _Child]:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _child(name, look, expected, writes)
    os.close(writes)
    return reads, _Child(name, pid)


def _child(name: str, look: Look, expected: Expected, writes: int) -> None:
    """Never returns."""
    try:
        checks = list(look(expected))
    except Exception as error:  # not the end of the others
        checks = [_not_looked(name, f"{type(error).__name__}: {error}")]
    with suppress(OSError):
        data = json.dumps([asdict(check) for check in checks]).encode()
        while data:
            data = data[os.write(writes, data) :]
    os._exit(0)


def _heard(children: Mapping[int, _Child], deadline: float) -> set[int]:
    """Those that came to their end in time."""
    waiting, ended = set(children), set[int]()
    while waiting and (left := deadline - time.monotonic()) > 0.0:
        ready, _, _ = select.select(list(waiting), [], [], left)
        for file in ready:
            data = os.read(file, _MOST_BYTES)
            children[file].said += data
            if not data or len(children[file].said) > _MOST_BYTES:
                waiting.discard(file)
                ended.add(file)
    return ended


def _read(child: _Child) -> list[Check]:
    try:
        return [Check(**each) for each in json.loads(child.said)]
    except (ValueError, TypeError):
        return [_not_looked(child.name, "its process died")]


def _not_looked(name: str, why: str) -> Check:
    return Check(name, "WARN", f"it could not be looked at: {why}", "look at it by hand", looked=False)


def _unanswered(child: _Child, limit_s: float) -> Check:
    """It hangs where it waits; where it could run and was given no CPU, nothing is known."""
    process = read_process(child.pid)
    if process is None or process.state == "R":
        return _not_looked(child.name, f"no turn within {limit_s:g} s on a busy machine")
    is_mount = child.name.startswith("mount")
    what = "a file server that does not answer" if is_mount else "a driver or a disk that hangs"
    advice = "umount -l it, or mend its server" if is_mount else "dmesg says which; restart the node"
    return Check(child.name, "FAIL", f"no answer within {limit_s:g} s, as of {what}", advice)


def _end(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    with suppress(OSError):
        os.waitpid(pid, os.WNOHANG)
