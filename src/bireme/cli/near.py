"""Commands in the process that a user started: its variables, its streams, and a connection to the daemon.

What is near the terminal runs here (`squeue --iterate`, the prompt of `scontrol`), and everything for which the daemon
is not there to answer or sends back (`cli/thin.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from bireme.commands.surroundings import Port

PATIENCE_S = 60.0
"""How long a command inside a job waits for a daemon that is being restarted: the job runs on meanwhile."""


class Process:
    """`commands.surroundings.Surroundings` of this process."""

    command = ""

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ

    @property
    def uid(self) -> int:
        return os.getuid()

    @property
    def host(self) -> str:
        return os.uname().nodename.partition(".")[0]

    def write(self, text: str) -> None:
        sys.stdout.write(text)

    def write_bytes(self, data: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def tell(self, text: str) -> None:
        print(text, file=sys.stderr)

    def flush(self) -> None:
        sys.stdout.flush()

    def abandon_output(self) -> None:
        """The interpreter would flush again on its way out and complain."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def port(self, *, may_be_slurms: bool) -> Port:
        from bireme.client.transport import Transport  # late: --version and --help need no daemon

        patience_s = PATIENCE_S if os.environ.get("BIREME_JOB") else 0.0
        made: Transport
        if may_be_slurms:
            from bireme.cli.own_command import ReportingTransport  # late: others answer sooner without

            made = ReportingTransport(self.command, patience_s=patience_s)
        else:
            made = Transport(patience_s=patience_s)
        made.still_silent = lambda text: self.tell(f"{self.command}: {text}")
        told: set[str] = set()

        def out_of_date(remark: str) -> None:
            if remark not in told:
                told.add(remark)
                self.tell(f"{self.command}: {remark}")

        made.out_of_date = out_of_date
        return made

    def only_near(self) -> None:
        """It is."""

    def keep_small(self, count: int, most: int) -> None:
        """Nobody else waits for this process."""
