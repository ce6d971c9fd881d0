"""sacctmgr: accounts, users, associations and QOS, as Slurm's command shows and changes them.

Without words it reads commands line by line. `show` prints (`show.py`), `add`, `modify` and `delete` ask before they
do (`change.py`), `dump` and `load` keep the book in a text file (`files.py`).
"""

from __future__ import annotations

import shlex
import sys

from bireme.cli.sacctmgr.session import Session
from bireme.commands import reports
from bireme.commands.optline import Opt, options, read
from bireme.slurm.version import VERSION_LINE

TABLE: list[Opt] = options(
    "-h--help -i--immediate --json[=] -n--noheader -o--oneliner -p--parsable -P--parsable2 -Q--quiet -r--readonly"
    " -s--associations -v--verbose -V--version --yaml[=] --autocomplete="
)
HELP = """\
Usage: sacctmgr [OPTIONS] COMMAND
  show|list ENTITY [WHERE...] [format=...]     account, association, user, qos, cluster, tres, problem
  add ENTITY NAME... [KEY=VALUE...]            account, user, qos, coordinator
  modify ENTITY [where ...] set KEY=VALUE...   account, user, qos, cluster
  delete ENTITY [where ...]                    account, user, qos, coordinator
  dump CLUSTER [file=NAME]                     the book as a text file
  load FILE [clean]                            bring the book to what the file says

  -i, --immediate     do it without asking      -n, --noheader    no header
  -p, --parsable      | after each field        -P, --parsable2   | between fields
  -s, --associations  with associations         --json, --yaml    as data
  -Q, --quiet         no progress               -r, --readonly    change nothing

  sacctmgr add account science fairshare=40
  sacctmgr add user ann account=science
  sacctmgr add qos high priority=100
  sacctmgr modify user ann set qos+=high maxjobs=5
  sacctmgr modify account science set GrpTRESMins=gres/gpu=43200
"""
_ENDS = ("exit", "quit")


def main(argv: list[str]) -> int:
    return reports.guarded("sacctmgr", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    given, words = read(TABLE, argv)
    asked = dict(given)
    if "version" in asked:
        print(VERSION_LINE)
        return 0
    if "help" in asked:
        sys.stdout.write(HELP)
        return 0
    session = Session(asked)
    return _run(session, words) if words else _converse(session)


def _converse(session: Session) -> int:
    """A command a line, until `quit` or the end of the input."""
    code = 0
    while True:
        sys.stdout.write("sacctmgr: ")
        sys.stdout.flush()
        line = sys.stdin.readline()
        words = shlex.split(line, comments=True)
        if not line or (words and words[0].lower() in _ENDS):
            return code
        if words:
            try:
                code = _run(session, words)
            except reports.SilentError:
                code = 1
            except reports.CommandError as error:
                reports.tell(str(error))
                code = error.code


def _run(session: Session, words: list[str]) -> int:
    # Late imports: each command pays for its own tables only.
    command, rest = words[0].lower(), words[1:]
    if _is(command, "show", 2) or _is(command, "list", 1):
        from bireme.cli.sacctmgr.show import show

        return show(session, rest)
    if _is(command, "add", 2) or _is(command, "create", 2):
        from bireme.cli.sacctmgr.change import add

        return add(session, rest)
    if _is(command, "modify", 1) or _is(command, "update", 1):
        from bireme.cli.sacctmgr.change import modify

        return modify(session, rest)
    if _is(command, "delete", 1) or _is(command, "remove", 3):
        from bireme.cli.sacctmgr.change import delete

        return delete(session, rest)
    if _is(command, "dump", 2) or _is(command, "load", 2):
        from bireme.cli.sacctmgr import files

        return (files.dump if command.startswith("d") else files.load)(session, rest)
    return _about_itself(session, command)


def _about_itself(session: Session, command: str) -> int:
    if _is(command, "help", 2):
        sys.stdout.write(HELP)
    elif _is(command, "version", 4):
        print(VERSION_LINE)
    elif command in ("noheader", "parsable", "parsable2", "quiet", "readonly", "verbose", "oneliner", "associations"):
        session.asked[command] = None
    else:
        raise reports.CommandError(f"invalid keyword: {command}")
    return 0


def _is(word: str, name: str, least: int) -> bool:
    return len(word) >= least and name.startswith(word)
