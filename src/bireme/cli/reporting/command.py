"""bireme report: of a job, or of users and accounts over a time.

The daemon answers with data; here it becomes text, CSV, JSON or a page of HTML that needs no network.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.cli.reporting import page, table, text
from bireme.cli.reporting.private_page import write_page
from bireme.client.transport import ApiError
from bireme.commands.paths import path_of
from bireme.commands.reports import make_stamp
from bireme.commands.voice import CommandFailure, refused_by_daemon, run_command
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.visible import visible_values
from bireme.slurm.times import parse_timestamp

_DESCRIPTION = """How much of what was asked for was used: GPUs, tensor cores, memory, CPUs, time, energy, waiting.
Of a job with advice; of users and accounts worst first, by measured GPU time without use."""

_WEEK_S = 7 * 86_400.0


def main(argv: list[str]) -> int:
    return run_command("bireme report", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if given.job is not None and not given.job.strip():
        raise CommandFailure("which job? `squeue` and `sacct` list them; without one the report is of everybody")
    of_many = given.user or given.account or given.since or given.until
    if given.job and of_many:
        raise CommandFailure("a job, or --user, --account, --since and --until: not both")
    if given.job and given.csv:
        raise CommandFailure("--csv is for reports of users and accounts; of a job: --json")
    told = _of_job(given.job) if given.job else _of_many(given)
    _show(given, told)
    return 0


def _parser() -> Arguments:
    parser = Arguments(prog="bireme report", description=_DESCRIPTION)
    parser.add_argument("job", nargs="?", help="job id: 42, an array 42, a task 42_3, a component 42+1")
    parser.add_argument("--user", help="runs of these users (names or uids, with commas)")
    parser.add_argument("--account", help="runs of these accounts (with commas)")
    parser.add_argument(
        "--since", help="runs that ended since: 2026-11-10, 08:00, now-7days (default: seven days ago at midnight)"
    )
    parser.add_argument("--until", help="runs that ended before (default: now, and what still runs is counted too)")
    parser.add_argument("--jobs", type=_count, default=20, metavar="N", help="list the N worst runs (default 20)")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--csv", action="store_true", help="users, accounts, periods and runs as CSV")
    forms.add_argument("--json", action="store_true", help="the daemon's answer")
    forms.add_argument("--html", metavar="FILE", help="one page with plots and tables; - is standard output")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) <= 1000):
        raise argparse.ArgumentTypeError("a whole number up to 1000")
    return int(text)


def _of_job(job: str) -> dict[str, Any]:
    with make_transport() as transport:
        try:
            answer: dict[str, Any] = transport.get(path_of("jobs", job, "report"))
        except ApiError as error:
            if error.code == "ESLURM_INVALID_JOB_ID":
                raise CommandFailure(f"there is no job {job}; `sacct` lists those that were") from error
            raise refused_by_daemon("", error) from error
    return answer


def _of_many(given: argparse.Namespace) -> dict[str, Any]:
    now = time.time()
    params = {
        "user": given.user,
        "account": given.account,
        "start": _moment(given.since, now, "--since") if given.since else _midnight(now - _WEEK_S),
        "end": _moment(given.until, now, "--until") if given.until else None,
        "jobs": given.jobs,
    }
    with make_transport() as transport:
        try:
            answer: dict[str, Any] = transport.get("/v1/report", params)
        except ApiError as error:
            raise refused_by_daemon("", error) from error
    chosen = {"user": given.user, "account": given.account}
    return {**answer, "chosen": {name: value for name, value in chosen.items() if value}}


def _midnight(at: float) -> float:
    """Of the day of that time, here: so that days of a report are days."""
    day = time.localtime(at)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))


def _moment(written: str, now: float, flag: str) -> float:
    try:
        return parse_timestamp(written, now, lambda at: time.localtime(at).tm_gmtoff, past=True)
    except SlurmSyntaxError:
        hint = "say it as 2026-11-10, 2026-11-10T08:00, 08:00 or now-7days"
        raise CommandFailure(f"{flag} {written!r} is not a time: {hint}") from None


def _show(given: argparse.Namespace, told: dict[str, Any]) -> None:
    if given.json:
        print(json.dumps(told, indent=2))
        return
    stamp = make_stamp("", told["now"])
    if given.csv:
        print(table.csv_of(told), end="")
        return
    if given.html:
        made = page.of_jobs(told, stamp) if given.job else page.of_many(told, stamp)
        write_page(made, given.html)
        return
    shown = visible_values(told)
    lines = text.of_jobs(shown, stamp) if given.job else text.of_many(shown, stamp)
    print("\n".join(lines))
