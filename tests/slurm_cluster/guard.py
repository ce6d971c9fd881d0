"""The process that owns a test's Slurm: it starts the daemons and ends them, also when the test run itself dies.

Run as a script by `processes.Guard`; it knows nothing of Slurm and imports nothing of ours. Orders come as lines of
JSON on its input; the end of that input, however it came about, is the order to take everything down.
Invariant: whatever it started, and whatever that started, ends before it does. It is the subreaper of all of it, so
that a job which outlived its slurmstepd is still its descendant and ended by process id.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 20.0
BURY_EVERY_S = 2.0
MOUNTED_IN_A_CHROOT = ("/proc", "/sys", "/dev", "/dev/shm")


def main() -> int:
    folder, root, then = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if root:
        bind_into(root, folder)
    children: dict[int, subprocess.Popen[bytes]] = {}
    try:
        threading.Thread(target=bury_orphans, args=(children,), daemon=True).start()
        for line in sys.stdin:
            print(json.dumps(obey(json.loads(line), children)), flush=True)
    finally:
        end_descendants()
        if then == "remove":
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def obey(order: dict[str, Any], children: dict[int, subprocess.Popen[bytes]]) -> dict[str, Any]:
    """`{"start": argv, "env": ..., "log": path}` or `{"signal": number, "pid": ..., "wait": seconds}`."""
    if "start" in order:
        with open(order["log"], "ab") as log:
            child = subprocess.Popen(
                order["start"],
                env=order["env"],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        children[child.pid] = child
        return {"pid": child.pid}
    child = children[order["pid"]]
    with suppress(ProcessLookupError):
        child.send_signal(order["signal"])
    try:
        return {"code": child.wait(order["wait"])}
    except subprocess.TimeoutExpired:
        return {"code": None}


def bury_orphans(children: dict[int, subprocess.Popen[bytes]]) -> None:
    """Now and then waits for the dead whose parents are gone: they are ours, and nobody else will."""
    while True:
        time.sleep(BURY_EVERY_S)
        for pid in descendants(os.getpid(), deep=False):
            if pid not in children:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def bind_into(root: str, folder: str) -> None:
    """Makes the folder and the kernel's file systems visible in a chroot: in this process's own mount namespace."""
    for path in (*MOUNTED_IN_A_CHROOT, folder):
        inside = Path(root, path.lstrip("/"))
        inside.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", path, str(inside)], check=True)


def end_descendants() -> None:
    """SIGKILL until nobody is left: nothing here is worth a clean end, and the folder goes next."""
    deadline = time.monotonic() + PATIENCE_S
    while (alive := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def descendants(ancestor: int, *, deep: bool = True) -> list[int]:
    """Process ids of all that stem from `ancestor`, as of now; not `deep`: of its own children."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := parent_of(int(name))) is not None:
            children.setdefault(parent, []).append(int(name))
    if not deep:
        return children.get(ancestor, [])
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        of_this = children.get(waiting.pop(), [])
        found.extend(of_this)
        waiting.extend(of_this)
    return found


def parent_of(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(status.rpartition(b")")[2].split()[1])


if __name__ == "__main__":
    sys.exit(main())
