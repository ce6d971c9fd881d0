"""How fast this machine starts `bash -c true`, by each way Python has.

`python tests/unit/agent/bench_spawn.py [COUNT] [MIB]`: COUNT starts, four at a time; MIB is memory the
parent holds, since a fork pays for it and a vfork does not.
The choice in `bireme.agent.starting.spawn` rests on this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from bireme.agent.starting.spawn import Birth, TaskFile, spawn

ARGV = ["/bin/bash", "-c", "true"]
NULL = os.open("/dev/null", os.O_RDWR)
ENV = dict(os.environ)


def by_shell() -> None:
    _spawn(sure=True)


def by_exact_path() -> None:
    _spawn(sure=False)


def _spawn(sure: bool) -> None:
    output = TaskFile("stdout", "/dev/null", "append")
    stdin = TaskFile("stdin", "/dev/null", "read")
    birth = Birth(argv=ARGV, env=ENV, stdin=stdin, stdout=output, stderr=output, sure=sure)
    os.close(spawn(birth).report_fd)


def by_popen() -> None:
    child = subprocess.Popen(ARGV, env=ENV, stdin=NULL, stdout=NULL, stderr=NULL, start_new_session=True)
    child.returncode = 0  # waited for below


def rate(start: Callable[[], None], count: int) -> float:
    began, running = time.perf_counter(), 0
    for _ in range(count):
        start()
        running += 1
        if running == 4:
            os.wait()
            running -= 1
    for _ in range(running):
        os.wait()
    return count / (time.perf_counter() - began)


def main(count: int = 500, held_mib: int = 0) -> None:
    held = bytearray(held_mib << 20)
    held[::4096] = b"x" * len(held[::4096])
    for start in (by_shell, by_exact_path, by_popen):
        print(f"{start.__name__:16} {rate(start, count):6.0f} a second")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
