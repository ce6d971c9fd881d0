"""bireme chaos: breaks something on purpose, says what should come of it, and with `--wait` sees whether it does.

For rehearsal clusters (`cluster.rehearsal = "on"`: GPUs and kernel lines are played) and one's own embedded ones.
Every fault that lasts ends by itself; `bireme chaos end` ends it sooner.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

from bireme.cli.chaos.cluster import ChaosCluster, reach
from bireme.cli.chaos.faults import KINDS, Blow, Kind
from bireme.cli.chaos.lasting import LONGEST_S, Lasting, Ledger, watch_over
from bireme.cli.chaos.watching import Told, watch
from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.commands.voice import CommandFailure, run_command
from bireme.daemon.paths import Paths
from bireme.slurm.times import format_elapsed

_DURATION = re.compile(r"(?P<number>\d{1,6})(?P<unit>s|m|h|)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DESCRIPTION = """\
Break something on purpose, and see whether it is noticed and healed.

  list          what can be broken, what should come of it, and what is broken now
  end N|all     take back a fault before its time is over
"""


def main(argv: list[str]) -> int:
    return run_command("bireme chaos", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if given.kind == "list":
        return _list(given)
    if given.kind == "end":
        return _end(given)
    kind = next((each for each in KINDS if each.name == given.kind), None)
    if kind is None:
        known = ", ".join(each.name for each in KINDS)
        raise CommandFailure(f"{given.kind!r} is no fault; bireme chaos list: {known}")
    if not given.target:
        raise CommandFailure(f"say what: bireme chaos {kind.name} {kind.words}")
    return _break(kind, given)


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(
        prog="bireme chaos",
        usage="bireme chaos [list] | KIND TARGET [--for TIME] [--wait [SECONDS]] [--json] | end N|all",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", nargs="?", default="list", help=argparse.SUPPRESS)
    parser.add_argument("target", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--for", dest="lasts", metavar="TIME", help="so long it lasts: 90, 5m, 1h (a fault that lasts)")
    parser.add_argument(
        "--wait", nargs="?", type=float, const=0.0, metavar="SECONDS",
        help="wait for what should happen, as long as each may take or so many seconds; 1 if something did not",
    )  # fmt: skip
    parser.add_argument("--really", action="store_true", help="also in an embedded cluster of another user's (as root)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


# -- a fault --------------------------------------------------------------------------------------------------------


def _break(kind: Kind, given: argparse.Namespace) -> int:
    lasts_s = _lasts_s(kind, given.lasts)
    target = " ".join(given.target)
    with make_transport() as transport:
        cluster = reach(transport)
        cluster.check_allowed(really=given.really)
        blow = kind.prepare(cluster, target)
        number = _struck(cluster, kind, target, blow, lasts_s)
        if not given.json:
            print("\n".join(_said(kind, blow, number, lasts_s)), flush=True)
        told = list(_watched(blow, given)) if given.wait is not None else []
    if given.json:
        signs = [each._asdict() for each in told]
        print(json.dumps({"kind": kind.name, "target": target, "number": number, "what": blow.what, "signs": signs}))
    return int(any(each.after_s is None for each in told))


def _struck(cluster: ChaosCluster, kind: Kind, target: str, blow: Blow, lasts_s: float) -> int | None:
    """The number of a fault that lasts."""
    now = time.time()
    try:
        if not lasts_s:
            blow.strike(0, now)
            return None
        ledger = Ledger(cluster.paths.chaos)
        number = ledger.next_number()
        try:
            undo = blow.strike(number, now + lasts_s)
        except OSError:
            ledger.forget(number)
            raise
    except OSError as error:
        raise CommandFailure(f"{blow.what}: that cannot be done: {error.strerror or error}") from error
    ledger.write(Lasting(number, kind.name, target, now, now + lasts_s, undo))
    watch_over(ledger.file_of(number), blow.held)
    for descriptor in blow.held:
        os.close(descriptor)
    return number


def _said(kind: Kind, blow: Blow, number: int | None, lasts_s: float) -> Iterator[str]:
    yield f"{blow.what}."
    yield f"What should come of it: {kind.expects}."
    if number is not None:
        yield f"It ends in {format_elapsed(int(lasts_s))}, or with `bireme chaos end {number}`."


def _watched(blow: Blow, given: argparse.Namespace) -> Iterator[Told]:
    for told in watch(blow.signs, given.wait or None):
        if not given.json:
            print(_line(told), flush=True)
        yield told


def _line(told: Told) -> str:
    if told.after_s is None:
        return f"MISSING            {told.what}"
    return f"SEEN  after {told.after_s:5.1f} s {told.what}: {told.shows}"


def _lasts_s(kind: Kind, text: str | None) -> float:
    if text is None:
        return kind.lasts_s
    parts = _DURATION.fullmatch(text)
    seconds = int(parts["number"]) * _UNITS[parts["unit"]] if parts is not None else 0
    if not kind.lasts_s:
        raise CommandFailure(f"{kind.name} is over at once: --for is for faults that last")
    if not 0 < seconds <= LONGEST_S:
        raise CommandFailure(f"--for {text}: write seconds, or 5m, or 1h; a day at most")
    return float(seconds)


# -- what there is --------------------------------------------------------------------------------------------------


def _list(given: argparse.Namespace) -> int:
    standing = Ledger(Paths().chaos).all()
    if given.json:
        kinds = [
            {"kind": e.name, "target": e.words, "does": e.does, "expects": e.expects, "lasts_s": e.lasts_s}
            for e in KINDS
        ]
        print(json.dumps({"kinds": kinds, "lasting": [_record(each) for each in standing]}, indent=2))
    else:
        print("\n".join(_listed(standing)))
    return 0


def _record(fault: Lasting) -> dict[str, Any]:
    return {
        "number": fault.number,
        "kind": fault.kind,
        "target": fault.target,
        "began": fault.began,
        "until": fault.until,
    }


def _listed(standing: list[Lasting]) -> Iterator[str]:
    for kind in KINDS:
        yield f"{kind.name + ' ' + kind.words:<32} {kind.does}"
        yield f"{'':<32}   -> {kind.expects}"
    yield ""
    if not standing:
        yield "Nothing is broken on purpose now."
    for fault in standing:
        left = format_elapsed(max(0, int(fault.until - time.time())))
        yield f"{fault.number}: {fault.kind} {fault.target}, for {left} more (bireme chaos end {fault.number})"


def _end(given: argparse.Namespace) -> int:
    ledger = Ledger(Paths().chaos)
    standing = ledger.all()
    wanted = [each for each in standing if given.target in (["all"], [str(each.number)])]
    if not wanted and given.target != ["all"]:
        numbers = ", ".join(str(each.number) for each in standing) or "none"
        raise CommandFailure(f"{' '.join(given.target) or 'nothing'} is no fault that lasts (there are: {numbers})")
    for fault in wanted:
        if ledger.end(fault):
            print(f"{fault.kind} {fault.target} is over.")
    return 0
