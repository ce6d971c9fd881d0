"""Commands in the process that a user started: its variables, its streams, and a connection to the daemon.

What is near the terminal runs here (`squeue --iterate`, the prompt of `scontrol`), and everything for which the daemon
is not there to answer or sends back (`cli/thin.py`).
"""

from __future__ import annotations

import grp
import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn, cast

from bireme.cli import thin
from bireme.client.transport import Transport
from bireme.commands.shown import SHOWN
from bireme.commands.surroundings import Port
from bireme.slurm.formats.visible import visible_lines

PATIENCE_S = 60.0
"""How long a command inside a job waits for a daemon that is being restarted: the job runs on meanwhile."""
_LARGEST_READ = 1 << 30


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
    def gid(self) -> int:
        return os.getgid()

    @property
    def user(self) -> str:
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return str(os.getuid())

    @property
    def folder(self) -> str:
        return thin.working_folder()

    @property
    def umask(self) -> int:
        return thin.current_umask()

    @property
    def nice(self) -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    @property
    def key(self) -> str:
        """The idempotency key of a submission which the daemon may have had already."""
        return thin.KEPT.pop(thin.KEY, b"").decode() or os.urandom(16).hex()

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

    def remark(self, line: str, end: str) -> None:
        # One write a line: several sruns of a job share the script's stderr and must not mix within lines.
        data = (visible_lines(line) + end).encode("utf-8", SHOWN)
        with suppress(OSError, ValueError):  # nobody listens any more; the exit code still tells
            sys.stderr.flush()
            os.write(2, data)

    def read_file(self, *places: str) -> bytes:
        taken = thin.KEPT.pop("\0".join(places), None)  # the daemon wanted it, and sent the command back
        if taken is not None:
            return taken
        if places == ("",):
            return sys.stdin.buffer.read(_LARGEST_READ)
        found = (place for place in places if os.path.isfile(place) and os.access(place, os.R_OK))
        with open(next(found, places[-1]), "rb") as file:
            return file.read(_LARGEST_READ)

    def flush(self) -> None:
        sys.stdout.flush()

    def abandon_output(self) -> None:
        """The interpreter would flush again on its way out and complain."""
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def port(self, *, may_be_slurms: bool = False, acts: bool = False) -> Port:
        inside = os.environ.get("BIREME_JOB") or (acts and "SLURM_JOB_ID" in os.environ)
        patience_s = PATIENCE_S if inside else 0.0
        made: Transport
        if may_be_slurms:
            from bireme.cli.own_command import ReportingTransport  # late: others answer sooner without

            made = ReportingTransport(self.command, patience_s=patience_s)
        else:
            made = Transport(patience_s=patience_s)
        made.asked_before = acts and thin.KEPT.pop(thin.LOST, None) is not None
        made.still_silent = lambda text: self.tell(f"{self.command}: {text}")
        told: set[str] = set()

        def out_of_date(remark: str) -> None:
            if remark not in told:
                told.add(remark)
                self.tell(f"{self.command}: {remark}")

        if not acts:
            made.out_of_date = out_of_date
        return made

    def become_slurms_own(self, port: Port) -> NoReturn:
        from bireme.cli.own_command import become_slurms_own  # late: only a Slurm cluster needs it

        become_slurms_own(cast(Transport, port), self.command)

    def only_near(self) -> None:
        """Lets a command go on that has to run in its user's process: this is it."""

    @property
    def leaves_waiting(self) -> bool:
        """Whether another process waits for a job: this is the one that does."""
        return False

    def leave_waiting(self, job: str) -> NoReturn:
        raise AssertionError("nobody else waits for it")

    def keep_small(self, count: int, most: int) -> None:
        """Nobody else waits for this process."""

    def go_on(self) -> None:
        """Lets a command go on: nobody else waits for this process."""

    def user_id(self, name: str) -> int | None:
        try:
            return pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            return None

    def group_id(self, name: str) -> int | None:
        try:
            return grp.getgrnam(name).gr_gid
        except (KeyError, ValueError):
            return None
