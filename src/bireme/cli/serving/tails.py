"""The output of a service's replicas: last lines for a page, or all of it, followed.

Reads the files that the replicas' jobs write, with the rights of who asks; the daemon only says which they are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from bireme.cli.logs import Tail, last_lines_begin
from bireme.client.transport import ApiError, Transport
from bireme.commands.paths import path_of
from bireme.commands.shown import SHOWN
from bireme.commands.voice import CommandFailure
from bireme.slurm.formats.visible import visible

Record = dict[str, Any]
_CRASH_LINES, _LOADING_LINES = 5, 1
_LONGEST_LINE = 200
_LONGEST_TAIL = 1 << 16
_AGAIN_S = 0.25
_FIELDS = "job_id,std_out,std_err,state"


def tails_of(transport: Transport, service: Record) -> dict[int, list[str]]:
    """By job: the last line of replicas that load, and the last lines of those that crashed. What cannot be read is
    left out: a page is shown all the same."""
    found: dict[int, list[str]] = {}
    for replica in service["replicas"]:
        if replica["job_id"] and replica["health"] == "loading" and replica["std_out"]:
            found[replica["job_id"]] = last_lines(replica["std_out"], _LOADING_LINES)
    for crash in service["crashes"][-3:]:
        if crash["job_id"]:
            paths = {record["std_err"] or record["std_out"] for record in job_records(transport, crash["job_id"])}
            found[crash["job_id"]] = [line for path in sorted(paths) for line in last_lines(path, _CRASH_LINES)]
    return found


def last_lines(path: str, count: int) -> list[str]:
    """The last lines of a file that say something, each made fit to be shown."""
    try:
        with open(path, "rb") as file:
            begin = last_lines_begin(file, count + 1)
            file.seek(max(begin, file.seek(0, 2) - _LONGEST_TAIL))
            text = file.read(_LONGEST_TAIL).decode("utf-8", "replace")
    except OSError:
        return []
    # A progress bar writes one line over and over, with carriage returns.
    lines = [piece.rstrip().rpartition("\r")[2] for piece in text.split("\n") if piece.strip()]
    return [visible(line[:_LONGEST_LINE]) for line in lines[-count:]]


def job_records(transport: Transport, job_id: int) -> list[Record]:
    """Of a job that may be over for long."""
    try:
        return list(transport.get(path_of("jobs", job_id), {"fields": _FIELDS})["jobs"])
    except ApiError as error:
        if error.code != "ESLURM_INVALID_JOB_ID":
            raise
    return list(transport.get("/v1/history", {"job": job_id, "fields": _FIELDS, "start": 0})["jobs"])


def follow(transport: Transport, name: str, only: int | None, *, err: bool, lines: int | None, on: bool) -> int:
    """Shows what the replicas wrote; with `on` also what they write from now on, until the service is gone."""
    tails: dict[str, Tail] = {}
    shown = ""
    while True:
        paths = dict(_outputs(transport, name, only, err))
        if not paths and only is not None:
            raise CommandFailure(f"service {name} has no replica {only}, and none of that number crashed of late")
        for path, replica in paths.items():
            for piece in tails.setdefault(path, Tail(path, lines)).new():
                if len(paths) > 1 and shown != path:
                    heading = f"{chr(10) if shown else ''}==> replica {replica}: {visible(path)} <==\n"
                    sys.stdout.buffer.write(heading.encode("utf-8", SHOWN))
                shown = path
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        if not on:
            return 0
        time.sleep(_AGAIN_S)


def _outputs(transport: Transport, name: str, only: int | None, err: bool) -> Iterator[tuple[str, int]]:
    """Files, each with the number of its replica. Crashed replicas' are shown when one of them is asked for."""
    field = "std_err" if err else "std_out"
    told = transport.get(path_of("services", name, "logs"))
    for replica in told["replicas"]:
        if replica[field] and only in (None, replica["number"]):
            yield replica[field], replica["number"]
    for crash in told["crashed"]:
        if crash["replica"] == only:
            for record in job_records(transport, crash["job_id"]):
                yield record[field] or record["std_out"], crash["replica"]
