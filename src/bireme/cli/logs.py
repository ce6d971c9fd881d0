"""bireme logs: a job's output, as it is or followed until the job ends.

Reads the files the job writes, which are on this machine; the daemon only says which they are and when the job is
over. Of an array it shows every task that started, each under its own heading.
Invariant: to who may read more than the job's owner nothing is shown that is not the owner's, and nothing that an owner
wrote moves that terminal's cursor or changes its title.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.interactive.allocation import ENDED_STATES
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.shown import SHOWN
from bireme.commands.voice import CommandFailure, Voice, refused_by_daemon, run_command
from bireme.evidence.opened import NoFileError, NotTheirsError, open_output
from bireme.slurm.formats.visible import visible

_FIELDS = "job_id,array_job_id,array_task_id,array_tasks,state,reason,std_out,std_err,kind,user_id"
_LOOK_EVERY_S = 0.25
_CHUNK = 1 << 16
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
_NOWHERE = "/dev/null"


def main(argv: list[str]) -> int:
    return run_command("bireme logs", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(prog="bireme logs", description="Show a job's output: 42, an array 42 or a task 42_3.")
    parser.add_argument("job", help="job id")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_argument("-n", "--lines", type=int, default=None, metavar="N", help="begin with the last N lines")
    parser.add_argument("--err", action="store_true", help="standard error instead of standard output")
    given = parser.parse_args(argv)
    with make_transport() as transport:
        return Logs(transport, given.job, err=given.err, lines=given.lines).show(follow=given.follow)


class Tail:
    """One output file: how far it was shown."""

    def __init__(self, path: str, owner: int, last_lines: int | None) -> None:
        self.path, self._owner = path, owner
        self._refused = ""
        """Why nothing of what lies there is shown."""
        self._told = False
        self._position: int | None = None if last_lines is not None else 0
        self._last_lines = last_lines or 0

    def new(self) -> Iterator[bytes]:
        """What was written since the last look; nothing when the file is not there yet."""
        try:
            with open_output(self.path, self._owner) as file:
                if self._position is None:
                    self._position = last_lines_begin(file, self._last_lines)
                if os.fstat(file.fileno()).st_size < self._position:
                    self._position = 0  # a requeued job began its file anew
                file.seek(self._position)
                while piece := file.read(_CHUNK):
                    self._position += len(piece)
                    yield piece
        except FileNotFoundError:
            return
        except NotTheirsError:
            self._refused = "is not a file of the job's owner: not shown"
        except (NoFileError, IsADirectoryError):
            self._refused = "is no file: what went there cannot be shown"
        except OSError as error:
            raise CommandFailure(f"cannot read {self.path}: {error.strerror}") from error

    def newly_refused(self) -> str:
        """Once: why nothing of what lies there is shown."""
        if not self._refused or self._told or self.path == _NOWHERE:
            return ""
        self._told = True
        return f"{visible(self.path)} {self._refused}"


@dataclass(frozen=True, slots=True)
class Output:
    """A file that is written to for a job."""

    path: str
    owner: int
    whose: str = ""
    """For the heading above it."""

    @property
    def heading(self) -> str:
        return f"{self.whose}: {visible(self.path)}" if self.whose else visible(self.path)


class Pager:
    """Writes what is new in files, each piece under its heading where there are several."""

    def __init__(self, lines: int | None, voice: Voice) -> None:
        self._lines, self._voice = lines, voice
        self._tails: dict[str, Tail] = {}
        self.shown = ""
        """The file that was written from last."""

    def show(self, outputs: Sequence[Output], *, headed: bool) -> None:
        for each in outputs:
            tail = self._tails.setdefault(each.path, Tail(each.path, each.owner, self._lines))
            for piece in tail.new():
                if headed and self.shown != each.path:
                    heading = f"{chr(10) if self.shown else ''}==> {each.heading} <==\n"
                    sys.stdout.buffer.write(heading.encode("utf-8", SHOWN))
                self.shown = each.path
                sys.stdout.buffer.write(for_terminal(piece, each.owner))
            if why := tail.newly_refused():
                self._voice.say(why)
        sys.stdout.buffer.flush()


class Logs:
    def __init__(self, transport: Transport, job: str, *, err: bool, lines: int | None) -> None:
        self._transport = transport
        self._job = job
        self._field = "std_err" if err else "std_out"
        self._voice = Voice("bireme logs")
        self._pager = Pager(lines, self._voice)
        self._told_waiting = False

    def show(self, *, follow: bool) -> int:
        while True:
            records = self._records()
            over = all(record["state"] in ENDED_STATES for record in records)
            self._show_new(records)
            if over or not follow:
                return self._finish(records, follow)
            self._tell_waiting(records)
            self._pause()

    def _records(self) -> list[dict[str, Any]]:
        try:
            return list(self._transport.get(f"/v1/jobs/{self._job}", {"fields": _FIELDS})["jobs"])
        except BiremeUnavailable as error:
            raise refused_by_daemon("", error) from error
        except ApiError as error:
            if error.code != "ESLURM_INVALID_JOB_ID":
                raise refused_by_daemon("", error) from error
        past = self._transport.get("/v1/history", {"job": self._job, "fields": _FIELDS, "start": 0})["jobs"]
        if not past:
            raise CommandFailure(f"there is no job {self._job}; `sacct` lists those that were")
        return list(past)

    def _pause(self) -> None:
        """Returns early when the job ends."""
        try:
            self._transport.get(f"/v1/jobs/{self._job}/wait", {"timeout": _LOOK_EVERY_S})
        except BiremeUnavailable:
            self._transport.patience_s = 60.0  # it may be restarting; the job writes on

    def _show_new(self, records: list[dict[str, Any]]) -> None:
        started = [record for record in records if record["state"] not in ("PENDING",) and record.get(self._field)]
        outputs = [Output(record[self._field], int(record["user_id"])) for record in started]
        self._pager.show(outputs, headed=len({each.path for each in outputs}) > 1)

    def _tell_waiting(self, records: list[dict[str, Any]]) -> None:
        if not self._told_waiting and all(record["state"] == "PENDING" for record in records):
            self._told_waiting = True
            self._voice.say(f"job {self._job} waits ({records[0].get('reason')}); its output follows when it starts")

    def _finish(self, records: list[dict[str, Any]], follow: bool) -> int:
        if self._pager.shown or follow:
            return 0
        if all(record["state"] == "PENDING" for record in records):
            self._voice.say(f"job {self._job} has not started ({records[0].get('reason')})")
        elif all(record.get("kind") == "interactive" for record in records):
            self._voice.say(f"job {self._job} is interactive: its output went to its terminal")
        return 0


def for_terminal(piece: bytes, owner: int) -> bytes:
    """On a terminal, and of another's output: with what moves its cursor, or sets its title, made visible."""
    if owner == os.geteuid() or not sys.stdout.isatty():
        return piece
    return _CONTROL.sub(lambda found: b"".join(b"\\x%02x" % each for each in found[0]), piece)


def last_lines_begin(file: Any, count: int) -> int:
    """Where the last `count` lines of a file begin."""
    end = file.seek(0, os.SEEK_END)
    position, wanted, block = end, count, b""
    while position > 0:
        step = min(_CHUNK, position)
        position -= step
        file.seek(position)
        block = file.read(step) + block
        body = block[:-1] if block.endswith(b"\n") else block
        if body.count(b"\n") >= wanted:
            break
    if wanted <= 0:
        return int(end)
    body = block[:-1] if block.endswith(b"\n") else block
    cut = len(body)
    for _ in range(wanted):
        cut = body.rfind(b"\n", 0, cut)
        if cut < 0:
            return int(position)
    return int(position + cut + 1)
