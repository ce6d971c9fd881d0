"""bireme healings: what was decided about findings, what waits for a person, and what is out of service.

The daemon answers with data (`GET /v1/healings`); here it becomes text, or JSON as it came. Decides nothing.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from bireme.cli.faults.findings import where_of
from bireme.cli.parsing import Arguments, carry_out
from bireme.client.transport import Transport
from bireme.commands.paths import path_of
from bireme.commands.reports import make_stamp
from bireme.commands.voice import CommandFailure, run_command
from bireme.slurm.formats.visible import visible_values
from bireme.slurm.hostlist import expand
from bireme.slurm.times import format_elapsed

Record = dict[str, Any]
Stamp = Callable[[float], str]
_WIDTH, _LABEL = 80, 12
_HEAD = ("ID", "STATE", "WHERE", "SINCE", "WHAT", "WHY")
_ASKING = ("suggested", "observed")
_STANDING = (*_ASKING, "approved", "done")
_MODES = {
    "observe": "observe: what Bireme would do is listed, and nobody is asked (healing.mode; docs/healing.md)",
    "suggest": "suggest: nothing is done before an operator approves it",
    "act": "act: it is done, and can be taken back",
}
_DESCRIPTION = """\
What Bireme decided about findings, newest first, and what became of it.

  --all                     also what is over: of jobs that are, refused, failed, undone, lapsed
  show N                    one of them: evidence, and who did what when
  approve N [--why TEXT]    have a suggestion carried out (operators)
  refuse N [--why TEXT]     not this, and not again for the same findings (operators; owners of the job)
  undo N [--why TEXT]       take back what was done (operators)
  fence WHERE --reason TEXT take nodes (n1, n[1-4]) or a GPU of each (n1:gpu2) out of service;
                            --last-too: also the last ones of a partition
"""
_DONE = {
    "approved": "is being done",
    "done": "is done",
    "refused": "is refused: it is not suggested again for the same findings",
    "undone": "is undone",
}


def main(argv: list[str]) -> int:
    return run_command("bireme healings", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    return carry_out(_parser().parse_args(argv))


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(
        prog="bireme healings",
        usage="bireme healings [--all] [--json] [show|approve|refuse|undo N] [fence WHERE --reason TEXT]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.set_defaults(run=_list)
    verbs = parser.add_subparsers(prog=parser.prog, metavar="VERB", help=argparse.SUPPRESS)

    def add(verb: str, run: Callable[[Transport, argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = verbs.add_parser(verb, description=about)
        made.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="the same as JSON")
        made.set_defaults(run=run, verb=verb)
        return made

    for verb, run, about in (
        ("show", _show, "One healing: evidence, undo, and who did what when."),
        ("approve", _say, "Have a suggestion carried out."),
        ("refuse", _say, "Say that it is not to be done: it is not suggested again for the same findings."),
        ("undo", _say, "Take back what was done."),
    ):
        made = add(verb, run, about)
        made.add_argument("healing", metavar="N", help="its number, as the list has it")
        if run is _say:
            made.add_argument("--why", default="", metavar="TEXT", help="for whoever reads the audit")
    fence = add("fence", _fence, "Take a node or a GPU of one out of service. What runs there goes on.")
    fence.add_argument("where", metavar="WHERE", help="n1, n[1-4], n1:gpu2 or n1:GPU-UUID")
    fence.add_argument("--reason", required=True, metavar="TEXT", help="why, for whoever finds it fenced")
    fence.add_argument("--last-too", action="store_true", help="also the last node, or GPU, of a partition")
    return parser


def _list(transport: Transport, given: argparse.Namespace) -> int:
    told = transport.get("/v1/healings", {"all": "1"} if given.all else None)
    print(json.dumps(told, indent=2) if given.json else "\n".join(lines_of(visible_values(told))))
    return 0


def _show(transport: Transport, given: argparse.Namespace) -> int:
    told = transport.get(_path(given.healing))
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(text_of(visible_values(told["healing"]), make_stamp("", told["now"]))))
    return 0


def _say(transport: Transport, given: argparse.Namespace) -> int:
    return _told(transport.post(_path(given.healing, given.verb), {"why": given.why}), given)


def _fence(transport: Transport, given: argparse.Namespace) -> int:
    nodes, colon, gpu = given.where.partition(":")
    failed = 0
    for node in expand(nodes) if "[" in nodes or "," in nodes else [nodes]:
        asked = {"fence": f"{node}{colon}{gpu}", "reason": given.reason, "last_too": given.last_too}
        failed |= _told(transport.post("/v1/healings", asked), given)
    return failed


def _told(answered: Record, given: argparse.Namespace) -> int:
    if given.json:
        print(json.dumps(answered, indent=2))
        return 0
    healing = visible_values(answered["healing"])
    failed = healing["state"] == "failed"
    said = f"could not be done: {healing['said']}" if failed else _DONE.get(healing["state"], f"is {healing['state']}")
    print(f"Healing {healing['id']} ({healing['title']}) {said}.")
    return int(failed)


def _path(number: str, *more: str) -> str:
    if not number.isascii() or not number.isdigit():
        raise CommandFailure(f"{number!r} is not the number of a healing; `bireme healings --all` lists them")
    return path_of("healings", number, *more)


def lines_of(told: Record) -> Iterator[str]:
    """The list: what waits for a person first."""
    found = sorted(told["healings"], key=lambda each: each["state"] not in _ASKING)
    others = "".join(f"; {mode} in {name}" for name, mode in told["modes"].items())
    yield f"Mode {_MODES.get(told['mode'], told['mode'])}{others}."
    if not found:
        yield "Nothing was decided."
        return
    yield ""
    rows = [_HEAD, *(_row(each, told["now"]) for each in found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    yield ""
    asking = next((each for each in found if each["state"] in _ASKING), None)
    if asking is not None:
        yield f"bireme healings approve {asking['id']} does it; bireme healings refuse {asking['id']} does not."
    yield f"bireme healings show {found[0]['id']} tells the evidence, and how it is undone."


def _row(each: Record, now: float) -> tuple[str, ...]:
    since = format_elapsed(max(0, int(now - each["changed_at"])))
    return str(each["id"]), each["state"], where_of(each), since, each["title"], _why(each)


def _why(each: Record) -> str:
    """Of what is over: why it is."""
    return str(each["reason"] if each["state"] in _STANDING else each["said"] or each["reason"])


def text_of(each: Record, stamp: Stamp) -> Iterator[str]:
    """One of them, whole."""
    yield from textwrap.wrap(f"Healing {each['id']}: {each['title']}", _WIDTH)
    yield from _labelled("Where", where_of(each) + (f" ({each['uuid']})" if each["uuid"] else ""))
    yield from _labelled("Why", each["reason"])
    if each["findings"]:
        yield from _labelled("Findings", ", ".join(str(number) for number in each["findings"]))
    for number, quote in enumerate(each["evidence"]):
        yield from _labelled("" if number else "Evidence", f"{quote['source']}: {quote['text']}")
    if each["evidence_hidden"]:
        yield from _labelled("Evidence", "for operators: it may name jobs of others (PrivateData)")
    for number, mark in enumerate(each["trail"]):
        by = f" by {mark['by']}" if mark["by"] else ""
        text = f": {mark['text']}" if mark["text"] else ""
        yield from _labelled("" if number else "Audit", f"{stamp(mark['at'])} {mark['phase']}{by}{text}")
    if each["state"] == "done" and each["undo"]:
        yield from _labelled("Undo", f"bireme healings undo {each['id']}: {each['undo']}")


def _labelled(label: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
        break_long_words=False,
    )
