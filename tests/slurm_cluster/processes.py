"""The test's side of the guard (guard.py), and a block of ports that no other test's cluster uses.

Used by `cluster.py` only. Invariant: when this process ends, however it ends, the guard's input ends and with it all
that it started.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.slurm_cluster.layout import Ports

GUARD = Path(__file__).with_name("guard.py")
PORTS = range(20000, 32000, 64)
"""First ports of the blocks: below the range from which the kernel takes ports for outgoing connections."""


class Guard:
    """A running guard.py. `chroot`: it binds the folder into that system, in a mount namespace of its own.

    `keep`: the folder is not removed at the end.
    """

    def __init__(self, folder: Path, chroot: str = "", *, keep: bool = False) -> None:
        alone = ["unshare", "--mount", "--propagation=private"] if chroot else []
        self._process = subprocess.Popen(
            [*alone, sys.executable, str(GUARD), str(folder), chroot, "keep" if keep else "remove"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C at the terminal is for the test run; it then ends us
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> int:
        """Starts a daemon in the foreground; its process id."""
        return int(self._ask({"start": list(argv), "env": dict(env), "log": str(log)})["pid"])

    def end(self, pid: int, number: int = signal.SIGTERM, patience_s: float = 20.0) -> None:
        """Signals a daemon and waits for its end; one that does not end is killed."""
        if self._ask({"pid": pid, "signal": number, "wait": patience_s})["code"] is None:
            self._ask({"pid": pid, "signal": signal.SIGKILL, "wait": patience_s})

    def close(self) -> None:
        """Takes everything down."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(60)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the guard of a test's Slurm ended (pid {self.pid})")
        said: dict[str, Any] = json.loads(answer)
        return said


@contextmanager
def free_ports(count: int) -> Iterator[Ports]:
    """Ports that are free now and stay ours: a name in the kernel says which blocks other clusters have."""
    assert count <= PORTS.step, f"{count} ports do not fit into a block"
    for first in random.sample(PORTS, len(PORTS)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0bireme-slurm-ports-{first}")
        except OSError:
            claim.close()
            continue
        with claim:
            if all(_is_free(port) for port in range(first, first + count)):
                yield Ports(first)
                return
    raise RuntimeError("no block of free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
