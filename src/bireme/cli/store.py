"""`bireme store verify|recover|prune`: what is on disk, held against its sums; going on after damage; dropping the old.

Reads the files of the home itself: the daemon need not run, and usually cannot. Not here: how damage is found
(`daemon/at_rest`, `daemon/inspection`).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from bireme.api.serving.peers import user_name
from bireme.cli.parsing import Arguments
from bireme.commands.voice import CommandFailure, run_command
from bireme.daemon import at_rest, files, inspection
from bireme.daemon.at_rest import Inspection
from bireme.daemon.paths import Paths
from bireme.daemon.process import DaemonError, Lock
from bireme.ports import StoreError

_DAMAGED = 1
_DAY_S = 86_400


def main(argv: list[str]) -> int:
    return run_command("bireme store", lambda: _run(argv))


def _run(argv: list[str]) -> int:
    parser = Arguments(prog="bireme store", description="What the cluster keeps on disk.")
    ways = parser.add_subparsers(dest="way", required=True, metavar="verify|recover|prune")
    verify = ways.add_parser("verify", description="Hold everything against its sums. Reads only; the daemon may run.")
    verify.add_argument("--json", action="store_true", help="for programs")
    again = ways.add_parser("recover", description="Go on with what can still be had of a damaged journal.")
    again.add_argument("--accept-loss", action="store_true", help="do it; without this only say what would be lost")
    old = ways.add_parser(
        "prune", description="Drop the records of jobs that ended long ago (the daemon must be down)."
    )
    old.add_argument("--older-than", required=True, type=_days, metavar="DAYS", help="since their end")
    old.add_argument("--events", action="store_true", help="and events of the journal that old, which a story tells")
    for way in (verify, again, old):
        way.add_argument("--home", default=None, metavar="DIR", help="the cluster's state (default: $BIREME_HOME)")
    given = parser.parse_args(argv)
    paths = Paths(given.home)
    if not os.path.isdir(paths.run):
        raise CommandFailure(f"there is no cluster at {paths.home}")
    if not os.access(paths.journal if os.path.exists(paths.journal) else paths.home, os.R_OK):
        owner = user_name(os.stat(paths.home).st_uid)
        raise CommandFailure(
            f"{paths.home} belongs to {owner}, and what is in it is for {owner} alone", hint=f"run it as {owner}"
        )
    if given.way == "prune":
        return _prune(paths, given.older_than, given.events)
    return _verify(paths, given.json) if given.way == "verify" else _recover(paths, given.accept_loss)


def _days(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days (1 or more)")
    return int(text)


# --- prune -------------------------------------------------------------------------------------------------


def _prune(paths: Paths, days: int, events: bool) -> int:
    lock = _locked(paths)
    try:
        dropped = at_rest.prune(paths, time.time() - days * _DAY_S, events=events)
        print(f"Dropped the records of {dropped.jobs} jobs that ended more than {days} days ago.")
        print(f"Dropped {dropped.blobs} scripts and environments that nothing names since then.")
        if events:
            print(f"Dropped {dropped.events} events.")
    except (StoreError, OSError) as error:
        raise CommandFailure(f"it could not be pruned: {error}") from error
    finally:
        lock.release()
    return 0


def _locked(paths: Paths) -> Lock:
    try:
        return Lock(paths)
    except (DaemonError, OSError) as error:
        raise CommandFailure(f"{error}", hint="bireme down, first") from error


# --- verify ------------------------------------------------------------------------------------------------


def _verify(paths: Paths, as_json: bool) -> int:
    found = at_rest.inspected(paths)
    beside = inspection.inspect(paths)
    changed = os.path.exists(paths.mark) and files.changed_settings(paths)
    if as_json:
        aside = inspection.left_aside(paths)
        print(json.dumps({**_as_dict(paths, found, beside), "settings_changed": changed, "set_aside": aside}))
    else:
        _tell(found, beside, changed)
        for file in inspection.left_aside(paths):
            print(f"set aside, damaged: {file}: nothing reads it; keep it to look at, or remove it")
    return 0 if found.sound and not beside else _DAMAGED


def _tell(found: Inspection, beside: list[str], changed: bool) -> None:
    for finding in (*found.findings, *beside):
        print(f"damaged: {finding}")
    if changed:
        print("changed since the latest start: bireme.toml")
    if found.sound:
        whole = "all is what was written" if not beside else "the journal is what was written"
        print(f"{found.path}: {found.events} events, {found.records} records, {found.blobs} blobs: {whole}.")
        return
    print(f"Can still be had: {found.can_be_had()}.")
    print("Put a backup in its place, or go on with that: bireme store recover")


def _as_dict(paths: Paths, found: Inspection, beside: list[str]) -> dict[str, Any]:
    lost = found.lost
    return {
        "home": paths.home,
        "sound": found.sound and not beside,
        "damaged": [*found.findings, *beside],
        "journal": {
            "events": found.events,
            "last_event": found.highest,
            "state_as_of_event": found.good_to,
            "lost_events": list(lost) if lost else None,
            "snapshots": found.snapshots,
            "records": found.records,
            "blobs": found.blobs,
        },
    }


# --- recover -----------------------------------------------------------------------------------------------


def _recover(paths: Paths, accepted: bool) -> int:
    lock = _locked(paths)
    try:
        found = at_rest.inspected(paths)
        if found.sound:
            print(f"{paths.journal} is not damaged: there is nothing to recover.")
            return 0
        for finding in found.findings:
            print(f"damaged: {finding}")
        print(f"Kept would be: {found.can_be_had()}." if not accepted else f"Kept: {found.can_be_had()}.")
        print(_loss_in_words(found))
        if not accepted:
            print("Nothing was changed. To go on so: bireme store recover --accept-loss")
            return _DAMAGED
        done = at_rest.recover(found, time.time())
    except (StoreError, OSError) as error:
        raise CommandFailure(f"it could not be recovered, and is as it was: {error}") from error
    finally:
        lock.release()
    print(f"The damaged files are in {done.kept_in}. Start the cluster with: bireme up")
    if done.lost is not None:
        print("It asks its nodes first what they know; what runs there unknown to the journal is ended.")
    return 0


def _loss_in_words(found: Inspection) -> str:
    loss = at_rest.loss_of(found)
    rows = f" {found.damaged_rows} records, scripts or environments are lost." if found.damaged_rows else ""
    if loss is None:
        return f"No event that matters to the state is lost.{rows}"
    if found.unsure:
        return f"How many of the newest events are lost nobody can say.{rows}"
    count = loss.last - loss.first + 1
    which = f"the newest event, {loss.last}, is" if count == 1 else f"the newest {count} events, to {loss.last}, are"
    return f"Lost: {which} gone, with the jobs, ends and changes that they told of.{rows}"
