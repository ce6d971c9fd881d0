"""`python -m tests.oracle`: runs the cases, shows what differs, and the totals of each group."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

from tests.oracle.cases import load
from tests.oracle.compare import Outcome, known_differences, unused
from tests.oracle.measured import measured
from tests.oracle.run import Findings, only, run_groups
from tests.slurm_cluster import installed, missing


def main() -> int:
    given = _arguments()
    if reason := missing():
        print(f"no oracle here: {reason}")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the clusters are taken down
    known, outcomes = known_differences(installed().version), list[Outcome]()
    begun = time.monotonic()
    for findings in run_groups(only(load(), lambda case: given.only in case.title), known):
        outcomes.extend(findings.outcomes)
        _show(findings, given)
    for one in unused(known, outcomes):
        print(f"known difference that is gone: {one.cases} {list(one.items)}")
    print(f"\n{totals(outcomes)}, {time.monotonic() - begun:.0f} s with {installed().version_text}")
    if given.out:
        Path(given.out).write_text(json.dumps(measured(outcomes), indent=1) + "\n")
    return int(any(one.unknown for one in outcomes))


def totals(outcomes: list[Outcome]) -> str:
    total, same = sum(one.total for one in outcomes), sum(one.same for one in outcomes)
    return f"{len(outcomes)} cases, {total:,} items, {same:,} the same: {100 * same / max(total, 1):.2f}%"


def _show(findings: Findings, given: argparse.Namespace) -> None:
    for outcome in findings.outcomes:
        if outcome.unknown or (given.all and outcome.differences):
            print(outcome.show(outcome.differences if given.all else None))
        for note in outcome.notes:
            print(f"  {outcome.title}: {note}")
        if given.show and fnmatchcase(outcome.title, given.show):
            slurm, bireme = findings.said[outcome.title]
            print(json.dumps({"slurm": slurm, "bireme": bireme}, indent=1))
    print(f"== {findings.group}: {totals(findings.outcomes)}, {findings.spent_s:.0f} s", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description="Compare Bireme with a real Slurm.")
    parser.add_argument("-k", dest="only", default="", help="only groups and cases whose title contains this")
    parser.add_argument("--all", action="store_true", help="show known differences too")
    parser.add_argument("--show", default="", help="a pattern: print everything that these cases said")
    parser.add_argument("--out", default="", help="write the totals to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
