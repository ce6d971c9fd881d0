"""bireme timeline: asks the daemon for a job's timeline, reads its output as this user, and shows both.

The daemon knows how many bytes of an output had been written when; the lines are read here, with the rights of who
asks (`log`). Shown as text (`drawn`), as the JSON that came, or as one page (`page`).
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.cli.reporting.private_page import write_page
from bireme.cli.timeline import drawn, log, page
from bireme.client.transport import ApiError, BiremeUnavailable
from bireme.commands.paths import path_of
from bireme.commands.voice import CommandFailure, refused_by_daemon, run_command
from bireme.slurm.formats.visible import visible_values

_WIDTH_ELSEWHERE = 100
_NARROWEST = 40
_PAGE_POINTS = 1200
_PAGE_LINES = 2_000


def main(argv: list[str]) -> int:
    return run_command("bireme timeline", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme timeline",
        description="One job over time: why it waited, where it ran, its steps, GPUs, faults, checkpoints and output.",
    )
    parser.add_argument(
        "job", help="job id: 42, an array 42, a task 42_3, a component 42+1; also of jobs that are over"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page that needs no network; - is standard output")
    parser.add_argument("--lines", type=_count, default=None, metavar="N", help="so many lines of output (default 10)")
    parser.add_argument("--width", type=_columns, default=None, metavar="N", help="columns (default: the terminal's)")
    given = parser.parse_args(argv)
    if not given.job.strip():
        raise CommandFailure("which job? `squeue` and `sacct` list them")
    if given.json and given.html is not None:
        raise CommandFailure("--json and --html are two answers: ask for one of them")
    console = Console(highlight=False, width=given.width or (None if sys.stdout.isatty() else _WIDTH_ELSEWHERE))
    told = _asked(given.job, _PAGE_POINTS if given.html is not None else max(20, console.width))
    lines = given.lines if given.lines is not None else (_PAGE_LINES if given.html is not None else 10)
    for one in told["timelines"]:
        one["log"] = log.lines_of(one, lines)
    if given.json:
        print(json.dumps(told, indent=2))
    elif given.html is not None:
        write_page(page.page_of(told), given.html)
    else:
        glyphs = drawn.glyphs_for(sys.stdout.encoding or "")
        for text in drawn.text_of(visible_values(told), console.width, glyphs):
            console.print(text, soft_wrap=True)
    return 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= log.MOST_LINES):
        raise argparse.ArgumentTypeError(f"a whole number up to {log.MOST_LINES}")
    return int(text)


def _columns(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) >= _NARROWEST):
        raise argparse.ArgumentTypeError(f"a number of columns, at least {_NARROWEST}")
    return int(text)


def _asked(job: str, points: int) -> dict[str, Any]:
    with make_transport() as transport:
        try:
            told: dict[str, Any] = transport.get(path_of("jobs", job, "timeline"), {"points": points})
        except ApiError as error:
            if error.code == "ESLURM_INVALID_JOB_ID":
                raise CommandFailure(f"there is no job {job}; `sacct` lists those that were") from error
            raise refused_by_daemon("", error) from error
        except BiremeUnavailable as error:
            raise refused_by_daemon("", error) from error
    return told
