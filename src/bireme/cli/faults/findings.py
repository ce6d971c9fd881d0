"""bireme findings: what is wrong with GPUs, nodes and jobs, with evidence and what to do.

The daemon answers with data (`GET /v1/findings`); here it becomes text, or JSON as it came. Decides nothing.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from bireme.cli.parsing import Arguments, carry_out
from bireme.client.transport import Transport
from bireme.commands.paths import path_of
from bireme.commands.reports import make_stamp
from bireme.commands.voice import CommandFailure, run_command
from bireme.slurm.formats.visible import visible_values
from bireme.slurm.times import format_elapsed

Record = dict[str, Any]
Stamp = Callable[[float], str]
_WIDTH, _LABEL = 80, 12
_WHO = {"you": "you", "platform": "your platform team", "vendor": "the vendor, through your platform team"}
_SOURCES = {"kernel": "kernel", "record": "the scheduler", "device": "the GPU", "series": "measured", "check": "check"}
_HEAD = ("ID", "GRAVITY", "WHERE", "SINCE", "WHAT")
_DESCRIPTION = """\
What is wrong with GPUs, nodes and jobs, gravest first.

  show N                 one of them: evidence, what to do, who
  dismiss N --why TEXT   it is nothing: it stays silent until it is gone, or graver (operators)
  mended N [--why TEXT]  it is over, as after a repair (operators)
"""


def main(argv: list[str]) -> int:
    return run_command("bireme findings", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    return carry_out(_parser().parse_args(argv))


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(
        prog="bireme findings",
        usage="bireme findings [--json] [show|dismiss|mended N]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.set_defaults(run=_list)
    verbs = parser.add_subparsers(prog=parser.prog, metavar="VERB", help=argparse.SUPPRESS)

    def add(verb: str, run: Callable[[Transport, argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = verbs.add_parser(verb, description=about)
        made.add_argument("finding", metavar="N", help="its number, as the list has it")
        made.set_defaults(run=run)
        return made

    show = add("show", _show, "One finding, with its evidence.")
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="the same as JSON")
    dismiss = add("dismiss", _dismiss, "Say that it is nothing: it stays silent until it is gone, or graver.")
    dismiss.add_argument("--why", required=True, metavar="TEXT", help="why it is nothing, for whoever reads it next")
    mended = add("mended", _mended, "Say that it is over. Where it is not, its detector finds it again.")
    mended.add_argument("--why", default="", metavar="TEXT", help="what was done")
    return parser


def _list(transport: Transport, given: argparse.Namespace) -> int:
    told = transport.get("/v1/findings")
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(lines_of(visible_values(told))))
    return 0


def _show(transport: Transport, given: argparse.Namespace) -> int:
    told = transport.get(_path(given.finding))
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(text_of(visible_values(told["finding"]), told["now"], make_stamp("", told["now"]))))
    return 0


def _dismiss(transport: Transport, given: argparse.Namespace) -> int:
    found = transport.post(_path(given.finding, "dismiss"), {"why": given.why})["finding"]
    print(f"Finding {found['id']} is dismissed: it stays silent until it is gone, or graver.")
    return 0


def _mended(transport: Transport, given: argparse.Namespace) -> int:
    transport.post(_path(given.finding, "mended"), {"why": given.why})
    print(f"Finding {given.finding} is closed. Where it is not mended, its detector finds it again.")
    return 0


def where_of(record: Record) -> str:
    """A job by the name that people know it by: a task of an array has another number of its own."""
    if not record["job"]:
        return str(record["place"])
    rank = "" if record["rank"] is None else f" rank {record['rank']}"
    return f"job {record['job']}{rank}"


def _path(number: str, *more: str) -> str:
    if not number.isascii() or not number.isdigit():
        raise CommandFailure(f"{number!r} is not the number of a finding; `bireme findings` lists those that stand")
    return path_of("findings", number, *more)


def lines_of(told: Record) -> Iterator[str]:
    """The list, dismissed ones last."""
    found = sorted(told["findings"], key=lambda each: each["state"] == "dismissed")
    if not found:
        yield "Nothing is known to be wrong."
        return
    rows = [_HEAD, *(_row(each, told["now"]) for each in found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    yield ""
    yield f"bireme findings show {found[0]['id']} tells the evidence, and what to do."


def _row(found: Record, now: float) -> tuple[str, ...]:
    dismissed = " (dismissed)" if found["state"] == "dismissed" else ""
    since = format_elapsed(max(0, int(now - found["since"])))
    return str(found["id"]), found["gravity"] + dismissed, where_of(found), since, found["title"]


def text_of(found: Record, now: float, stamp: Stamp) -> Iterator[str]:
    """One of them, whole."""
    yield from textwrap.wrap(f"Finding {found['id']}: {found['title']}", _WIDTH)
    yield from _labelled("Where", where_of(found) + (f" ({found['uuid']})" if found["uuid"] else ""))
    yield from _labelled("Gravity", found["gravity"])
    ago = format_elapsed(max(0, int(now - found["since"])))
    yield from _labelled("Since", f"{stamp(found['since'])} ({ago} ago), seen by detector {found['detector']}")
    if found["times"] > 1:
        until = f"; it stands until {stamp(found['stands_until'])} at least" if found["stands_until"] > now else ""
        yield from _labelled("Came", f"{found['times']} times of late, and went{until}")
    for number, quote in enumerate(found["evidence"]):
        yield from _labelled("" if number else "Evidence", _source(quote, stamp))
        yield from _labelled("", quote["text"], indent="  ")
    if found["evidence_hidden"]:
        yield from _labelled("Evidence", "for operators: it may name jobs of others (PrivateData)")
    if found["jobs"]:
        yield from _labelled("Jobs", ", ".join(found["jobs"]))
    if found["remedy"]:
        yield from _labelled("What to do", found["remedy"])
    yield from _labelled("Who", str(_WHO.get(found["who"], found["who"])))
    yield from _labelled("Ends", _ends(found))
    if found["dismissed_by"]:
        yield from _labelled("Dismissed", f"by {found['dismissed_by']}: {found['why_dismissed']}")


def _ends(found: Record) -> str:
    if found["lasts"]:
        return f"when a check passes, or somebody says so: bireme findings mended {found['id']}"
    return "by itself, when it is no longer seen"


def _source(quote: Record, stamp: Stamp) -> str:
    parts = (_SOURCES.get(quote["source"], quote["source"]), quote["node"], stamp(quote["at"]) if quote["at"] else "")
    return ", ".join(part for part in parts if part) + ":"


def _labelled(label: str, text: str, indent: str = "") -> Iterator[str]:
    first, then = f"{label:<{_LABEL}}{indent}", " " * _LABEL + indent
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=then, break_on_hyphens=False, break_long_words=False
    )
