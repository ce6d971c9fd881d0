"""The output of a service's replicas: last lines for a page, or all of it, followed.

Reads the files that the replicas' jobs write, with the rights of who asks; the daemon only says which they are.
Invariant: what is not the service's owner's is not shown to who may read more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bireme.cli.logs import Output, Pager, last_lines_begin
from bireme.client.transport import ApiError, Transport
from bireme.commands.paths import path_of
from bireme.commands.voice import CommandFailure, Voice
from bireme.evidence.opened import NoFileError, NotTheirsError, open_output
from bireme.slurm.formats.visible import visible
from bireme.slurm.times import format_elapsed

Record = dict[str, Any]
_CRASH_LINES, _LOADING_LINES, _LAST_WORDS = 5, 1, 10
_LONGEST_LINE = 200
_LONGEST_TAIL = 1 << 16
_AGAIN_S = 0.25
_FIELDS = "job_id,std_out,std_err,state,user_id"


def tails_of(transport: Transport, service: Record) -> dict[int, list[str]]:
    """By job: the last line of replicas that load, and the last lines of those that crashed. What cannot be read is
    left out: a page is shown all the same."""
    found: dict[int, list[str]] = {}
    for replica in service["replicas"]:
        if replica["job_id"] and replica["health"] == "loading" and replica["std_out"]:
            found[replica["job_id"]] = last_lines(replica["std_out"], service["user_id"], _LOADING_LINES)
    for crash in service["crashes"][-3:]:
        if crash["job_id"]:
            paths = {record["std_err"] or record["std_out"] for record in job_records(transport, crash["job_id"])}
            lines = (line for path in sorted(paths) for line in last_lines(path, service["user_id"], _CRASH_LINES))
            found[crash["job_id"]] = list(lines)
    return found


def last_lines(path: str, owner: int, count: int) -> list[str]:
    """The last lines of a file of this user's that say something, each made fit to be shown."""
    try:
        with open_output(path, owner) as file:
            begin = last_lines_begin(file, count + 1)
            file.seek(max(begin, file.seek(0, 2) - _LONGEST_TAIL))
            text = file.read(_LONGEST_TAIL).decode("utf-8", "replace")
    except (OSError, NotTheirsError, NoFileError):
        return []
    # A progress bar writes one line over and over, with carriage returns.
    lines = [piece.rstrip().rpartition("\r")[2] for piece in text.split("\n") if piece.strip()]
    return [visible(line[:_LONGEST_LINE]) for line in lines[-count:]]


def job_records(transport: Transport, job_id: int) -> list[Record]:
    """Records of a job that may be over for long."""
    try:
        return list(transport.get(path_of("jobs", job_id), {"fields": _FIELDS})["jobs"])
    except ApiError as error:
        if error.code != "ESLURM_INVALID_JOB_ID":
            raise
    return list(transport.get("/v1/history", {"job": job_id, "fields": _FIELDS, "start": 0})["jobs"])


def last_words(transport: Transport, service: Record) -> list[str]:
    """Of a service that does not get ready: whose output says why, and its last lines."""
    newest = service["revisions"][-1]["number"]
    crashes = [each for each in service["crashes"] if each["revision"] == newest and each["job_id"]]
    running = [each for each in service["replicas"] if each["revision"] == newest and each["std_out"]]
    if crashes:
        number, job_id = crashes[-1]["replica"], crashes[-1]["job_id"]
        paths = [record["std_err"] or record["std_out"] for record in job_records(transport, job_id)]
    else:
        number, job_id = (running[-1]["number"], running[-1]["job_id"]) if running else (0, 0)
        paths = [each["std_out"] for each in running[-1:]]
    lines = [line for path in paths for line in last_lines(path, service["user_id"], _LAST_WORDS)]
    if not number:
        return []
    said = "The last lines of" if lines else "Nothing was written by"
    return [
        f"{said} replica {number} (job {job_id}), {', '.join(paths)}{':' if lines else ''}",
        *(f"  | {line}" for line in lines),
    ]


# -- bireme service logs -----------------------------------------------------------------------------------------------


def follow(transport: Transport, name: str, only: int | None, *, err: bool, lines: int | None, on: bool) -> int:
    """Shows what the replicas wrote, of a service that has none what the last one did; with `on` also what they write
    from now on."""
    voice = Voice("bireme service")
    pager = Pager(lines, voice)
    while True:
        told = transport.get(path_of("services", name, "logs"))
        found = list(_living(told, only, err))
        if not found and only is not None:
            found = list(_of_one_that_is_over(transport, told, only, err))
            if not found:
                raise CommandFailure(f"service {name} has no replica {only}, nor had it one of late")
        pager.show(found, headed=len(found) > 1)
        if not pager.shown and only is None:  # none runs, or it has written nothing yet: the one before may say why
            pager.show(list(_of_one_that_is_over(transport, told, only, err)), headed=True)
        if not on:
            if not pager.shown:
                voice.say(f"nothing was written yet; see: bireme service show {name}")
            return 0
        time.sleep(_AGAIN_S)


def _living(told: Record, only: int | None, err: bool) -> Iterator[Output]:
    field = "std_err" if err else "std_out"
    for replica in told["replicas"]:
        if replica[field] and only in (None, replica["number"]):
            yield Output(replica[field], told["user_id"], f"replica {replica['number']}")


def _of_one_that_is_over(transport: Transport, told: Record, only: int | None, err: bool) -> Iterator[Output]:
    """Of the last one, or of the one that is asked for."""
    field = "std_err" if err else "std_out"
    for replica in [each for each in told["over"] if only in (None, each["replica"])][-1:]:
        ago = format_elapsed(max(0, int(told["now"] - replica["at"])))
        why = f": {replica['why']}" if replica["why"] else ""
        for record in job_records(transport, replica["job_id"]):
            whose = f"replica {replica['replica']} (job {replica['job_id']}), over {ago} ago{why}"
            yield Output(record[field] or record["std_out"], record["user_id"], visible(whose))
